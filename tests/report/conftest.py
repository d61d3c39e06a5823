"""Reports of the tiny runs, each made once."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

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


def repeated(report: Report, times: int) -> Report:
    """The same report with ``times`` as many classes, each with sheets of its own."""
    data, images = copy.deepcopy(report.data), {}
    count = len(data["classes"])
    classes: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for turn in range(times):
        for label, one in enumerate(copy.deepcopy(report.data["classes"])):
            one["name"] = f"{one['name']} {turn}"
            for kind in ("photos", "heat"):
                old = one[kind]["file"]
                one[kind]["file"] = f"{turn * count + label:03d}-{old.split('-')[1]}"
                images[one[kind]["file"]] = report.images[old]
            classes.append(one)
        for entry in copy.deepcopy(report.data["prototypes"]):
            entry["class"] += turn * count
            entry["classes"] = [label + turn * count for label in entry["classes"]]
            entry["prototype"] += turn * len(report.data["prototypes"])
            entries.append(entry)
    data |= {"classes": classes, "prototypes": entries, "offenders": {name: [] for name in data["offenders"]}}
    data["counts"] = {"prototypes": len(entries), "kept": len(entries)}
    return Report(data, images)
