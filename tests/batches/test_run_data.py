"""RunData: cached or not, by features or by images, the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.batches.run_data import RunData
from dapl.batches.sources import BatchSource, FeatureSource, ImageSource, in_order, shuffled
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.data.toybirds import ToyBirds
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.training.stages import Objective

UNCACHED = {"cache.pixels": False, "cache.features": False}


class Counted(nn.Module):
    """A backbone that counts the images it is shown."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.images = 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        return self.backbone(images)


@pytest.fixture
def counted(model: PrototypeModel) -> PrototypeModel:
    model.backbone = Counted(model.backbone)
    return model


def shared(run_data: RunData, model: PrototypeModel) -> RunData:
    run_data.share(model.backbone)
    return run_data


@torch.no_grad()
def terms(model: PrototypeModel, config: Config, source: BatchSource, seed: int = 3) -> list[dict[str, float]]:
    """Every term of the loss on every batch of a shuffled pass."""
    objective = Objective(model, config.loss)
    negatives = objective.draw_negatives(torch.Generator().manual_seed(0))
    batches = source.batches(shuffled(len(source), 4, seed=1), seed)
    return [{name: value.item() for name, value in objective(batch, negatives).items()} for batch in batches]


ALL_TERMS = {"loss.foreground.weight": 1.0, "loss.spatial.weight": 1.0}


@pytest.mark.parametrize("kind", ["none", "flip"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_features_and_images_give_the_same_losses(
    configured: Callable[..., Config],
    run_data_of: Callable[[Config], RunData],
    model: PrototypeModel,
    kind: Any,
    on_disk: bool,
) -> None:
    config = configured(ALL_TERMS)
    run_data = run_data_of(config)
    if on_disk:
        shared(run_data, model)
    features, images = run_data.source("train", model, kind), run_data.images("train", kind)
    assert isinstance(features, FeatureSource)
    assert isinstance(images, ImageSource)
    fast, slow = terms(model, config, features), terms(model, config, images)
    assert len(fast) == 4
    assert {"foreground", "spatial", "contrast"} < fast[0].keys()
    for quick, thorough in zip(fast, slow, strict=True):
        assert quick == pytest.approx(thorough, rel=1e-4)
    if kind == "flip":
        assert fast != terms(model, config, features, seed=4), "another seed flips other images"


def test_without_caches_the_numbers_are_the_same(
    configured: Callable[..., Config], run_data_of: Callable[[Config], RunData], model: PrototypeModel, tmp_path: Path
) -> None:
    cached, bare = configured(ALL_TERMS), configured(ALL_TERMS | UNCACHED)
    without = run_data_of(bare).source("train", model, "flip")
    assert isinstance(without, ImageSource)
    found = terms(model, bare, without)
    assert not (tmp_path / "cache").exists()
    expected = terms(model, cached, shared(run_data_of(cached), model).source("train", model, "flip"))
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("share", [True, False], ids=["on disk", "in memory"])
def test_the_backbone_sees_each_image_once(run_data: RunData, counted: PrototypeModel, share: bool) -> None:
    if share:
        shared(run_data, counted)
    for split in ("train", "validation", "train"):
        source = run_data.source(split, counted)  # type: ignore[arg-type]
        list(source.batches(in_order(len(source), 4)))
    # 18 in passes of eight, the last filled up; one more to learn the size of its features
    assert counted.backbone.images == 24 + 1


def test_a_second_run_does_not_call_the_backbone(
    config: Config, run_data_of: Callable[[Config], RunData], counted: PrototypeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shared(run_data_of(config), counted).source("train", counted, "flip")
    expected = terms(counted, config, first)
    counted.backbone.images = 0

    def drawn(self: ToyBirds, index: int) -> None:
        raise AssertionError("an image is drawn again")

    monkeypatch.setattr(ToyBirds, "__getitem__", drawn)
    second = shared(run_data_of(config), counted).source("train", counted, "flip")
    assert terms(counted, config, second) == expected
    assert counted.backbone.images == 0


@pytest.mark.parametrize("kind", ["none", "flip"])
def test_images_are_shown_with_the_features_that_are_kept(
    config: Config, run_data_of: Callable[[Config], RunData], counted: PrototypeModel, kind: Any
) -> None:
    assert isinstance(run_data_of(config).shown("train", counted), ImageSource), "nothing is kept, nothing is computed"
    assert counted.backbone.images == 0
    shared(run_data_of(config), counted).source("train", counted, kind)
    counted.backbone.images = 0
    again = run_data_of(config)
    order = torch.tensor([5, 1, 3]).split(2)
    shown = list(again.shown("train", counted).batches(order))
    assert counted.backbone.images == 0
    for batch, seen in zip(shown, again.images("train").batches(order), strict=True):
        assert batch.images is not None
        assert batch.masks is not None
        assert_close((batch.images, batch.masks, batch.labels), (seen.images, seen.masks, seen.labels))
        with torch.inference_mode():
            assert_close(batch.features, counted.extractor.eval()(batch.images), rtol=1e-4, atol=1e-5)


def test_processes_decide_together_whether_features_are_there(
    run_data: RunData, counted: PrototypeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may look just before another has written them: if it alone went on, the other would wait for it for ever."""
    shared(run_data, counted).source("train", counted)
    counted.backbone.images = 0
    answers = iter((True, False, False))  # some process has not found them; none lacks room, none failed to write
    monkeypatch.setattr(RunData, "_any", lambda self, flag: next(answers))
    assert isinstance(run_data.source("train", counted), FeatureSource)
    assert counted.backbone.images == 24 + 1


def test_features_of_a_backbone_that_has_learned_are_not_kept_on_disk(
    run_data: RunData, counted: PrototypeModel, tmp_path: Path
) -> None:
    shared(run_data, counted)
    with torch.no_grad():
        next(counted.backbone.parameters()).mul_(1.5)
    source = run_data.source("train", counted)
    assert isinstance(source, FeatureSource)
    assert not list((tmp_path / "cache").glob("*features*"))
    with torch.no_grad():
        next(counted.backbone.parameters()).mul_(1.5)
    changed = run_data.source("train", counted)
    assert isinstance(changed, FeatureSource)
    assert not torch.equal(changed.features.values, source.features.values), "features of older weights are given out"


def test_features_above_the_limit_are_not_cached(
    configured: Callable[..., Config], run_data_of: Callable[[Config], RunData], model: PrototypeModel, tmp_path: Path
) -> None:
    config = configured({"cache.limit_gb": 1e-9})
    limited = shared(run_data_of(config), model).source("train", model)
    assert isinstance(limited, ImageSource)
    assert not list((tmp_path / "cache").glob("*features*"))
    unlimited = configured()
    expected = terms(model, unlimited, shared(run_data_of(unlimited), model).source("train", model))
    for one, other in zip(terms(model, config, limited), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_affine_images_are_never_cached_features(run_data: RunData, model: PrototypeModel) -> None:
    assert isinstance(shared(run_data, model).source("train", model, "affine"), ImageSource)


def test_masks_of_images_are_those_of_the_data(run_data: RunData) -> None:
    masks = run_data.pixel_masks("validation", torch.tensor([2, 0]))
    assert masks is not None
    for mask, index in zip(masks, (2, 0), strict=True):
        expected = run_data.dataset("validation")[index].mask
        assert expected is not None
        assert torch.equal(mask, expected.as_subclass(Tensor))


@pytest.fixture(params=["a file in the way", "a full disk", "a read-only disk"])
def no_cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that no cache can be kept in."""
    if request.param == "a file in the way":
        (tmp_path / "file").write_text("not a folder")
        return tmp_path / "file" / "cache"
    disk = request.getfixturevalue("disk")
    return disk.full(left=16_000) if request.param == "a full disk" else disk.read_only()


@pytest.mark.parametrize("overrides", [{}, {"cache.pixels": False}], ids=["pixels", "features"])
def test_without_a_cache_that_can_be_written_the_run_goes_on_with_the_same_numbers(
    configured: Callable[..., Config],
    processes: Processes,
    model: PrototypeModel,
    no_cache: Path,
    overrides: dict[str, Any],
    capsys: pytest.CaptureFixture,
) -> None:
    """A sparse memory map on a full disk would end the process with a signal."""
    expected = shared(RunData(configured(overrides), processes, Reporter(quiet=True)), model).source("train", model)
    config = configured({"cache.folder": str(no_cache)} | overrides)
    source = shared(RunData(config, processes, Reporter()), model).source("train", model)
    for batch, other in zip(*(one.batches(in_order(15, 4)) for one in (source, expected)), strict=True):
        assert isinstance(batch.features, Tensor)
        assert isinstance(other.features, Tensor)
        assert torch.equal(batch.features, other.features)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cache.folder: {no_cache} cannot be written (")
    assert "going on without this cache" in line
    left = [path.name for path in no_cache.iterdir()] if no_cache.is_dir() else []
    # Nothing half-written, and no pixels; what is smaller than they are may fit.
    assert not [name for name in left if name.endswith(".tmp") or "-images" in name]


def test_the_cache_folder_may_name_variables(
    configured: Callable[..., Config],
    run_data_of: Callable[[Config], RunData],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("DAPL_TEST_CACHE", str(tmp_path))
    run_data_of(configured({"cache.folder": "$DAPL_TEST_CACHE/named"})).images("validation")
    assert list((tmp_path / "named").glob("*-images.npy"))
    with pytest.raises(DaplError, match=r"cache\.folder: the environment variable DAPL_NOT_SET is not set"):
        run_data_of(configured({"cache.folder": "$DAPL_NOT_SET/cache"}))


def test_evaluation_of_a_batch_is_the_same_in_any_company(
    run_data: RunData, model: PrototypeModel, processes: Processes
) -> None:
    """What lets a stage on images and one on features, whose batches were cut differently, be compared at all."""
    source = run_data.images("train")
    with torch.no_grad():
        alone, together = (
            torch.cat([model(batch.images).scores for batch in source.batches(in_order(15, size))]) for size in (1, 15)
        )
    assert_close(alone, together, rtol=1e-4, atol=1e-5)
