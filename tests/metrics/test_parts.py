"""Part masks against loops over pixels, and `point` against a count of points in regions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.functional.parts import part_masks


@st.composite
def images(draw: st.DrawFn) -> dict[str, Tensor]:
    K, H, W = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    keypoints = torch.rand(K, 2, generator=generator) * torch.tensor([W, H]) * 1.2 - 0.1 * torch.tensor([W, H])
    if draw(st.booleans()):
        keypoints = keypoints.round()  # on the corners of pixels, and now and then on the border of the image
    return {
        "keypoints": keypoints,
        "visible": torch.rand(K, generator=generator) < 0.8,
        "masks": torch.rand(H, W, generator=generator) < draw(st.sampled_from((0.0, 0.1, 0.7))),
        "boxes": torch.tensor(draw(st.sampled_from(([0.0, 0, 0, 0], [1.0, 1, 4, 7], [0.0, 0, W, H])))),
    }


def loops(mode: str, keypoints: Tensor, visible: Tensor, masks: Tensor, boxes: Tensor) -> list[set[tuple[int, int]]]:
    """Pixels (y, x) of each part, default radius, from the words of decision 11."""
    H, W = masks.shape
    on = [(int(y), int(x)) for y, x in masks.nonzero()]
    x0, y0, x1, y1 = boxes.tolist()
    area = (x1 - x0) * (y1 - y0)
    if not area and on:
        ys, xs = zip(*on, strict=True)
        area = (max(ys) - min(ys) + 1) * (max(xs) - min(xs) + 1)
    radius = 0.12 * math.sqrt(area) if area else 0.08 * math.sqrt(H * W)
    inside = [0 <= x <= W and 0 <= y <= H for x, y in keypoints.tolist()]
    seen = [k for k in range(len(inside)) if visible[k] and inside[k]]

    def squared(k: int, pixel: tuple[int, int]) -> float:
        x, y = keypoints[k].tolist()
        return (pixel[1] + 0.5 - x) ** 2 + (pixel[0] + 0.5 - y) ** 2

    found: list[set[tuple[int, int]]] = [set() for _ in keypoints]
    if mode == "voronoi":
        for pixel in on if seen else []:
            found[min(seen, key=lambda k: (squared(k, pixel), k))].add(pixel)
        return found
    for k in seen:
        x, y = keypoints[k].tolist()
        found[k] = {(min(int(y), H - 1), min(int(x), W - 1))}
        if mode != "point":
            found[k] |= {p for p in itertools.product(range(H), range(W)) if squared(k, p) <= radius**2}
        if mode == "clipped":
            found[k] &= set(on)
    return found


@pytest.mark.parametrize("mode", ["disc", "clipped", "voronoi", "point"])
@settings(max_examples=150, derandomize=True, deadline=None)
@given(image=images())
def test_equal_to_loops(mode: str, image: dict[str, Tensor]) -> None:
    size = tuple(image["masks"].shape)
    got = part_masks(size=size, mode=mode, **image)
    assert got.dtype == torch.bool
    assert got.shape == (len(image["keypoints"]), *size)
    assert [{(int(y), int(x)) for y, x in mask.nonzero()} for mask in got] == loops(mode, **image)


def batch() -> tuple[Tensor, Tensor]:
    """Keypoints and visibility of 15 parts in six images of 64×64."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(6, 15, 2, generator=generator) * 64, torch.rand(6, 15, generator=generator) < 0.7


@pytest.mark.parametrize("mode", ["disc", "clipped", "voronoi", "point"])
def test_a_batch_is_its_images(mode: str) -> None:
    keypoints, visible = batch()
    masks = torch.rand(6, 64, 64, generator=torch.Generator().manual_seed(1)) < 0.5
    boxes = torch.tensor([[0.0, 0, 10 * i, 8 * i] for i in range(6)])  # the first has none
    whole = part_masks(keypoints, visible, 64, mode, boxes=boxes, masks=masks)
    for i in range(6):
        single = part_masks(keypoints[i], visible[i], 64, mode, boxes=boxes[i], masks=masks[i])
        assert torch.equal(whole[i], single)
    as_2_by_3 = {"boxes": boxes.view(2, 3, 4), "masks": masks.view(2, 3, 64, 64)}
    nested = part_masks(keypoints.view(2, 3, 15, 2), visible.view(2, 3, 15), 64, mode, **as_2_by_3)
    assert torch.equal(nested.view_as(whole), whole)


def test_point_is_a_count_of_points_in_regions() -> None:
    keypoints, visible = batch()
    regions = F.activation_regions(torch.rand(6, 10, 7, 7, generator=torch.Generator().manual_seed(2)), 64)
    parts = part_masks(keypoints, visible, 64, mode="point")
    assigned = F.assign(F.overlap(regions, parts), 0.2, visible)
    for i, j, k in itertools.product(range(6), range(10), range(15)):
        x, y = keypoints[i, k].tolist()
        inside = bool(visible[i, k]) and bool(regions[i, j, int(y), int(x)])
        assert bool(assigned[i, j, k]) == inside


def test_the_radius_follows_the_box_or_the_image() -> None:
    keypoints, visible = torch.tensor([[50.0, 50.0]]), torch.tensor([True])

    def radius(**kwargs: object) -> float:
        return math.sqrt(part_masks(keypoints, visible, 100, **kwargs).sum().item() / math.pi)  # type: ignore[arg-type]

    box = torch.tensor([10.0, 10.0, 90.0, 90.0])
    segmentation = torch.zeros(100, 100, dtype=torch.uint8)
    segmentation[20:80, 20:80] = 1
    assert radius(boxes=box) == pytest.approx(0.12 * 80, abs=0.2)
    assert radius(boxes=box, radius=0.2) == pytest.approx(0.2 * 80, abs=0.2)
    assert radius(masks=segmentation) == pytest.approx(0.12 * 60, abs=0.2)
    assert radius(boxes=box, masks=segmentation) == pytest.approx(0.12 * 80, abs=0.2)
    assert radius() == pytest.approx(8, abs=0.2)
    assert radius(boxes=box, radius_of="image") == pytest.approx(8, abs=0.2)
    assert radius(boxes=box, radius_of="image", radius=0.3) == pytest.approx(30, abs=0.2)


def test_invisible_parts_may_hold_anything() -> None:
    keypoints = torch.tensor([[math.nan, 1.0], [2.0, 2.0], [-50.0, 3.0]])
    visible = torch.tensor([False, True, True])
    for mode in ("disc", "point", "voronoi"):
        masks = part_masks(keypoints, visible, 8, mode, masks=torch.ones(8, 8))
        assert F.visible_parts(masks, visible).tolist() == [False, True, False]  # the last lies outside the image


points, seen = torch.rand(2, 3, 2), torch.ones(2, 3).bool()
BAD_INPUT = {
    "keypoints with visibility": (lambda: part_masks(torch.rand(2, 3, 3), seen, 8), "keypoints must be"),
    "no parts": (lambda: part_masks(points[:, :0], seen[:, :0], 8), "there are no parts"),
    "visible of other parts": (lambda: part_masks(points, torch.ones(2, 4).bool(), 8), "visible has the shape"),
    "mode": (lambda: part_masks(points, seen, 8, "square"), "one of disc, clipped, voronoi, point"),
    "radius_of": (lambda: part_masks(points, seen, 8, radius_of="bird"), "radius_of"),
    "radius": (lambda: part_masks(points, seen, 8, radius=0.0), "radius .* must be above 0"),
    "NaN": (lambda: part_masks(points * math.nan, seen, 8), "NaN"),
    "clipped without masks": (lambda: part_masks(points, seen, 8, "clipped"), "need a segmentation"),
    "voronoi without masks": (lambda: part_masks(points, seen, 8, "voronoi"), "need a segmentation"),
    "masks of another size": (lambda: part_masks(points, seen, 8, masks=torch.ones(2, 9, 9)), "same grid"),
    "masks of other images": (lambda: part_masks(points, seen, 8, masks=torch.ones(3, 8, 8)), "do not fit"),
    "boxes of other images": (lambda: part_masks(points, seen, 8, boxes=torch.ones(3, 4)), "boxes must be"),
}
