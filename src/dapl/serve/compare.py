"""Two runs or more in the browser: the same image, the reasons of each side by side."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from dapl.explain.draw import templates
from dapl.serve.routes import run
from dapl.serve.state import State

compare_router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@compare_router.get("/")
def compare(request: Request) -> str:
    states: list[State] = request.app.state.runs
    shown = [{"base": state.prefix, "facts": run(state)} for state in states]
    return templates("dapl.serve").get_template("compare.html.j2").render(runs=shown, same=_same_images(states))


def _same_images(states: list[State]) -> bool:
    """Whether the number of an example means the same image in every run, so that annotations can be used in each."""
    names = [None if state.examples.dataset is None else list(state.examples.dataset.names) for state in states]
    return names[0] is not None and all(own == names[0] for own in names)
