"""A tiny run on drawn birds, trained once for all tests of the evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dapl.config import Config, parse_config
from dapl.evaluation import Evaluation, evaluate
from dapl.training.trainer import train

SIZE = 64


def tiny_config(cache: Path) -> Config:
    return parse_config(
        {
            "data": {
                "name": "toybirds",
                "classes": 3,
                "images_per_class": 6,
                "test_images_per_class": 6,
                "image_size": SIZE,
            },
            "model": {
                "backbone": {"name": "mobilenetv2_100", "weights": "random", "stages": [-2]},
                "heads": 4,
                "head_dim": 8,
            },
            "schedule": [
                {"stage": "warm_up", "epochs": 2, "batch_size": 16},
                {"stage": "project"},
                {"stage": "last_layer", "epochs": 2},
            ],
            "cache": {"folder": str(cache)},
            "runtime": {"accelerator": "cpu", "evaluation_batch": 7, "workers": 0},
        }
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run; leave it as it is."""
    folder = tmp_path_factory.mktemp("evaluation")
    return train(tiny_config(folder / "cache"), folder / "run", quiet=True).folder


@pytest.fixture(scope="session")
def evaluated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Evaluation]:
    """A copy of the run with everything that `evaluate` writes, and what it returned."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(trained, folder)
    return folder, evaluate(folder, quiet=True)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run of one's own."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"
