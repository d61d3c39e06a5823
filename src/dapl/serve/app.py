"""The web application: which address answers what."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Scope

from dapl.api import Classifier
from dapl.errors import DaplError
from dapl.loading import LoadedRun
from dapl.marks import Marks
from dapl.serve import explain_routes, facts_routes, mark_routes, page_routes
from dapl.serve.capacity import PLACES, Worker
from dapl.serve.examples import Examples
from dapl.serve.guard import Guard
from dapl.serve.inspector import Inspector
from dapl.serve.live_report import LiveReport
from dapl.serve.refusal import Refusal
from dapl.serve.state import State

LOCAL_NAMES = ("localhost",)
log = logging.getLogger("dapl.serve")


def build_app(loaded: LoadedRun, names: Collection[str] = (), places: int = PLACES) -> ASGIApp:
    """The page and the API of one run. ``names``: further host names under which it may be called."""
    marks = Marks.of_run(loaded.run.folder)
    marks.read()  # a broken file is said now, not when someone marks something
    worker = Worker(places)
    classifier = Classifier.of_run(loaded)
    state = State(loaded, classifier, Inspector(classifier), Examples(loaded.config), marks, worker, LiveReport(loaded))

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    app = bare_app(lifespan=life)
    app.state.dapl = state
    return Guard(app, (*LOCAL_NAMES, *names))


def bare_app(**options: Any) -> FastAPI:
    """All addresses, and nothing behind them yet: enough for the schema."""
    app = FastAPI(
        title="dapl serve", version="1", docs_url=None, redoc_url=None, **options,
        description="A prototype model that shows its reasons: ask it about pictures, and switch its reasons off.",
    )  # fmt: skip
    for routes in (facts_routes, explain_routes, mark_routes, page_routes):
        app.include_router(routes.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")), name="static")
    _answer_errors(app)
    return app


def _answer_errors(app: FastAPI) -> None:
    """Whatever goes wrong is told in one sentence that names nothing of this machine."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        return JSONResponse({"detail": error.sentence}, error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return JSONResponse({"detail": f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}."}, 422)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        sentences = {
            400: "The body of the request could not be read.",
            404: "There is nothing at this address.",
            405: "This address does not take that method.",
        }
        sentence = sentences.get(error.status_code, "The request could not be met.")
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, request.scope))
        return JSONResponse({"detail": sentence}, error.status_code, headers)

    @app.exception_handler(DaplError)
    async def unforeseen(request: Request, error: DaplError) -> JSONResponse:
        log.error("%s", error)  # it may name files, which is for this side only
        return JSONResponse({"detail": "The run could not be read; the server's log says why."}, 500)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": "Something went wrong; the server's log says what."}, 500)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """All that an address takes: Starlette names those of the first route that fits it."""
    known = ("GET", "POST", "PUT", "DELETE")
    return [
        method
        for method in known
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]
