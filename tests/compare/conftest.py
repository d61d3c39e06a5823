"""A tiny comparison, trained once: three systems and a black box on toy birds, two seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dapl.cli import main

BACKBONE = {"name": "test_efficientnet", "stages": [-2], "weights": "random"}
DATA = {"name": "toybirds", "classes": 3, "images_per_class": 5, "test_images_per_class": 3, "image_size": 64}
HEAD = [{"stage": "warm_up", "epochs": 1}, {"stage": "project"}, {"stage": "last_layer", "epochs": 2}]
CONFIGS: dict[str, dict[str, Any]] = {
    "share": {
        "model": {"system": "protopshare", "backbone": BACKBONE, "prototypes_per_class": 3, "width": 8},
        "start": "net",
        "schedule": [{"stage": "merge", "steps": 2, "epochs": 1, "share": 0.2}],
    },
    "net": {
        "model": {"system": "protopnet", "backbone": BACKBONE, "prototypes_per_class": 3, "width": 8},
        "schedule": HEAD,
    },
    "ours": {"model": {"system": "dapl", "backbone": BACKBONE, "heads": 3, "head_dim": 4}, "schedule": HEAD},
    "box": {
        "model": {"system": "blackbox", "backbone": BACKBONE},
        "schedule": [{"stage": "warm_up", "epochs": 1, "learning_rates": {"classifier": 0.01}}],
    },
}


def write_configs(folder: Path, cache: Path, **changes: dict[str, Any]) -> list[Path]:
    """The configs as files, in the order of `CONFIGS`; ``changes`` replace sections of all of them."""
    fixed = {"data": DATA, "cache": {"folder": str(cache)}, "runtime": {"accelerator": "cpu", "workers": 0}}
    files = []
    for name, sections in CONFIGS.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**fixed, **sections, **changes}))
        files.append(path)
    return files


@pytest.fixture(scope="session")
def configs() -> Callable[[Path, Path], list[Path]]:
    return write_configs


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """(the configs, the folder of the comparison)."""
    folder = tmp_path_factory.mktemp("compared")
    files = write_configs(folder, folder / "cache")
    assert main(["compare", *map(str, files), "--seeds", "0,1", "--out", str(folder / "out")]) == 0
    return files, folder / "out"
