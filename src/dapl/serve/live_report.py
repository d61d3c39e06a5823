"""The report of the run, made when it is first asked for; what is marked can be marked there too."""

from __future__ import annotations

import logging
import threading
from functools import cache
from typing import Literal

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from dapl.loading import LoadedRun
from dapl.report.collect import Report, collect
from dapl.report.page import Linked, environment

_ASSETS = Linked(images="/report/images/", static="/report/static/")
POLICY = f"{_ASSETS.policy()}; connect-src 'self'"
log = logging.getLogger("dapl.serve")


class LiveReport:
    """It takes a pass over the test pictures, so it is made beside everything else, once."""

    def __init__(self, loaded: LoadedRun) -> None:
        self.loaded = loaded
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
        template = _environment().get_template("live_report.html.j2")
        return template.render(
            report=self.report.data, assets=_ASSETS, policy=POLICY, style=Markup(""), script=Markup(""), blobs={}
        )  # fmt: skip

    def _make(self) -> None:
        try:
            self.report = collect(self.loaded.run.folder, config=self.loaded.config, quiet=True)
            made = True
        except Exception:  # whatever it is, the page says that there is none and the log says why
            log.exception("the report could not be made")
            made = False
        with self._lock:
            self._state = "made" if made else "failed"


@cache
def _environment() -> Environment:
    return environment().overlay(loader=ChoiceLoader([PackageLoader("dapl.serve"), PackageLoader("dapl.report")]))
