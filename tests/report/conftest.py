"""Reports of the tiny runs, each made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dapl.report.collect import Report, collect

CLASSES, TEST_IMAGES = 3, 5


@pytest.fixture(scope="session")
def reported(evaluated: Callable[[str], Path]) -> Callable[[str], tuple[Path, Report]]:
    """``reported("dapl")``: folder of the run, evaluated, and its report."""

    @cache
    def report_of(system: str) -> tuple[Path, Report]:
        return evaluated(system), collect(evaluated(system), quiet=True)

    return report_of


@pytest.fixture
def run(reported: Callable[[str], tuple[Path, Report]], tmp_path: Path) -> Path:
    """A copy of DAPL's run with its numbers and the sums of its report."""
    return Path(shutil.copytree(reported("dapl")[0], tmp_path / "run"))
