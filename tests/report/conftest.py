"""A tiny run of every registered system on drawn birds, each trained once, and its report."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dapl.config import load_config
from dapl.report.collect import Report, collect
from dapl.training.trainer import train

SIZE, CLASSES, TEST_IMAGES = 64, 3, 5
TINY: dict[str, Any] = {
    "data": {
        "name": "toybirds",
        "classes": CLASSES,
        "images_per_class": 6,
        "test_images_per_class": TEST_IMAGES,
        "image_size": SIZE,
    },
    "model": {"backbone": {"name": "test_efficientnet", "stages": [-2], "weights": "random"}},
    "runtime": {"accelerator": "cpu", "workers": 0, "evaluation_batch": 4},
}
_WARM_UP = {"stage": "warm_up", "epochs": 2, "batch_size": 8}
_LAST_LAYER = {"stage": "last_layer", "epochs": 2}
SYSTEMS: dict[str, dict[str, Any]] = {
    "dapl": {
        "model.heads": 3,
        "model.head_dim": 4,
        "schedule": [_WARM_UP, {"stage": "project"}, _LAST_LAYER],
    },
    "protopnet": {
        "model.prototypes_per_class": 3,
        "model.width": 8,
        "schedule": [_WARM_UP, {"stage": "project"}, {"stage": "prune", "threshold": 1.0}, _LAST_LAYER],
    },
    "protopshare": {
        "model.prototypes_per_class": 3,
        "model.width": 8,
        "schedule": [_WARM_UP, {"stage": "project"}, {"stage": "merge", "steps": 3, "share": 0.4, "epochs": 1}],
    },
    "pixpnet": {
        "model.prototypes_per_class": 3,
        "model.width": 8,
        "loss.cluster": 0.0,
        "loss.separation": 0.0,
        "schedule": [_WARM_UP, {"stage": "project"}],
    },
    "blackbox": {"schedule": [_WARM_UP | {"learning_rates": {"classifier": 0.01}}]},
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``trained("dapl")``: folder of the run; copy it before you change it."""
    made: dict[str, Path] = {}

    def run_of(system: str) -> Path:
        if system not in made:
            folder = tmp_path_factory.mktemp(f"report-{system}")
            fields = copy.deepcopy(TINY) | {"model.system": system, "cache.folder": str(folder / "cache")}
            made[system] = train(load_config(None, fields | SYSTEMS[system]), folder / "run", quiet=True).folder
        return made[system]

    return run_of


@pytest.fixture(scope="session")
def reported(trained: Callable[[str], Path]) -> Callable[[str], tuple[Path, Report]]:
    """``reported("dapl")``: folder of the run, evaluated, and its report."""
    made: dict[str, tuple[Path, Report]] = {}

    def report_of(system: str) -> tuple[Path, Report]:
        if system not in made:
            folder = trained(system)
            made[system] = folder, collect(folder, quiet=True)
        return made[system]

    return report_of


@pytest.fixture
def run(reported: Callable[[str], tuple[Path, Report]], tmp_path: Path) -> Path:
    """A copy of DAPL's run, evaluated, of one's own."""
    shutil.copytree(reported("dapl")[0], tmp_path / "run")
    return tmp_path / "run"


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
