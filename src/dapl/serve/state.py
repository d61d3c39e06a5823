"""What the routes share, and the report of the run, which is made when it is first asked for."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request

from dapl.common.errors import DaplError
from dapl.data.sample import Splits
from dapl.explain.classifier import Classifier
from dapl.explain.draw import templates
from dapl.report.collect import Report, collect
from dapl.report.page import Linked, render
from dapl.runs.loading import LoadedRun
from dapl.runs.marks import Marks
from dapl.serve.answers import Problem
from dapl.serve.inspector import Examples, Inspector
from dapl.serve.requests import ModelThread

POLICY = f"{Linked().policy()}; connect-src 'self'"
log = logging.getLogger("dapl.serve")


class LiveReport:
    """It takes a pass over the test images, so it is made beside everything else, once."""

    def __init__(self, loaded: LoadedRun, prefix: str = "", splits: Splits | None = None) -> None:
        self.loaded, self._splits = loaded, splits
        self.assets = Linked(f"{prefix}/report/images/", f"{prefix}/report/static/", base=prefix)
        self.report: Report | None = None
        self._state: Literal["not asked for", "being made", "made", "failed"] = "not asked for"
        self._lock = threading.Lock()

    def state(self) -> str:
        """Asking starts it."""
        with self._lock:
            if self._state == "not asked for":
                self._state = "being made"
                threading.Thread(target=self._make, name="report", daemon=True).start()
            return self._state

    def html(self) -> str:
        """Only once it is made."""
        assert self.report is not None
        template = templates("dapl.serve", "dapl.report", "dapl.explain").get_template("live_report.html.j2")
        return render(self.report.data, self.assets, template, POLICY)

    def _make(self) -> None:
        try:
            self.report = collect(self.loaded.run.folder, self.loaded.config, splits=self._splits, quiet=True)
        except (DaplError, OSError, MemoryError) as error:
            log.error("the report could not be made: %s", error)
        finally:  # also where it is a mistake of ours, whose traceback goes to the log: the page must not wait for ever
            with self._lock:
                self._state = "failed" if self.report is None else "made"


@dataclass(frozen=True)
class State:
    loaded: LoadedRun
    classifier: Classifier
    inspector: Inspector
    examples: Examples
    marks: Marks
    worker: ModelThread
    report: LiveReport
    prefix: str = ""
    """What all addresses of the run begin with, where several runs are served."""


def _state(request: Request) -> State:
    return request.app.state.dapl


Shared = Annotated[State, Depends(_state)]
"""Type of a route's parameter that takes the state."""


def problems(*statuses: int) -> dict[int | str, dict]:
    """For the schema: the errors that a route can answer with."""
    return {status: {"model": Problem} for status in statuses}


IMAGE_HEADERS = {"Cache-Control": "private, max-age=3600"}
