"""Control regions against loops over every place and every pixel, written from their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.common.seeds import generator
from dapl.metrics import functional as F


def rectangles(seed: int, side: int = 9) -> tuple[Tensor, Tensor]:
    """A region of one or two rectangles and an object of one, anywhere in the image: bool side×side each."""
    g = torch.Generator().manual_seed(seed)
    sets = torch.zeros(2, side, side).bool()
    for which in (0, 0, 1) if seed % 2 else (0, 1):
        top, left = (int(torch.randint(0, side - 1, (), generator=g)) for _ in range(2))
        high, wide = (int(torch.randint(1, 3 + 3 * which, (), generator=g)) for _ in range(2))
        sets[which, top : top + high, left : left + wide] = True
    return sets[0], sets[1]


def places(region: Tensor) -> list[Tensor]:
    """Every place inside the image that shares at most half of its pixels with the region; pixel by pixel."""
    side, pixels = len(region), region.nonzero().tolist()
    found = []
    for dy in range(1 - side, side):
        for dx in range(1 - side, side):
            moved = [(y + dy, x + dx) for y, x in pixels]
            if all(0 <= y < side and 0 <= x < side for y, x in moved):
                other = torch.zeros_like(region)
                for y, x in moved:
                    other[y, x] = True
                if int((other & region).sum()) <= len(pixels) / 2:
                    found.append(other)
    return found


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(0, 2**31))
def test_a_matched_region_is_one_of_the_places_that_the_definition_allows(seed: int) -> None:
    region, bird = rectangles(seed)
    control, matched = F.matched_regions(region, bird, generator(seed))
    area, share = int(region.sum()), int((region & bird).sum())
    allowed = places(region)
    assert int(control.sum()) == area
    if not allowed:
        assert not matched
        blob = F.blob_regions(region, bird, generator(seed)).regions
        assert torch.equal(control, blob)
        return
    away = [abs(int((place & bird).sum()) - share) for place in allowed]
    assert bool(matched) == (min(away) <= 0.05 * area)
    allowed = [place for place, how in zip(allowed, away, strict=True) if how <= max(min(away), 0.05 * area)]
    shared = [int((place & region).sum()) for place in allowed]
    allowed = [place for place, how in zip(allowed, shared, strict=True) if how <= min(shared) + 0.05 * area]
    assert any(torch.equal(control, place) for place in allowed)


def test_every_allowed_place_is_as_likely() -> None:
    """A pixel of a 3×3 object, in 5×5: the eight others of the object, each an eighth of the draws."""
    region, bird = torch.zeros(4000, 5, 5).bool(), torch.zeros(4000, 5, 5).bool()
    region[:, 2, 2], bird[:, 1:4, 1:4] = True, True
    control, matched = F.matched_regions(region, bird, generator(0))
    assert matched.all()
    shares = control.float().mean(0)
    assert shares[2, 2] == 0
    others = torch.cat((shares[1:4, 1:4].flatten()[:4], shares[1:4, 1:4].flatten()[5:]))
    assert (others - 1 / 8).abs().max() < 0.02  # four standard deviations of a share of 4,000 draws


def test_nothing_wraps_round_and_what_cannot_move_becomes_a_blob() -> None:
    """A region with pixels in all four corners has nowhere to go."""
    region, bird = torch.zeros(8, 8).bool(), torch.zeros(8, 8).bool()
    region[::7, ::7], bird[3:6, 3:6] = True, True
    control, matched = F.matched_regions(region, bird, generator(0))
    assert not matched
    assert control.sum() == 4
    assert (control & ~bird).sum() == 0


def test_the_nearest_share_where_no_place_has_an_equal_one() -> None:
    """All of the object is in the region: elsewhere is none of it, and the control says that it does not match."""
    region, bird = torch.zeros(8, 8).bool(), torch.zeros(8, 8).bool()
    region[:2, :2] = bird[:2, :2] = True
    control, matched = F.matched_regions(region, bird, generator(0))
    assert not matched
    assert (control & region).sum() == 2  # half of itself is the most that it may keep, and the nearest to all of it


def slow_blob(region: Tensor, bird: Tensor, centre: tuple[int, int]) -> Tensor:
    def key(pixel: tuple[int, int]) -> tuple[int, int, int]:
        y, x = pixel
        kind = (0 if bird[y, x] else 2) + int(region[y, x])
        return kind, (y - centre[0]) ** 2 + (x - centre[1]) ** 2, y * len(region) + x

    side = range(len(region))
    chosen = sorted(((y, x) for y in side for x in side), key=key)[: int(region.sum())]
    blob = torch.zeros_like(region)
    for y, x in chosen:
        blob[y, x] = True
    return blob


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(0, 2**31))
def test_a_blob_is_the_nearest_pixels_of_the_object_around_one_of_its_pixels(seed: int) -> None:
    region, bird = rectangles(seed)
    control, matched = F.blob_regions(region, bird, generator(seed))
    free = bird & ~region
    starts = free if free.any() else bird if bird.any() else ~region
    blobs = [slow_blob(region, bird, (y, x)) for y, x in starts.nonzero().tolist()]
    assert any(torch.equal(control, blob) for blob in blobs)
    assert bool(matched) == (int(free.sum()) >= int(region.sum()))
    if matched:
        assert not (control & ~free).any()


@pytest.mark.parametrize("control", ["object", "blob", "anywhere"])
def test_draws_are_seeded_and_belong_to_the_image(control: F.Control) -> None:
    pairs = [rectangles(seed) for seed in range(6)]
    regions, birds = (torch.stack(column) for column in zip(*pairs, strict=True))
    whole = F.control_regions(control, regions, birds, [generator(3, i) for i in range(6)])
    for rows in ([0, 1, 2], [3], [4, 5]):
        some = F.control_regions(control, regions[rows], birds[rows], [generator(3, i) for i in rows])
        assert torch.equal(some.regions, whole.regions[rows])
        assert torch.equal(some.matched, whole.matched[rows])
    other = F.control_regions(control, regions, birds, [generator(4, i) for i in range(6)])
    assert not torch.equal(other.regions, whole.regions)


@pytest.mark.parametrize("control", ["object", "blob", "anywhere"])
def test_the_control_of_an_empty_region_is_empty(control: F.Control) -> None:
    nothing = torch.zeros(1, 5, 5).bool()
    found = F.control_regions(control, nothing, ~nothing, generator(0))
    assert not found.regions.any()
    if control != "anywhere":
        assert not found.matched.any()


def test_several_regions_per_image_and_real_sizes() -> None:
    """Counts by FFT are whole numbers at the size of real images, too: area is kept, and shares are those promised."""
    g = torch.Generator().manual_seed(0)
    regions = F.activation_regions(torch.rand(2, 3, 7, 7, generator=g), 224)
    bird = torch.zeros(2, 3, 224, 224).bool()
    bird[..., 60:160, 40:180] = True
    control, matched = F.matched_regions(regions, bird, [generator(0), generator(1)])
    area = regions.sum((-2, -1))
    assert torch.equal(control.sum((-2, -1)), area)
    gap = ((control & bird).sum((-2, -1)) - (regions & bird).sum((-2, -1))).abs()
    assert (gap <= 0.05 * area)[matched].all()
    assert matched.any()


def test_what_it_refuses() -> None:
    region = torch.ones(2, 2).bool()
    with pytest.raises(DaplError, match="needs masks"):
        F.control_regions("blob", region, None, generator(0))
    with pytest.raises(DaplError, match="must be object, blob or anywhere"):
        F.control_regions("elsewhere", region, region, generator(0))  # type: ignore[arg-type]
    with pytest.raises(DaplError, match="same shape"):
        F.matched_regions(region, torch.ones(3, 2).bool(), generator(0))
    with pytest.raises(DaplError, match="masks must be boolean"):
        F.blob_regions(region, torch.ones(2, 2), generator(0))
