"""Lanes: cached or not, by features or by pictures, the numbers are the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.config import Config
from dapl.data.toybirds import ToyBirds
from dapl.errors import DaplError
from dapl.models.contract import PrototypeModel
from dapl.training.features import digest
from dapl.training.lanes import Lanes
from dapl.training.objective import Objective
from dapl.training.sources import FeatureSource, PictureSource, Source, in_order, shuffled

UNCACHED = {"cache.pixels": False, "cache.features": False}


class Counted(nn.Module):
    """A backbone that counts the pictures it is shown."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.pictures = 0

    def forward(self, images: Tensor) -> Tensor:
        self.pictures += len(images)
        return self.backbone(images)


@pytest.fixture
def counted(model: PrototypeModel) -> PrototypeModel:
    model.backbone = Counted(model.backbone)
    return model


def shared(lanes: Lanes, model: PrototypeModel) -> Lanes:
    lanes.shared_backbone = digest(model.backbone)
    return lanes


@torch.no_grad()
def terms(model: PrototypeModel, config: Config, source: Source, seed: int = 3) -> list[dict[str, float]]:
    """Every term of the loss on every batch of a shuffled pass."""
    objective = Objective(model, config.loss)
    negatives = objective.draw_negatives(torch.Generator().manual_seed(0))
    batches = source.batches(shuffled(len(source), 4, seed=1), seed)
    return [{name: value.item() for name, value in objective(batch, negatives).items()} for batch in batches]


ALL_TERMS = {"loss.foreground.weight": 1.0, "loss.spatial.weight": 1.0}


@pytest.mark.parametrize("kind", ["none", "flip"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_both_lanes_give_the_same_losses(
    configured: Callable[..., Config],
    lanes_of: Callable[[Config], Lanes],
    model: PrototypeModel,
    kind: Any,
    on_disk: bool,
) -> None:
    config = configured(ALL_TERMS)
    lanes = lanes_of(config)
    if on_disk:
        shared(lanes, model)
    features, pictures = lanes.source("train", model, kind), lanes.pictures("train", kind)
    assert isinstance(features, FeatureSource)
    assert isinstance(pictures, PictureSource)
    fast, slow = terms(model, config, features), terms(model, config, pictures)
    assert len(fast) == 4
    assert {"foreground", "spatial", "contrast"} < fast[0].keys()
    for quick, thorough in zip(fast, slow, strict=True):
        assert quick == pytest.approx(thorough, rel=1e-4)
    if kind == "flip":
        assert fast != terms(model, config, features, seed=4), "another seed flips other pictures"


def test_without_caches_the_numbers_are_the_same(
    configured: Callable[..., Config], lanes_of: Callable[[Config], Lanes], model: PrototypeModel, tmp_path: Path
) -> None:
    cached, bare = configured(ALL_TERMS), configured(ALL_TERMS | UNCACHED)
    without = lanes_of(bare).source("train", model, "flip")
    assert isinstance(without, PictureSource)
    found = terms(model, bare, without)
    assert not (tmp_path / "cache").exists()
    expected = terms(model, cached, shared(lanes_of(cached), model).source("train", model, "flip"))
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("share", [True, False], ids=["on disk", "in memory"])
def test_the_backbone_sees_each_picture_once(lanes: Lanes, counted: PrototypeModel, share: bool) -> None:
    if share:
        shared(lanes, counted)
    for split in ("train", "validation", "train"):
        source = lanes.source(split, counted)  # type: ignore[arg-type]
        list(source.batches(in_order(len(source), 4)))
    # one more: to learn the size of its features
    assert counted.backbone.pictures == 18 + 1


def test_a_second_run_does_not_call_the_backbone(
    config: Config, lanes_of: Callable[[Config], Lanes], counted: PrototypeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shared(lanes_of(config), counted).source("train", counted, "flip")
    expected = terms(counted, config, first)
    counted.backbone.pictures = 0

    def drawn(self: ToyBirds, index: int) -> None:
        raise AssertionError("a picture is drawn again")

    monkeypatch.setattr(ToyBirds, "__getitem__", drawn)
    second = shared(lanes_of(config), counted).source("train", counted, "flip")
    assert terms(counted, config, second) == expected
    assert counted.backbone.pictures == 0


def test_processes_decide_together_whether_features_are_there(
    lanes: Lanes, counted: PrototypeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may look just before another has written them: if it alone went on, the other would wait for it for ever."""
    shared(lanes, counted).source("train", counted)
    counted.backbone.pictures = 0
    monkeypatch.setattr(Lanes, "_any", lambda self, missing: True)  # some process has not found them
    assert isinstance(lanes.source("train", counted), FeatureSource)
    assert counted.backbone.pictures == 18 + 1


def test_features_of_a_backbone_that_has_learned_are_not_kept_on_disk(
    lanes: Lanes, counted: PrototypeModel, tmp_path: Path
) -> None:
    shared(lanes, counted)
    with torch.no_grad():
        next(counted.backbone.parameters()).mul_(1.5)
    source = lanes.source("train", counted)
    assert isinstance(source, FeatureSource)
    assert not list((tmp_path / "cache").glob("*features*"))
    with torch.no_grad():
        next(counted.backbone.parameters()).mul_(1.5)
    changed = lanes.source("train", counted)
    assert isinstance(changed, FeatureSource)
    assert not torch.equal(changed.features, source.features), "the features of older weights are given out"


def test_features_above_the_limit_are_not_cached(
    configured: Callable[..., Config], lanes_of: Callable[[Config], Lanes], model: PrototypeModel, tmp_path: Path
) -> None:
    config = configured({"cache.limit_gb": 1e-9})
    limited = shared(lanes_of(config), model).source("train", model)
    assert isinstance(limited, PictureSource)
    assert not list((tmp_path / "cache").glob("*features*"))
    unlimited = configured()
    expected = terms(model, unlimited, shared(lanes_of(unlimited), model).source("train", model))
    for one, other in zip(terms(model, config, limited), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_affine_pictures_are_never_cached_features(lanes: Lanes, model: PrototypeModel) -> None:
    assert isinstance(shared(lanes, model).source("train", model, "affine"), PictureSource)


def test_masks_of_pictures_are_those_of_the_data(lanes: Lanes) -> None:
    masks = lanes.pixel_masks("validation", torch.tensor([2, 0]))
    assert masks is not None
    for mask, index in zip(masks, (2, 0), strict=True):
        expected = lanes.dataset("validation")[index].mask
        assert expected is not None
        assert torch.equal(mask, expected.as_subclass(Tensor))


@pytest.mark.parametrize("overrides", [{}, {"cache.pixels": False}], ids=["pixels", "features"])
def test_a_cache_folder_that_cannot_be_written(
    configured: Callable[..., Config],
    lanes_of: Callable[[Config], Lanes],
    model: PrototypeModel,
    tmp_path: Path,
    overrides: dict[str, Any],
) -> None:
    (tmp_path / "file").write_text("not a folder")
    lanes = shared(lanes_of(configured({"cache.folder": str(tmp_path / "file" / "cache")} | overrides)), model)
    with pytest.raises(DaplError, match=r"cache\.folder: .*file/cache cannot be written .*--cache\.folder"):
        lanes.source("train", model)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_cache_folder_without_permission(
    configured: Callable[..., Config], lanes_of: Callable[[Config], Lanes], model: PrototypeModel, tmp_path: Path
) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    lanes = lanes_of(configured({"cache.folder": str(tmp_path / "locked")}))
    with pytest.raises(DaplError, match="cannot be written"):
        lanes.pictures("train")


def test_the_cache_folder_may_name_variables(
    configured: Callable[..., Config],
    lanes_of: Callable[[Config], Lanes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("DAPL_TEST_CACHE", str(tmp_path))
    lanes_of(configured({"cache.folder": "$DAPL_TEST_CACHE/named"})).pictures("validation")
    assert list((tmp_path / "named").glob("*-images.npy"))
    with pytest.raises(DaplError, match=r"cache\.folder: the environment variable DAPL_NOT_SET is not set"):
        lanes_of(configured({"cache.folder": "$DAPL_NOT_SET/cache"}))


def test_evaluation_of_a_batch_is_the_same_in_any_company(lanes: Lanes, model: PrototypeModel, fabric: Fabric) -> None:
    """What lets a stage on pictures and one on features, whose batches were cut differently, be compared at all."""
    source = lanes.pictures("train")
    with torch.no_grad():
        alone, together = (
            torch.cat([model(batch.images).scores for batch in source.batches(in_order(15, size))]) for size in (1, 15)
        )
    assert_close(alone, together, rtol=1e-4, atol=1e-5)
