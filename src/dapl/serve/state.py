"""What the routes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from dapl.api import Classifier
from dapl.loading import LoadedRun
from dapl.marks import Marks
from dapl.serve.answers import Problem
from dapl.serve.capacity import Worker
from dapl.serve.examples import Examples
from dapl.serve.inspector import Inspector
from dapl.serve.live_report import LiveReport


@dataclass(frozen=True)
class State:
    loaded: LoadedRun
    classifier: Classifier
    inspector: Inspector
    examples: Examples
    marks: Marks
    worker: Worker
    report: LiveReport


def _state(request: Request) -> State:
    return request.app.state.dapl


Shared = Annotated[State, Depends(_state)]
"""Type of a route's parameter that takes the state."""


def problems(*statuses: int) -> dict[int | str, dict]:
    """For the schema: the errors that a route can answer with."""
    return {status: {"model": Problem} for status in statuses}


PICTURE_HEADERS = {"Cache-Control": "private, max-age=3600"}
