"""A tiny run of every registered system on drawn birds, trained once for all tests of the export."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dapl.config import Config, parse_config
from dapl.evaluation import evaluate
from dapl.export.export import export_run
from dapl.models.build import SYSTEMS
from dapl.training.trainer import train

SIZE, CLASSES = 64, 3
SMALL: dict[str, dict[str, Any]] = {
    "dapl": {"heads": 2, "head_dim": 4},
    "protopnet": {"prototypes_per_class": 2, "width": 8},
    "protopshare": {"prototypes_per_class": 2, "width": 8},
    "pixpnet": {"prototypes_per_class": 2, "width": 8},
}
"""Fields that make a system small; one without an entry is built with its defaults."""


def tiny_config(system: str, cache_folder: Path) -> Config:
    backbone = {"name": "test_efficientnet", "stages": [-2], "weights": "random"}
    fit: dict[str, Any] = {"stage": "warm_up", "epochs": 2, "batch_size": 8}
    if system == "blackbox":
        fit["learning_rates"] = {"classifier": 1e-3}
    after = [] if system == "blackbox" else [{"stage": "project"}]
    if system in ("dapl", "protopnet", "protopshare"):
        after.append({"stage": "last_layer", "epochs": 2})
    return parse_config(
        {
            "data": {
                "name": "toybirds",
                "classes": CLASSES,
                "images_per_class": 6,
                "test_images_per_class": 4,
                "image_size": SIZE,
            },
            "model": {"system": system, "backbone": backbone, **SMALL.get(system, {})},
            "schedule": [fit, *after],
            "cache": {"folder": str(cache_folder)},
            "runtime": {"accelerator": "cpu", "evaluation_batch": 8, "workers": 0},
        }
    )


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``run_of("dapl")``: the folder of a trained and measured run; leave it as it is."""
    root = tmp_path_factory.mktemp("export")

    @cache
    def make(system: str) -> Path:
        folder = root / system
        train(tiny_config(system, root / "cache"), folder, quiet=True)
        evaluate(folder, metrics="accuracy" if system == "blackbox" else "accuracy,coverage", quiet=True)
        return folder

    return make


@pytest.fixture(scope="session")
def export_of(run_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """``export_of("dapl", "hub")``: the folder in that format; leave it as it is."""
    root = tmp_path_factory.mktemp("exported")

    @cache
    def make(system: str, formats: str) -> Path:
        return export_run(run_of(system), root / formats / system, formats.split(","), quiet=True).folder

    return make


@pytest.fixture(params=sorted(SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run(system: str, run_of: Callable[[str], Path]) -> Path:
    """Of every system in turn; leave it as it is."""
    return run_of(system)


@pytest.fixture
def exported(system: str, export_of: Callable[[str, str], Path]) -> Path:
    """In hub format."""
    return export_of(system, "hub")


@pytest.fixture
def onnx_model(system: str, export_of: Callable[[str, str], Path]) -> Path:
    """The file."""
    return export_of(system, "onnx") / "model.onnx"


@pytest.fixture
def own_export(export_of: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """A copy of DAPL's hub format of one's own."""
    shutil.copytree(export_of("dapl", "hub"), tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture
def own_run(run_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of DAPL's run of one's own."""
    shutil.copytree(run_of("dapl"), tmp_path / "run")
    return tmp_path / "run"
