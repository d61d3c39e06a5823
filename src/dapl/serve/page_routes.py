"""The pages: ask the model, and its report."""

from __future__ import annotations

import mimetypes
from functools import cache

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from dapl.report.page import static_files
from dapl.serve.facts_routes import run
from dapl.serve.live_report import POLICY
from dapl.serve.refusal import Refusal
from dapl.serve.state import PICTURE_HEADERS, Shared

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def ask(state: Shared) -> str:
    return _environment().get_template("serve.html.j2").render(run=run(state))


@router.get("/report")
def report(state: Shared) -> HTMLResponse:
    found = state.report.state()
    if found != "made":
        name = state.loaded.run.folder.resolve().name
        return HTMLResponse(_environment().get_template("waiting.html.j2").render(name=name, state=found))
    policy = {"Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'"}
    return HTMLResponse(state.report.html(), headers=policy)


@router.get("/report/images/{name}")
def report_image(state: Shared, name: str) -> Response:
    """Looked up among what was made, never on disk."""
    images = {} if state.report.report is None else state.report.report.images
    return _file(images.get(name), name, PICTURE_HEADERS)


@router.get("/report/static/{name}")
def report_static(name: str) -> Response:
    return _file(static_files().get(name), name, {})


def _file(content: bytes | None, name: str, headers: dict[str, str]) -> Response:
    if content is None:
        raise Refusal(404, "There is nothing at this address.")
    return Response(content, media_type=mimetypes.guess_type(name)[0], headers=headers)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dapl.serve"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
