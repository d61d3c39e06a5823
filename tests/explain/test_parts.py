"""Which part a region lies on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dapl.batches.cache import Annotations
from dapl.explain.parts import ImageFacts, foreground_shares, name_parts, nearest_part


def square(top: int, left: int, side: int, size: int = 32) -> Tensor:
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[top : top + side, left : left + side] = True
    return mask


def facts(*parts: Tensor, visible: list[bool] | None = None) -> ImageFacts:
    stacked = torch.stack(parts)
    seen = torch.ones(len(parts), dtype=torch.bool) if visible is None else torch.tensor(visible)
    return ImageFacts(None, stacked, seen, [f"part {k}" for k in range(len(parts))])


def test_the_part_that_is_covered_most() -> None:
    region = square(0, 0, 10)[None]
    assert name_parts(region, facts(square(8, 8, 8), square(5, 5, 8))) == ["part 1"]


def test_of_parts_covered_alike_the_nearest() -> None:
    region = square(0, 0, 11)[None]
    assert name_parts(region, facts(square(0, 0, 2), square(5, 5, 2), square(9, 9, 2))) == ["part 1"]


def test_no_part() -> None:
    region = square(0, 0, 8)[None]
    assert name_parts(region, facts(square(20, 20, 4))) == [None]
    assert name_parts(region, facts(square(0, 0, 4), visible=[False])) == [None]
    assert name_parts(region, facts(square(6, 6, 20))) == [None]  # less than a fifth of it
    assert name_parts(region, ImageFacts()) == [None]
    assert name_parts(region, None) == [None]
    assert name_parts(torch.zeros(0, 32, 32, dtype=torch.bool), facts(square(0, 0, 4))) == []


def test_foreground_shares() -> None:
    regions = torch.stack((square(0, 0, 8), square(0, 4, 8), square(20, 20, 8), square(0, 0, 0)))
    assert foreground_shares(regions, ImageFacts(square(0, 0, 8))) == [1.0, 0.5, 0.0, None]
    assert foreground_shares(regions, ImageFacts()) == [None] * 4


def test_the_nearest_keypoint_within_reach() -> None:
    points = torch.tensor([[[10.0, 10.0], [14.0, 10.0], [11.0, 10.0]]])
    known = Annotations(points, torch.tensor([[True, True, False]]), torch.zeros(1, 4), None, 32)
    names = ("eye", "beak", "hidden")
    assert nearest_part(known, (11.0, 10.0), 5, names) == "eye"
    assert nearest_part(known, (13.0, 12.0), 5, names) == "beak"
    assert nearest_part(known, (14.0, 16.0), 5, names) is None


def test_without_keypoints_a_part_is_where_its_mask_is() -> None:
    masks = torch.stack((square(0, 0, 4), square(20, 24, 4), square(0, 0, 0)))
    packed = np.packbits(masks.numpy(), axis=-1)[None]
    known = Annotations(torch.zeros(1, 3, 2), torch.zeros(1, 3, dtype=torch.bool), torch.zeros(1, 4), packed, 32)
    names = ("crown", "tail", "gone")
    assert nearest_part(known, (25.0, 21.0), 3, names) == "tail"  # x, then y
    assert nearest_part(known, (21.0, 25.0), 3, names) is None
    assert nearest_part(known, (1.0, 1.0), 3, names) == "crown"
    unknown = Annotations(torch.zeros(1, 0, 2), torch.zeros(1, 0, dtype=torch.bool), torch.zeros(1, 4), None, 32)
    assert nearest_part(unknown, (1.0, 1.0), 3, ()) is None
