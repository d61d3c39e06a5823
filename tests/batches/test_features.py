"""Cached features: what a frozen backbone gives, once, under a name that changes with whatever changes them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.batches.features import compute_features, digest, features_key, open_features, write_features
from dapl.batches.run_data import RunData
from dapl.batches.sources import Features, FeatureSource, in_order
from dapl.common.errors import DaplError
from dapl.config import BackboneConfig, Config
from dapl.models.backbone import Backbone
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes

from ..conftest import TINY_RUN, TINY_SYSTEMS


@torch.no_grad()
def test_each_view_is_the_backbone_on_that_image(
    model: PrototypeModel, run_data: RunData, processes: Processes
) -> None:
    source = run_data.images("train")
    counted: list[int] = []
    features = compute_features(model.backbone, source, 2, 4, processes, counted.append)
    assert sum(counted) == 15
    assert features.values.shape[:2] == (15, 2)
    assert features.masks is not None
    for index in range(15):
        image, mask = source[index, 0]
        for view, (seen, foreground) in enumerate(((image, mask), (image.flip(-1), mask.flip(-1)))):
            assert_close(features.values[index, view], model.backbone(seen.unsqueeze(0))[0], rtol=1e-4, atol=1e-5)
            cells = foreground.float().view(4, 16, 4, 16).mean((1, 3))
            assert_close(features.masks[index, view], cells)
    assert not torch.equal(features.values[:, 0], features.values[:, 1])


def test_features_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    values, masks = torch.rand(3, 2, 4, 2, 2), torch.rand(3, 2, 2, 2)

    def compute(allocate: Callable) -> Features:
        allocate("features", tuple(values.shape), np.float32)[:] = values.numpy()
        allocate("grid", tuple(masks.shape), np.float32)[:] = masks.numpy()
        return Features(values, masks)

    assert open_features(tmp_path, "key", has_masks=True) is None
    write_features(tmp_path, "key", compute)
    found = open_features(tmp_path, "key", has_masks=True)
    assert found is not None
    assert found.masks is not None
    assert torch.equal(found.values, values)
    assert torch.equal(found.masks, masks)
    found.values[0] = 0  # what a reader does to them stays with the reader
    again = open_features(tmp_path, "key", has_masks=True)
    assert again is not None
    assert torch.equal(again.values, values)


@pytest.fixture
def two_maps() -> Backbone:
    """Stages of 4×4 and 2×2 cells, at their own resolutions."""
    torch.manual_seed(0)
    return Backbone("test_efficientnet", [-2, "head"], fuse=False).eval()


@torch.no_grad()
@pytest.mark.parametrize("half", [False, True])
def test_stages_that_are_not_fused_are_cached_each_on_its_own(
    two_maps: Backbone, run_data: RunData, processes: Processes, tmp_path: Path, half: bool
) -> None:
    source = run_data.images("train")

    def compute(*allocate: Callable) -> Features:
        return compute_features(two_maps, source, 2, 4, processes, lambda count: None, half, *allocate)

    write_features(tmp_path, "key", compute)
    files = sorted(path.name for path in tmp_path.glob("key-*"))
    assert files == ["key-features-1-of-2.npy", "key-features-2-of-2.npy", "key-grid.npy"]
    for found in (compute(), open_features(tmp_path, "key", True, half)):
        assert found is not None
        assert found.masks is not None
        assert found.masks.shape == (15, 2, 4, 4)  # on the finest grid
        assert [values.shape[1:] for values in found.values] == [(2, 48, 4, 4), (2, 256, 2, 2)]
        assert found.values[0].dtype == (torch.float16 if half else torch.float32)
        rows = torch.tensor([3, 0, 14])
        (batch,) = FeatureSource(Features(tuple(v[:, :1] for v in found.values), None), range(15), [0] * 15).batches(
            [rows]
        )
        images = torch.stack([source[int(row), 0][0] for row in rows])
        batch = batch.to(torch.device("cpu"))
        assert isinstance(batch.features, tuple)
        # float16 has a mantissa of 11 bits: half a unit in the last place is 2⁻¹² of the value.
        rounding = 2.0**-11 if half else 0.0
        for kept, given in zip(batch.features, two_maps(images), strict=True):
            assert kept.dtype == torch.float32
            assert_close(kept, given, rtol=1e-4 + rounding, atol=1e-5)
    assert open_features(tmp_path, "key", True, half) is not None
    (tmp_path / "key-features-2-of-2.npy").unlink()
    assert open_features(tmp_path, "key", True, half) is None  # all or nothing


def test_features_that_float16_cannot_hold_are_refused(
    two_maps: Backbone, run_data: RunData, processes: Processes
) -> None:
    with torch.no_grad():
        two_maps.network.conv_stem.weight.mul_(1e9)
    with pytest.raises(DaplError, match="larger than float16 can hold"):
        compute_features(two_maps, run_data.images("train"), 1, 4, processes, lambda count: None, True)


def test_the_size_of_the_cache_counts_every_map_and_its_type(
    two_maps: Backbone, configured: Callable[..., Config], run_data_of: Callable[[Config], RunData]
) -> None:
    numbers, model = 18 * (48 * 4 * 4 + 256 * 2 * 2), SimpleNamespace(extractor=two_maps, overview=two_maps)
    for kind, size in (("float32", 4), ("float16", 2)):
        for limit, kept in ((1.01, True), (0.99, False)):
            limits = {"cache.limit_gb": limit * numbers * size / 2**30, "cache.feature_type": kind}
            source = run_data_of(configured(limits)).source("train", model)  # type: ignore[arg-type]
            assert isinstance(source, FeatureSource) == kept


def test_an_interrupted_pass_leaves_nothing(tmp_path: Path) -> None:
    def compute(allocate: Callable) -> Features:
        allocate("features", (3, 1, 4, 2, 2), np.float32)[:1] = 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_features(tmp_path, "key", compute)
    assert [path.name for path in tmp_path.iterdir()] == ["CACHEDIR.TAG"]


def test_the_digest_names_the_weights(model: PrototypeModel) -> None:
    first = digest(model.backbone)
    assert digest(copy.deepcopy(model.backbone)) == first
    with torch.no_grad():
        next(model.backbone.parameters()).view(-1)[0] += 1e-3
    changed = digest(model.backbone)
    model.backbone.mean += 0.1  # type: ignore[operator]
    assert len({first, changed, digest(model.backbone)}) == 3


def test_the_key_changes_with_whatever_changes_the_features() -> None:
    def key(
        pixels: str = "pixels",
        values: str = "values",
        views: int = 1,
        precision: str = "32-true",
        half: bool = False,
        **fields: Any,
    ) -> str:
        return features_key(pixels, values, BackboneConfig(**fields), views, precision, half)

    keys = [
        key(),
        key(pixels="other pixels"),
        key(values="other values"),
        key(views=2),
        key(precision="bf16-mixed"),
        key(stages=[-2]),
        key(stages=[-2, -1]),
        key(stages=[-2, -1], balance=True),
        key(name="efficientnet_lite0"),
        key(stages=["head"]),
        key(stages=[-2, "head"]),
        key(stages=[-2, "head"], fuse=False),
        key(weights="inat_birds"),
        key(half=True),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    assert key(stages=[-1, -2]) == key(stages=[-2, -1])
    assert key(stages=["head", -2]) == key(stages=[-2, "head"])


@torch.no_grad()
def test_another_network_with_the_same_weights_has_features_of_its_own(
    configured: Callable[..., Config], run_data_of: Callable[[Config], RunData]
) -> None:
    """They differ in padding and normalisation, and in no weight."""
    weights: dict[str, Tensor] = {}
    for name in ("tf_efficientnet_lite0", "efficientnet_lite0"):
        config = configured({"model.backbone.name": name, "model.backbone.stages": [-1]})
        model, run_data = build_model(config.model, 3).eval(), run_data_of(config)
        weights = weights or model.backbone.state_dict()
        model.backbone.load_state_dict(weights)
        run_data.share(model.backbone)
        (batch,) = run_data.source("train", model).batches([torch.arange(2)])
        (images,) = run_data.images("train").batches([torch.arange(2)])
        assert_close(batch.features, model.backbone(images.images), rtol=1e-4, atol=1e-5)


def test_data_size_and_fit_have_files_of_their_own(
    configured: Callable[..., Config], run_data_of: Callable[[Config], RunData], model: PrototypeModel, tmp_path: Path
) -> None:
    changes = [
        {},
        {"data.images_per_class": 7},
        {"data.classes": 4},
        {"data.seed": 1},
        {"data.background_cue": 1.0},
        {"data.image_size": 32},
        {"data.fit": "crop"},
    ]
    seen: set[Path] = set()
    for change in changes:
        run_data = run_data_of(configured(change))
        run_data.share(model.backbone)
        run_data.source("train", model)
        found = set((tmp_path / "cache").glob("*-features.npy"))
        assert len(found) == len(seen) + 1, f"{change} reads the features of another configuration"
        seen = found


def test_the_held_out_images_share_the_files_of_train(
    configured: Callable[..., Config], run_data_of: Callable[[Config], RunData], model: PrototypeModel, tmp_path: Path
) -> None:
    for split, seed in itertools.product(("train", "validation"), (0, 1)):
        run_data = run_data_of(configured({"data.validation_seed": seed}))
        run_data.share(model.backbone)
        source = run_data.source(split, model)  # type: ignore[arg-type]
        images = torch.stack([run_data.dataset(split)[row].image.as_subclass(Tensor) for row in range(len(source))])  # type: ignore[arg-type]
        (batch,) = source.batches(in_order(len(source), 20))
        assert batch.features is not None
        with torch.no_grad():
            assert_close(batch.features, model.backbone(images), rtol=1e-4, atol=1e-5)
    files = list((tmp_path / "cache").glob("*-features.npy"))
    assert len(files) == 1
    assert np.load(files[0], mmap_mode="r").shape[:2] == (18, 1)


@pytest.mark.parametrize("blur", [0.0, 1.0])
def test_what_heads_located_by_is_not_made_again(
    configured: Callable[..., Config],
    run_data_of: Callable[[Config], RunData],
    blur: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the features of the overview are kept, only the crops pass through the backbone: to the same last bits."""
    passed: list[int] = []

    def counting(self: Backbone, images: Tensor) -> Any:
        passed.append(len(images))
        return forward(self, images)

    forward = Backbone.forward
    monkeypatch.setattr(Backbone, "forward", counting)
    found = []
    for kept in (False, True):
        fields = {**TINY_RUN, "model.system": "parts", **TINY_SYSTEMS["parts"], "model.blur": blur}
        config = configured({**fields, "cache.folder": str(tmp_path / f"kept {kept}")})
        run_data, parts = run_data_of(config), build_model(config.model, 3)
        parts.requires_grad_(False)
        run_data.share(parts.extractor)
        if kept:
            run_data.share(parts.overview)
            run_data.source("train", parts, "flip", parts.overview, both=True)
        passed.clear()
        source = run_data.source("train", parts)
        heads = config.model.heads  # type: ignore[union-attr]
        images = {count for count in passed if count > 1 and count % heads}  # 1: how large the features are
        assert bool(images) is not kept, "the images themselves passed through the backbone"
        (batch,) = source.batches(in_order(len(source), 100))
        found.append(batch.features)
    assert all(torch.equal(anew, known) for anew, known in zip(*found, strict=True))
