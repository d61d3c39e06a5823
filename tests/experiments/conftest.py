"""What the tests of experiments share: tiny configs on drawn birds, and a comparison that is trained once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dapl.cli import main
from dapl.config import Config, parse_config

from ..conftest import BACKBONE, TINY

SMALL = TINY | {
    "data": TINY["data"] | {"classes": 2, "images_per_class": 8},
    "schedule": [{"stage": "warm_up", "epochs": 1}, {"stage": "project"}, {"stage": "last_layer", "epochs": 1}],
}
PROTOPNET = {"backbone": BACKBONE, "prototypes_per_class": 3, "width": 8}
COMPARED: dict[str, dict[str, Any]] = {
    "share": {
        "model": {"system": "protopshare", **PROTOPNET},
        "start": "net",
        "schedule": [{"stage": "merge", "steps": 2, "epochs": 1, "share": 0.2}],
    },
    "net": {"model": {"system": "protopnet", **PROTOPNET}},
    "ours": {"model": {"system": "dapl", "backbone": BACKBONE, "heads": 3, "head_dim": 4}},
    "box": {
        "model": {"system": "blackbox", "backbone": BACKBONE},
        "schedule": [{"stage": "warm_up", "epochs": 1, "learning_rates": {"classifier": 0.01}}],
    },
}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def tiny(cache: Path) -> Callable[..., Config]:
    """``tiny(seed=3)``: the tiny config with some sections replaced."""
    return lambda **sections: parse_config(copy.deepcopy(SMALL) | {"cache": {"folder": str(cache)}} | sections)


@pytest.fixture
def write(tmp_path: Path, cache: Path) -> Callable[..., Path]:
    """``write({"data": {…}})``: the same as a file."""

    def written(sections: dict[str, Any] | None = None) -> Path:
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(SMALL | {"cache": {"folder": str(cache)}} | (sections or {})))
        return path

    return written


@pytest.fixture(scope="session")
def configs() -> Callable[[Path], list[Path]]:
    """Writes the configs of `COMPARED` to a folder, with a cache of their own."""

    def written(folder: Path) -> list[Path]:
        data = TINY["data"] | {"images_per_class": 5, "test_images_per_class": 3}
        shared = SMALL | {"data": data, "cache": {"folder": str(folder / "cache")}}
        for name, sections in COMPARED.items():
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(shared | sections))
        return [folder / f"{name}.yaml" for name in COMPARED]

    return written


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory, configs: Callable[[Path], list[Path]]) -> Path:
    """The folder of a comparison over seeds 0 and 1; its configs lie beside it."""
    folder = tmp_path_factory.mktemp("compared")
    assert main(["compare", *map(str, configs(folder)), "--seeds", "0,1", "--out", str(folder / "out")]) == 0
    return folder / "out"
