"""What the tests of sweeps share: a tiny config as a file, runs of a second or two, one thread."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

TINY: dict[str, Any] = {
    "data": {"name": "toybirds", "classes": 2, "images_per_class": 8, "test_images_per_class": 2, "image_size": 64},
    "model": {
        "backbone": {"name": "test_efficientnet", "stages": [-2], "weights": "random"},
        "heads": 2,
        "head_dim": 4,
    },
    "schedule": [
        {"stage": "warm_up", "epochs": 1, "batch_size": 16},
        {"stage": "project"},
        {"stage": "last_layer", "epochs": 1},
    ],
    "runtime": {"accelerator": "cpu", "workers": 0},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def write(tmp_path: Path, cache: Path) -> Callable[..., Path]:
    """``write({"data": {…}})``: the tiny config with some sections replaced, as a file."""

    def written(sections: dict[str, Any] | None = None) -> Path:
        path = tmp_path / "tiny.yaml"
        fields = copy.deepcopy(TINY) | {"cache": {"folder": str(cache)}} | (sections or {})
        path.write_text(yaml.safe_dump(fields))
        return path

    return written
