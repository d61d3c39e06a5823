"""A tiny run on drawn birds, trained once for all tests of explanations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from dapl import load
from dapl.config import Config, parse_config
from dapl.data.build import build_splits
from dapl.explain.classifier import Classifier
from dapl.explain.draw import to_pil
from dapl.training.trainer import train


def tiny_config(cache: Path) -> Config:
    return parse_config(
        {
            "data": {
                "name": "toybirds",
                "classes": 3,
                "images_per_class": 6,
                "test_images_per_class": 2,
                "image_size": 64,
            },
            "model": {
                "backbone": {"name": "test_efficientnet", "weights": "random", "stages": [-2]},
                "heads": 4,
                "head_dim": 8,
            },
            "schedule": [
                {"stage": "warm_up", "epochs": 1, "batch_size": 16},
                {"stage": "project"},
                {"stage": "last_layer", "epochs": 1},
            ],
            "cache": {"folder": str(cache)},
            "runtime": {"accelerator": "cpu", "evaluation_batch": 16, "workers": 0},
        }
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run; leave it as it is."""
    folder = tmp_path_factory.mktemp("explain")
    return train(tiny_config(folder / "cache"), folder / "run", quiet=True).folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run of one's own."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="session")
def classifier(trained: Path) -> Classifier:
    return load(trained)


@pytest.fixture(scope="session")
def bird(trained: Path, tmp_path_factory: pytest.TempPathFactory, classifier: Classifier) -> Path:
    """A test image as a file."""
    assert classifier.data is not None
    test = build_splits(classifier.data).test
    path = tmp_path_factory.mktemp("images") / "bird.png"
    image: Image.Image = to_pil(test[3].image)
    image.save(path)
    return path
