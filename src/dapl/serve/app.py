"""``dapl serve``: the web application of a run, or of several beside each other, answering until told to stop."""

from __future__ import annotations

import ipaddress
import logging
import re
import secrets
import signal
import socket
import sys
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

from dapl.common.errors import DaplError, needing
from dapl.data.sample import Splits
from dapl.explain.classifier import Classifier
from dapl.runs.loading import LoadedRun
from dapl.runs.marks import Marks
from dapl.serve.answers import Health
from dapl.serve.requests import HEALTH, PLACES, AccessLog, Guard, ModelThread, Refusal
from dapl.serve.routes import compare_router, explain_router, facts_router, mark_router, page_router
from dapl.serve.state import Examples, Inspector, LiveReport, State

log = logging.getLogger("dapl.serve")


def build_app(
    *runs: LoadedRun,
    names: Collection[str] = (),
    places: int = PLACES,
    token: str | None = None,
    access_log: AccessLog | None = None,
    splits: Splits | None = None,
) -> ASGIApp:
    """The page and the API of a run; of several, a page that compares them, and each below a number of its own.

    ``names``: further host names under which it may be called. ``token``: what everyone has to show; None lets everyone
    in who reaches the port. ``splits``: the data of runs that were trained on data handed over in Python.
    """
    several = len(runs) > 1
    states = [_state(loaded, f"/{number}" if several else "", places, splits) for number, loaded in enumerate(runs, 1)]

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        for state in states:
            state.worker.close()

    if not several:
        app = bare_app(lifespan=life)
        app.state.dapl = states[0]
        return Guard(app, ("localhost", *names), token, access_log)
    outer = _empty_app(lifespan=life, openapi_url=None)
    outer.state.runs = states
    outer.include_router(compare_router)
    for state in states:
        app = bare_app()
        app.state.dapl = state
        outer.mount(state.prefix, app)
    return Guard(outer, ("localhost", *names), token, access_log)


def _state(loaded: LoadedRun, prefix: str, places: int, splits: Splits | None) -> State:
    marks = Marks.of_run(loaded.run.folder)
    marks.read()  # a broken file is said now, not when someone marks something
    classifier, examples = Classifier.of_run(loaded, splits), Examples(loaded.config, splits)
    inspector, report = Inspector(classifier, prefix), LiveReport(loaded, prefix, splits)
    return State(loaded, classifier, inspector, examples, marks, ModelThread(places), report, prefix)


def bare_app(**options: Any) -> FastAPI:
    """All addresses of a run, and nothing behind them yet: enough for the schema."""
    app = _empty_app(**options)
    for router in (facts_router, explain_router, mark_router, page_router):
        app.include_router(router)
    return app


def _empty_app(**options: Any) -> FastAPI:
    """The files of the pages, and answers to what goes wrong."""
    app = FastAPI(
        title="dapl serve",
        version="1",
        docs_url=None,
        redoc_url=None,
        **options,
        description="A prototype model that shows its reasons: ask it about images, and switch its reasons off.",
    )
    app.get(HEALTH, tags=["run"])(_health)
    app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")), name="static")
    _answer_errors(app)
    return app


def _health() -> Health:
    """Says that the server is there, to whoever watches over it; needs no token."""
    return Health(status="ok")


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


_TOKEN = r"[A-Za-z0-9._~-]{16,512}"
"""Long enough not to be guessed, and the same in a header, a cookie and an address."""


def serve(
    *folders: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    names: Collection[str] = (),
    token: str | None = None,
    access_log: Path | None = None,
    splits: Splits | None = None,
) -> None:
    """Blocks. Port 0 takes a free one; the address is printed before the first request can come.

    Where others than this machine can reach it there is always a ``token``: a new one unless it is given. ``splits``:
    the data of runs that were trained on data handed over in Python.
    """
    with needing("dapl serve needs FastAPI and uvicorn", "serve"):
        import fastapi  # noqa: F401
        import uvicorn
    if token is not None and not re.fullmatch(_TOKEN, token):
        raise DaplError("--token: give 16 characters or more, of letters, digits and . _ ~ - .")
    requests_log = None if access_log is None else AccessLog(access_log)
    from dapl.runs.loading import load_run
    from dapl.serve.connections import server_config

    runs = [load_run(folder) for folder in folders]
    for folder, loaded in zip(folders, runs, strict=True):
        if len(loaded.model.prototypes) == 0:
            raise DaplError(
                f"{folder}: the model has no prototypes, so there is nothing that the page could show; serve a run of "
                "another system."
            )
    logging.basicConfig(level=logging.WARNING, format="dapl serve: %(message)s")
    listening = _listen(host, port)
    token = token or _token_for(listening)
    hosts = (host, socket.gethostname(), *names)
    app = build_app(*runs, names=hosts, token=token, access_log=requests_log, splits=splits)
    before = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # ends as Ctrl-C does: what was begun is answered
    try:
        what, verb = " and ".join(map(str, folders)), "are" if len(folders) > 1 else "is"
        print(f"{what} {verb} at {_address(host, listening, token)} (Ctrl-C ends it)", flush=True)
        uvicorn.Server(server_config(app)).run(sockets=[listening])
    except KeyboardInterrupt:  # also uvicorn hands on the signal, after it has closed everything
        return
    finally:
        listening.close()
        signal.signal(signal.SIGTERM, before)


def _token_for(listening: socket.socket) -> str | None:
    """None where only this machine can reach it; else a new one, and a warning where every network can."""
    address = ipaddress.ip_address(listening.getsockname()[0])
    if address.is_loopback:
        return None
    if address.is_unspecified:
        print(
            f"dapl serve: {address} is every network of this machine, and the connection is not encrypted; put a proxy "
            "with TLS before it, or reach it through `ssh -L`.",
            file=sys.stderr,
        )
    return secrets.token_urlsafe(24)


def _address(host: str, listening: socket.socket, token: str | None) -> str:
    """What to open in a browser."""
    if ipaddress.ip_address(listening.getsockname()[0]).is_unspecified:
        host = socket.gethostname()
    query = "" if token is None else f"?token={token}"
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/{query}"


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
