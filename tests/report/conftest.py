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
def reported(
    evaluated: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Report]]:
    """``reported("dapl")``: folder of the run, evaluated, and its report, which keeps its sums in the run."""

    @cache
    def report_of(system: str) -> tuple[Path, Report]:
        run = Path(shutil.copytree(evaluated(system), tmp_path_factory.mktemp("reported") / "run"))
        return run, collect(run, quiet=True)

    return report_of


@pytest.fixture
def run(reported: Callable[[str], tuple[Path, Report]], tmp_path: Path) -> Path:
    """A copy of DAPL's run with its numbers and the sums of its report."""
    return Path(shutil.copytree(reported("dapl")[0], tmp_path / "run"))
