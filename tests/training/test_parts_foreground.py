"""Foreground from the features: a planted object is found, whatever the sign; runs on data without masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.sample import Dataset, Sample, Splits
from dapl.models.parts import Parts
from dapl.runs.loading import load_run
from dapl.training.parts import feature_foreground, first_component
from dapl.training.trainer import train

from ..conftest import TINY_RUN, TINY_SYSTEMS


def planted(channels: int, side: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features 12×D×side×side of images with an object at another place inside of each, and where it is."""
    generator = torch.Generator().manual_seed(seed)
    background, its_own = torch.randn(2, channels, generator=torch.Generator().manual_seed(channels))
    where = torch.zeros(12, side, side, dtype=torch.bool)
    for number, one in enumerate(where):
        cell = side // 6
        y, x = (cell * (1 + number % 3), cell * (1 + number // 3 % 3))
        one[y : y + 2 * cell, x : x + 2 * cell] = True
    features = torch.where(where.unsqueeze(1), its_own[:, None, None], background[:, None, None])
    return features + 0.3 * torch.randn(features.shape, generator=generator), where


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_object_is_found(seed: int) -> None:
    """With both stages together, in images that the components were not taken from."""
    fine, coarse = planted(8 + seed, 12, seed)[0], planted(16 + seed, 6, seed)[0]
    foreground = feature_foreground([(fine[:6], coarse[:6]), (fine[6:], coarse[6:])])
    (fine, where), (coarse, _) = planted(8 + seed, 12, seed + 10), planted(16 + seed, 6, seed + 10)
    found = foreground((fine, coarse))
    assert found.shape == where.shape
    assert found[where].mean() > 0.8
    assert found[~where].mean() < 0.2


def test_the_component_is_the_first_of_the_covariance() -> None:
    maps = torch.randn(5, 7, 4, 4, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 8)[:, None, None]
    found = first_component([maps[:2], maps[2:]])
    places = maps.movedim(1, -1).flatten(0, 2)
    _, deviations, directions = torch.linalg.svd(places - places.mean(0), full_matrices=False)
    expected = directions[0] * len(places) ** 0.5 / deviations[0]
    torch.testing.assert_close(found.direction.abs(), expected.abs(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.mean, places.mean(0))
    coordinates = ((maps - found.mean[:, None, None]) * found.direction[:, None, None]).sum(1)
    assert coordinates.std().item() == pytest.approx(1, abs=0.02)
    assert coordinates[:, 1:-1, 1:-1].mean() > coordinates.mean()  # the border is background


class WithoutMasks:
    """A data set that keeps its masks to itself."""

    has_masks = False

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        return replace(self.dataset[index], mask=None)


def test_parts_are_trained_without_masks(
    configured: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = TINY_RUN | TINY_SYSTEMS["parts"] | {"model.system": "parts", "model.evidence": "map"}
    drawn = build_splits(configured(fields).data)
    bare = Splits(*(WithoutMasks(one) for one in (drawn.train, drawn.validation, drawn.test)))  # type: ignore[arg-type]
    config = configured(fields | {"data": {"name": "given", "image_size": 64}})
    run = train(config, tmp_path / "run", splits=bare)
    assert "the object is told by the features: the data has no masks" in capsys.readouterr().err
    first = next(line for line in run.logged() if line["event"] == "epoch")
    assert first["train"]["foreground"] > 0
    assert isinstance(load_run(run.folder).model, Parts)
    with pytest.raises(DaplError, match="foreground_from: the data has no foreground masks; set it to features"):
        train(
            configured(fields | {"data": {"name": "given", "image_size": 64}, "loss.locate.foreground_from": "masks"}),
            tmp_path / "refused",
            quiet=True,
            splits=bare,
        )
