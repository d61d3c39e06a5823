"""``dapl serve``: the web application of a run, answering until told to stop."""

from __future__ import annotations

import logging
import socket
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

from dapl.common.errors import DaplError
from dapl.explain.classifier import Classifier
from dapl.runs.loading import LoadedRun
from dapl.runs.marks import Marks
from dapl.serve.inspector import Examples, Inspector
from dapl.serve.requests import PLACES, Guard, ModelThread, Refusal
from dapl.serve.routes import explain_router, facts_router, mark_router, page_router
from dapl.serve.state import LiveReport, State

log = logging.getLogger("dapl.serve")


def build_app(loaded: LoadedRun, names: Collection[str] = (), places: int = PLACES) -> ASGIApp:
    """The page and the API of one run. ``names``: further host names under which it may be called."""
    marks = Marks.of_run(loaded.run.folder)
    marks.read()  # a broken file is said now, not when someone marks something
    worker = ModelThread(places)
    classifier = Classifier.of_run(loaded)
    state = State(loaded, classifier, Inspector(classifier), Examples(loaded.config), marks, worker, LiveReport(loaded))

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    app = bare_app(lifespan=life)
    app.state.dapl = state
    return Guard(app, ("localhost", *names))


def bare_app(**options: Any) -> FastAPI:
    """All addresses, and nothing behind them yet: enough for the schema."""
    app = FastAPI(
        title="dapl serve",
        version="1",
        docs_url=None,
        redoc_url=None,
        **options,
        description="A prototype model that shows its reasons: ask it about images, and switch its reasons off.",
    )
    for router in (facts_router, explain_router, mark_router, page_router):
        app.include_router(router)
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


_IDLE_SECONDS = 75
"""Before an idle connection is closed: longer than clients keep theirs, or one may send into a closing one."""


def serve(folder: Path, host: str = "127.0.0.1", port: int = 8000, names: Collection[str] = ()) -> None:
    """Blocks. Port 0 takes a free one; the address is printed before the first request can come."""
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise DaplError(
            f"dapl serve needs the package {error.name}; install what it takes with `pip install 'dapl[serve]'`."
        ) from error
    from dapl.runs.loading import load_run

    loaded = load_run(folder)
    if len(loaded.model.prototypes) == 0:
        raise DaplError(
            f"{folder}: the model has no prototypes, so there is nothing that the page could show; serve a run of "
            "another system."
        )
    logging.basicConfig(level=logging.WARNING, format="dapl serve: %(message)s")
    listening = _listen(host, port)
    app = build_app(loaded, (host, socket.gethostname(), *names))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on", timeout_keep_alive=_IDLE_SECONDS
    )
    try:
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
        print(f"{folder} is at {address} (Ctrl-C ends it)", flush=True)
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # also uvicorn hands on the signal, after it has closed everything
        return
    finally:
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port < 2**16:  # or the system would take what is left of it
            raise OverflowError("ports go from 0 to 65535")
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise DaplError(
            f"cannot listen at {host}, port {port} ({error}); --port names another one (0: any that is free), "
            "--host another address of this machine."
        ) from error
