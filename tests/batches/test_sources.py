"""Where batches come from: orders and shares, and augmentation that depends on seed and image alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.batches.run_data import RunData
from dapl.batches.sources import Batch, Features, FeatureSource, ImageSource, grid_masks, in_order, shares, shuffled
from dapl.config import Config
from dapl.data.sample import Splits, Subset
from dapl.processes.interface import own_batches

# --- orders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "batch_size"), [(10, 3), (9, 3), (1, 4), (5, 5)])
def test_every_image_comes_once(count: int, batch_size: int) -> None:
    order = shuffled(count, batch_size, seed=7)
    assert sorted(torch.cat(list(order)).tolist()) == list(range(count))
    assert [len(indices) for indices in order[:-1]] == [batch_size] * (len(order) - 1)
    assert 1 <= len(order[-1]) <= batch_size
    assert torch.cat(list(in_order(count, batch_size))).tolist() == list(range(count))


def test_the_order_follows_from_the_seed() -> None:
    torch.manual_seed(0)
    first = torch.cat(list(shuffled(50, 8, seed=7)))
    torch.manual_seed(1)
    assert torch.equal(torch.cat(list(shuffled(50, 8, seed=7))), first)
    assert not torch.equal(torch.cat(list(shuffled(50, 8, seed=8))), first)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shares_are_disjoint_and_together_the_batch(world: int) -> None:
    order = shuffled(23, 8, seed=0)  # 8 + 8 + 7
    parts = [shares(order, rank, world) for rank in range(world)]
    for step, indices in enumerate(order):
        taken = torch.cat([part[step] for part in parts])
        assert sorted(taken.tolist()) == sorted(indices.tolist())
        sizes = [len(part[step]) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_no_process_goes_without_a_image() -> None:
    """Else the others would wait for its gradient for ever; by `FitEpoch.weights` a borrowed image counts nothing."""
    order = shuffled(9, 8, seed=0)  # 8 + 1
    parts = [shares(order, rank, 3) for rank in range(3)]
    assert [len(part) for part in parts] == [2, 2, 2]
    assert [part[1].tolist() for part in parts] == [order[1].tolist()] * 3


def process(rank: int, world: int) -> Any:
    return SimpleNamespace(global_rank=rank, world_size=world)


@pytest.mark.parametrize(("count", "world"), [(20, 2), (20, 3), (3, 2), (2, 3), (1, 2)])
def test_whole_batches_are_dealt(count: int, world: int) -> None:
    order = in_order(count, 4)
    hands = [own_batches(order, process(rank, world)) for rank in range(world)]
    dealt = [indices for hand in hands for indices in hand]
    assert sorted(torch.cat(dealt).tolist()) == list(range(count))
    assert all(len(indices) for indices in dealt)
    if len(order) >= world:
        assert sorted(indices.tolist() for indices in dealt) == [indices.tolist() for indices in order]
    elif count >= world:
        assert all(hands)


# --- images -------------------------------------------------------------------------------------------------------


def read(source: ImageSource, order: list[Tensor], seed: int = 0) -> list[Batch]:
    return list(source.batches(order, seed))


def images_of(batches: list[Batch]) -> dict[int, tuple[Tensor, Tensor]]:
    return {
        int(index): (batch.images[row], batch.masks[row])  # type: ignore[index]
        for batch in batches
        for row, index in enumerate(batch.indices)
    }


def assert_same(first: list[Batch], second: list[Batch]) -> None:
    ones, others = images_of(first), images_of(second)
    assert ones.keys() == others.keys()
    for index, (image, mask) in ones.items():
        assert torch.equal(image, others[index][0])
        assert torch.equal(mask, others[index][1])


@pytest.mark.parametrize("kind", ["none", "flip", "affine"])
def test_loading_processes_change_nothing(
    configured: Callable[..., Config], run_data_of: Callable[[Config], RunData], kind: Any
) -> None:
    order = shuffled(15, 4, seed=0)
    torch.manual_seed(0)
    alone = read(run_data_of(configured({"runtime.workers": 0})).images("train", kind), order, seed=5)
    torch.manual_seed(1)
    helped = read(run_data_of(configured({"runtime.workers": 2})).images("train", kind), order, seed=5)
    assert [batch.indices.tolist() for batch in helped] == [indices.tolist() for indices in order]
    assert_same(alone, helped)


@pytest.mark.parametrize("kind", ["flip", "affine"])
def test_augmentation_follows_from_seed_and_image_alone(run_data: RunData, kind: Any) -> None:
    source = run_data.images("train", kind)
    batches = read(source, in_order(15, 15), seed=5)
    assert_same(batches, read(source, shuffled(15, 4, seed=1), seed=5))
    plain = images_of(read(run_data.images("train"), in_order(15, 15)))
    other = images_of(read(source, in_order(15, 15), seed=6))
    same = images_of(batches)
    assert any(not torch.equal(same[index][0], plain[index][0]) for index in same)
    assert any(not torch.equal(same[index][0], other[index][0]) for index in same)


def test_a_mask_moves_with_its_image(run_data: RunData) -> None:
    plain = images_of(read(run_data.images("train"), in_order(15, 15)))
    flipped = images_of(read(run_data.images("train", "flip"), in_order(15, 15), seed=1))
    mirrored = 0
    for index, (image, mask) in flipped.items():
        turn = not torch.equal(image, plain[index][0])
        mirrored += turn
        assert torch.equal(image, plain[index][0].flip(-1) if turn else plain[index][0])
        assert torch.equal(mask, plain[index][1].flip(-1) if turn else plain[index][1])
    assert 0 < mirrored < 15


def test_labels_and_images_of_a_subset_belong_together(run_data: RunData) -> None:
    dataset = run_data.dataset("validation")
    assert isinstance(dataset, Subset)
    (batch,) = read(run_data.images("validation"), in_order(3, 3))
    assert batch.labels.tolist() == list(dataset.labels)
    assert batch.images is not None
    for row in range(3):
        assert torch.equal(batch.images[row], dataset[row].image.as_subclass(Tensor))


def test_without_masks_there_are_none(
    config: Config, processes: Any, run_data: RunData, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = run_data.splits.train.dataset  # type: ignore[attr-defined]
    monkeypatch.setattr(type(base), "has_masks", False)
    bare = Splits(*(Subset(split, range(len(split))) for split in (base, base, base)))
    without = RunData(config, processes, run_data.reporter, bare)
    (batch,) = read(without.images("train"), [torch.tensor([1, 0])])
    assert batch.masks is None
    assert without.pixel_masks("train", torch.tensor([0])) is None


# --- features -------------------------------------------------------------------------------------------------------


def test_a_feature_source_shows_its_rows() -> None:
    values = torch.arange(5.0).view(5, 1, 1, 1, 1).expand(5, 1, 2, 3, 3)
    source = FeatureSource(Features(values, None), rows=[4, 0, 2], labels=[7, 8, 9])
    (batch,) = source.batches([torch.tensor([2, 0])])
    assert batch.features is not None
    assert batch.features[:, 0, 0, 0].tolist() == [2.0, 4.0]
    assert batch.labels.tolist() == [9, 7]
    assert batch.masks is None


def test_both_lanes_flip_the_same_images(run_data: RunData) -> None:
    """A stage gives the same numbers whether or not the features were cached."""
    views = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1, 1).expand(15, 2, 1, 1, 1)
    source = FeatureSource(Features(views, None), range(15), [0] * 15)
    plain = images_of(read(run_data.images("train"), in_order(15, 15)))
    for seed in range(4):
        (batch,) = source.batches(in_order(15, 15), seed)
        flipped = images_of(read(run_data.images("train", "flip"), in_order(15, 15), seed))
        turned = [not torch.equal(flipped[index][0], plain[index][0]) for index in range(15)]
        assert batch.features is not None
        assert batch.features.flatten().bool().tolist() == turned


def test_a_cell_holds_the_area_average_of_its_mask() -> None:
    masks = torch.zeros(1, 6, 6, dtype=torch.uint8)
    masks[0, :2, :3] = 1
    assert_close(grid_masks(masks, (3, 2)), torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]))
    assert_close(grid_masks(masks, (2, 2)), torch.tensor([[[2 / 3, 0.0], [0.0, 0.0]]]))
    on_grid = torch.rand(2, 4, 4)
    assert torch.equal(grid_masks(on_grid, (4, 4)), on_grid)
