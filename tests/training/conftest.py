"""What the tests of training share: a model that is nothing but prototypes, runs that are compared and killed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.transforms import fit
from dapl.models.contract import Embedding, PrototypeModel
from dapl.models.prototypes import Prototypes
from dapl.runs.checkpoint import load_checkpoint
from dapl.runs.loading import load_run
from dapl.runs.run import Run
from dapl.training.trainer import train

UP_AND_DOWN: dict[str, Any] = {
    # a rate that is far too high, and no checkpoint within an epoch
    "seed": 3,
    "schedule": [
        {
            "stage": "warm_up",
            "epochs": 4,
            "batch_size": 5,
            "learning_rates": {"addon": 0.1, "attention": 0.1, "prototypes": 0.1},
        }
    ],
}


PROTOPNET: dict[str, Any] = {
    "system": "protopnet",
    "backbone": {"name": "test_efficientnet", "stages": [-2], "weights": "random"},
    "prototypes_per_class": 3,
    "width": 8,
}


def responses_of(run: Run) -> Tensor:
    """Distances of every training image to every prototype, one image at a time."""
    loaded = load_run(run.folder)
    training = build_splits(loaded.config.data).train
    images = (fit(training[index], 64).image.as_subclass(Tensor) for index in range(len(training)))
    return torch.cat([loaded.model(image.unsqueeze(0)).distances for image in images])


class Patches(PrototypeModel):
    """Features *are* the embedding, so that a test can say where each patch lies. All weights of classes are 1."""

    def __init__(self, classes: int, groups: int, width: int) -> None:
        super().__init__()
        self.backbone = nn.Identity()
        membership = torch.eye(classes, dtype=torch.bool).repeat_interleave(groups, dim=0)
        self.prototypes = Prototypes(membership, groups, width)

    def embed(self, features: Tensor) -> Embedding:
        return Embedding(features.unflatten(1, (self.prototypes.groups, -1)))

    def class_weights(self) -> Tensor:
        return (self.prototypes.membership & self.prototypes.kept.unsqueeze(1)).float()


@pytest.fixture
def patches() -> Callable[[int, int, int], Patches]:
    """``patches(classes, groups, width)``."""
    return Patches


def lines_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


def without_clock(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "images_per_second")} for line in lines]


def assert_same_run(found: Run, expected: Run) -> None:
    """Every tensor bit for bit, and all that is said of them."""
    for name in ("last", "best"):
        one, other = load_checkpoint(getattr(found, name)), load_checkpoint(getattr(expected, name))
        assert one.position == other.position
        assert one.facts == other.facts
        for part in ("model", "optimizer"):
            tensors, wanted = getattr(one, part), getattr(other, part)
            assert tensors.keys() == wanted.keys()
            for key, tensor in tensors.items():
                assert torch.equal(tensor, wanted[key]), f"{name}: {part} {key}"
    assert without_clock(lines_of(found)) == without_clock(lines_of(expected))
    assert found.prototypes_file.read_bytes() == expected.prototypes_file.read_bytes()


class Killed(BaseException):
    """Not an Exception: nothing may catch it on its way out."""


def train_and_copy(config: Config, out: Path) -> tuple[Run, list[Run]]:
    """A whole run, and copies of it as a kill would have left it before each of its writes.

    The first two writes are config.yaml and environment.json: before them there is no run.
    """
    whole, copies = Run(out), list[Run]()
    replace, log = os.replace, Run.log

    def copy() -> None:
        copies.append(Run(out.with_name(f"{out.name} before {len(copies)}")))
        shutil.copytree(out, copies[-1].folder)

    def replaced(source: Any, target: Any) -> None:
        if out in Path(target).parents:
            copy()
        replace(source, target)

    def logged(self: Run, entry: dict[str, Any]) -> None:
        copy()
        log(self, entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replaced)
        patch.setattr(Run, "log", logged)
        train(config, out, quiet=True)
    return whole, copies[2:]
