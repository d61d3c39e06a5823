"""What the tests of training share: tiny configs, a model that is nothing but prototypes, one process on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dapl.batches.run_data import RunData
from dapl.common.progress import Reporter
from dapl.config import Config, load_config
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.models.prototypes import Prototypes
from dapl.processes.interface import Processes
from dapl.processes.launch import make_processes

TINY: dict[str, Any] = {
    "data": {"name": "toybirds", "classes": 3, "images_per_class": 6, "test_images_per_class": 2, "image_size": 64},
    # timm's smallest network; its last stage but one leaves 4×4 cells of 64×64 pixels
    "model": {
        "backbone": {"name": "test_efficientnet", "stages": [-2], "weights": "random"},
        "heads": 2,
        "head_dim": 4,
    },
    "runtime": {"accelerator": "cpu", "workers": 0, "evaluation_batch": 4},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, and beside other processes the threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Config]:
    """``configured({"data.classes": 4})``: the tiny config with dotted overrides, its caches in the test's folder."""

    def make(overrides: dict[str, Any] | None = None) -> Config:
        fields = copy.deepcopy(TINY) | {"cache.folder": str(tmp_path / "cache")}
        return load_config(None, fields | copy.deepcopy(overrides or {}))

    return make


@pytest.fixture
def config(configured: Callable[..., Config]) -> Config:
    return configured()


@pytest.fixture
def processes(config: Config) -> Processes:
    return make_processes(config)


@pytest.fixture
def lanes_of(processes: Processes) -> Callable[[Config], RunData]:
    return lambda config: RunData(config, processes, Reporter(quiet=True))


@pytest.fixture
def run_data(lanes_of: Callable[[Config], RunData], config: Config) -> RunData:
    return lanes_of(config)


@pytest.fixture
def model(config: Config) -> PrototypeModel:
    """With attention that tells places apart, as it does only after training, in evaluation mode."""
    made: Any = build_model(config.model, config.data.classes, seed=3).eval()  # type: ignore[union-attr]
    with torch.no_grad():
        made.attention.query.weight.mul_(20)
        made.attention.key.weight.mul_(20)
    return made


class Patches(PrototypeModel):
    """Features *are* the embedding, so that a test can say where each patch lies. All weights of classes are 1."""

    def __init__(self, classes: int, groups: int, width: int) -> None:
        super().__init__()
        self.backbone = nn.Identity()
        membership = torch.eye(classes, dtype=torch.bool).repeat_interleave(groups, dim=0)
        self.prototypes = Prototypes(membership, groups, width)

    def embed(self, features: Tensor) -> Tensor:
        return features.unflatten(1, (self.prototypes.groups, -1))

    def classify(self, scores: Tensor) -> Tensor:
        return scores @ self.class_weights()

    def class_weights(self) -> Tensor:
        return (self.prototypes.membership & self.prototypes.kept.unsqueeze(1)).float()

    def components(self) -> dict[str, nn.Module]:
        return {"backbone": self.backbone, "prototypes": self.prototypes}


@pytest.fixture
def patches() -> Callable[[int, int, int], Patches]:
    """``patches(classes, groups, width)``."""
    return Patches
