"""Distinctiveness and Comprehensiveness against loops over pairs of boxes and over pixels; sparsity against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import box_iou

from dapl.common.errors import DaplError
from dapl.metrics import functional as C
from dapl.metrics import functional as F


def slow_distinctiveness(points: Tensor, side: int, kept: Tensor) -> float:
    """By torchvision's IoU of boxes, pair by pair, as the published code does it."""
    boxes = [
        torch.tensor([[x - side / 2, y - side / 2, x + side / 2, y + side / 2]])
        for (x, y), counts in zip(points.tolist(), kept.tolist(), strict=True)
        if counts
    ]
    ious = [box_iou(a, b).item() for i, a in enumerate(boxes) for b in boxes[i + 1 :]]
    return 1 - sum(ious) / len(ious) if ious else math.nan


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(0, 2**31))
def test_distinctiveness_equals_the_loops(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    points = torch.randint(0, 60, (3, 4, 2), generator=g)
    kept = torch.rand(3, 4, generator=g) < 0.6
    got = F.distinctiveness(points, 24, kept)
    for image in range(3):
        wanted = slow_distinctiveness(points[image], 24, kept[image])
        assert got[image].item() == pytest.approx(wanted, abs=1e-6, nan_ok=True)


def test_the_ends_of_the_scale() -> None:
    same, apart = torch.zeros(10, 2), torch.arange(10).unsqueeze(1) * torch.tensor([100, 0])
    assert F.distinctiveness(same) == 0
    assert F.distinctiveness(apart) == 1
    assert F.distinctiveness(same[:1]).isnan()


def slow_comprehensiveness(maps: Tensor, mask: Tensor, threshold: float, kept: Tensor) -> float:
    both = either = 0
    for y in range(mask.shape[0]):
        for x in range(mask.shape[1]):
            marked = False
            for values, counts in zip(maps, kept.tolist(), strict=True):
                low, high = values.min().item(), values.max().item()
                if counts and high > low and (values[y, x].item() - low) / (high - low) >= threshold:
                    marked = True
            both += marked and bool(mask[y, x])
            either += marked or bool(mask[y, x])
    return both / either if either else math.nan


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(0, 2**31))
def test_comprehensiveness_equals_the_loops(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    maps = torch.randint(0, 8, (2, 3, 4, 5), generator=g).float()
    maps[0, 0] = 3.0  # says nothing, and marks nothing
    masks = torch.rand(2, 4, 5, generator=g) < 0.4
    kept = torch.rand(2, 3, generator=g) < 0.7
    # 0.55 lies between the steps of maps of whole numbers up to 7, where rounding cannot decide
    got = F.comprehensiveness(maps, masks, None, 0.55, kept)
    for image in range(2):
        wanted = slow_comprehensiveness(maps[image], masks[image], 0.55, kept[image])
        assert got[image].item() == pytest.approx(wanted, abs=1e-6, nan_ok=True)


def test_maps_are_brought_to_the_size_of_the_image() -> None:
    maps = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    masks = torch.zeros(2, 16, 16).bool()
    masks[:, 3:12, 4:9] = True
    assert torch.equal(F.comprehensiveness(maps, masks, 16), F.comprehensiveness(F.upsample(maps, 16), masks, None))


def test_a_map_that_is_the_object_is_comprehensive_and_nothing_is_not() -> None:
    mask = torch.zeros(6, 6).bool()
    mask[1:4, 2:5] = True
    assert F.comprehensiveness(mask.float().unsqueeze(0), mask) == 1
    assert F.comprehensiveness(torch.ones(1, 6, 6), mask) == 0
    assert F.comprehensiveness(torch.ones(1, 6, 6), ~mask & mask).isnan()


def test_the_most_active_are_shown() -> None:
    """Eight prototypes: one removed, one flat; five of the six others are shown, those of the highest peaks."""
    maps = torch.zeros(1, 8, 2, 2)
    maps[0, :, 0, 0] = torch.tensor([1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0])
    maps[0, 3] = 7.0
    kept = torch.ones(1, 8).bool()
    kept[0, 1] = False
    assert F.most_active(maps, kept).tolist() == [[False, False, True, False, True, True, True, True]]
    assert F.most_active(maps, kept, top=20).sum() == 6


def test_what_they_refuse() -> None:
    maps, mask = torch.rand(2, 3, 3), torch.ones(3, 3).bool()
    for call, said in (
        (lambda: F.distinctiveness(torch.rand(3)), "points must be"),
        (lambda: F.distinctiveness(torch.rand(3, 2), side=0), "side must be above 0"),
        (lambda: F.comprehensiveness(maps, mask.float()), "masks must be boolean"),
        (lambda: F.comprehensiveness(maps, torch.ones(4, 4).bool()), "same grid"),
        (lambda: F.comprehensiveness(maps, mask, threshold=1.0), "threshold"),
        (lambda: F.most_active(maps, top=0), "top must be"),
    ):
        with pytest.raises(DaplError, match=said):
            call()


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_unique_prototypes_equal_a_set(seed: int, with_groups: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    vectors = torch.randint(0, 2, (12, 3), generator=g).float()
    groups = torch.arange(12) % 3 if with_groups else None
    kept = torch.rand(12, generator=g) < 0.7
    wanted = {(int(j % 3) if with_groups else 0, *vectors[j].tolist()) for j in range(12) if kept[j]}
    assert C.unique_prototypes(vectors, kept, groups) == len(wanted)
    if wanted:
        # ProtoPNeXt's formula in full, of prototypes with one part each on a 7×7 grid
        formula = 4 * (1 + 1 / 49) / (len(wanted) + len(wanted) / 49)
        assert C.sparsity(vectors, 4, kept, groups).item() == pytest.approx(formula)


def test_equal_to_eight_decimals() -> None:
    base = torch.tensor([[0.1, 0.2], [0.1, 0.2]], dtype=torch.float64)
    for step, unique in ((1e-9, 1), (1e-7, 2)):
        vectors = base.clone()
        vectors[1, 0] += step
        assert C.unique_prototypes(vectors) == unique
        assert C.unique_prototypes(vectors, decimals=3) == 1


def test_known_ends() -> None:
    assert C.sparsity(torch.eye(5), 5) == 1
    assert C.sparsity(torch.rand(200, 8, generator=torch.Generator().manual_seed(0)), 20).item() == pytest.approx(0.1)
    assert C.sparsity(torch.eye(4), 8) == 2  # shared by the classes
    assert C.sparsity(torch.eye(4), 8, torch.zeros(4).bool()).isnan()


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from((0.0, 0.1, 0.5)))
def test_sizes_equal_the_loops(seed: int, share: float) -> None:
    g = torch.Generator().manual_seed(seed)
    weights = torch.randint(-1, 3, (6, 4), generator=g) * 0.5
    scores = torch.randint(0, 12, (3, 6), generator=g).float()
    assert C.class_sizes(weights).tolist() == [sum(weights[j, c] != 0 for j in range(6)) for c in range(4)]
    for contributions in (scores, scores * weights[:, 1]):
        got = C.explanation_size(contributions, share).tolist()
        for row, size in zip(contributions.tolist(), got, strict=True):
            largest = max(map(abs, row))
            assert size == sum(abs(e) > torch.tensor(share).item() * largest for e in row)


def test_class_sizes_above_a_threshold() -> None:
    weights = torch.tensor([[1.0], [1e-6], [0.0]])
    assert C.class_sizes(weights).tolist() == [2]
    assert C.class_sizes(weights, 1e-5).tolist() == [1]
