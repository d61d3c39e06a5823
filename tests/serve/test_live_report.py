"""The report that the live page makes beside everything else: it ends as made or as failed, whatever happens."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

import pytest

from dapl.runs.loading import load_run
from dapl.serve import state
from dapl.serve.state import LiveReport


def ended(report: LiveReport) -> str:
    deadline = time.monotonic() + 120
    while report.state() == "being made":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return report.state()


def test_a_run_that_is_gone_is_a_sentence_in_the_log(dapl_run: Path, tmp_path: Path, caplog) -> None:
    shutil.copytree(dapl_run, tmp_path / "run")
    report = LiveReport(load_run(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")
    with caplog.at_level(logging.ERROR, "dapl.serve"):
        assert ended(report) == "failed"
    (record,) = caplog.records
    assert "the report could not be made: " in record.getMessage()
    assert "not a run directory" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_does_not_leave_the_page_waiting(dapl_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "collect", lambda *arguments, **options: 1 / 0)
    assert ended(LiveReport(load_run(dapl_run))) == "failed"
