"""Regions: the last bits of a map decide nothing; the pixels that sets share are counted in two ways, both the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.functional.pixel_sets import shared_pixels
from dapl.metrics.functional.regions import FLAT, TIE, model_regions, on_pixels, regions_and_peaks, shown_regions
from dapl.models import Dapl, create_backbone

NOISE = 2e-6
"""A share of the largest value: what maps of one model differ by between batch sizes, seen on several processors."""


def maps(kind: str, count: int = 40) -> Tensor:
    """count×1×16×16, with values up to about 5, as log similarities have them."""
    generator = torch.Generator().manual_seed(3)
    values = 5 * torch.rand(count, 1, 16, 16, generator=generator)
    if kind == "plateaus":  # what padding, plain background and the symmetric paint of receptive fields make
        return values.floor()
    if kind == "mirrored":
        return torch.maximum(values, values.flip(-1))
    return values


def with_noise(values: Tensor, share: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = 2 * torch.rand(values.shape, generator=generator) - 1
    return values + share * values.abs().amax((-2, -1), keepdim=True) * noise


@pytest.mark.parametrize("percentile", [50.0, 80.0, 95.0])
@pytest.mark.parametrize("kind", ["plateaus", "mirrored"])
def test_noise_does_not_part_what_ties(kind: str, percentile: float) -> None:
    plain = maps(kind)
    for seed in range(5):
        noisy = with_noise(plain, NOISE, seed)
        assert torch.equal(F.activation_regions(noisy, None, percentile), F.activation_regions(plain, None, percentile))
        assert torch.equal(F.peaks(noisy), F.peaks(plain))


def test_without_the_rule_noise_would_decide() -> None:
    """The same plateaus, cut at the percentile to the bit: the regions are noise, other ones each time."""
    first, second = (with_noise(maps("plateaus"), NOISE, seed).flatten(2) for seed in (0, 1))
    cut = [values >= values.sort(-1).values[..., 243:244] for values in (first, second)]
    assert (cut[0] & cut[1]).sum(-1).float().mean() < 8  # of 13 pixels


def slow_region(values: Tensor, number: int, largest: float | None = None) -> Tensor:
    """The region of a map, H×W: pixel after pixel, the highest first, of ties the nearest to the peak, then row by row.

    ``largest``: of the map before it was upsampled.
    """
    slack = TIE * (float(values.abs().max()) if largest is None else largest)
    cells = [(y, x) for y in range(len(values)) for x in range(values.shape[1])]
    threshold = sorted((float(values[cell]) for cell in cells), reverse=True)[number - 1]
    peak = next(cell for cell in cells if values[cell] >= values.max() - slack)
    sure = [cell for cell in cells if values[cell] > threshold + slack]
    tied = [cell for cell in cells if abs(float(values[cell]) - threshold) <= slack]
    tied.sort(key=lambda cell: ((cell[0] - peak[0]) ** 2 + (cell[1] - peak[1]) ** 2, cell))
    region = torch.zeros(values.shape, dtype=torch.bool)
    for cell in sure + tied[: number - len(sure)]:
        region[cell] = True
    return region


@pytest.mark.parametrize("kind", ["plateaus", "mirrored", "any"])
@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.0])
def test_ties_against_a_loop(kind: str, percentile: float) -> None:
    values = maps(kind, 8)
    number = 256 - math.ceil(percentile / 100 * 255)
    found = F.activation_regions(values, None, percentile)
    assert (found.sum((-2, -1)) == number).all()
    assert torch.equal(found[:, 0], torch.stack([slow_region(one[0], number) for one in values]))


@pytest.mark.parametrize("kind", ["any", "plateaus", "one in a thousand", "every second", "nearly flat"])
@pytest.mark.parametrize("percentile", [0.01, 50.0, 95.0])
def test_maps_cut_together_are_those_of_the_loop(kind: str, percentile: float) -> None:
    """Of large maps some pixels tell first where the threshold lies, and all maps of a chunk are cut at once; among
    them are flat ones, and ones of which the first look tells too little."""
    coarse = maps("plateaus" if kind == "plateaus" else "any", 7)[:, 0, :6, :6]
    if kind == "nearly flat":
        coarse = 5 + 0.03 * coarse  # hundreds of pixels tie
    values = F.upsample(coarse, 52)
    if kind == "one in a thousand":  # where the first look, at every so many pixels, does not see it
        values = (torch.arange(52 * 52).view(52, 52) % 1000 == 7).float().repeat(7, 1, 1) * values
    if kind == "every second":  # where it sees low ones only
        values = values + 3 * (torch.arange(52 * 52).view(52, 52) % 2)
    values[3] = 2.0
    number = 52 * 52 - math.ceil(percentile / 100 * (52 * 52 - 1))
    found, peaks = regions_and_peaks(values, None, percentile)
    assert not found[3].any()
    assert peaks[3].tolist() == [0, 0]
    for row in (0, 1, 2, 4, 5, 6):
        assert torch.equal(found[row], slow_region(values[row], number))
        alone, peak = regions_and_peaks(values[row : row + 1], None, percentile)
        assert torch.equal(alone[0], found[row])
        assert torch.equal(peak[0], peaks[row])


def test_pixels_are_the_same_with_one_thread_and_with_two() -> None:
    """With one thread the products are NumPy's."""
    values, before = maps("any")[:, 0], torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = torch.cat([chunk for _, chunk, _ in on_pixels(values, 96)])
        torch.set_num_threads(2)
        two = torch.cat([chunk for _, chunk, _ in on_pixels(values, 96)])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(one, two, rtol=0, atol=TIE)
    assert one.shape == (40, 96, 96)


def test_the_region_of_a_lone_peak_is_compact() -> None:
    """One cell of 7×7 is active, in a corner: its bump has fewer pixels than a region, and the rest of the map ties."""
    lone = torch.zeros(1, 7, 7)
    lone[0, 0, 0] = 3.0
    region = F.activation_regions(lone, 224)[0]
    rows, columns = region.nonzero().unbind(1)
    assert region.sum() == 2509
    assert max(rows.max(), columns.max()) < 80  # a square of 2,509 pixels in the corner has a side of 50


@pytest.mark.parametrize("noise", [1e-7, 1e-6, 1e-4, 1e-2])
def test_only_pixels_at_the_threshold_can_change(noise: float) -> None:
    """True by construction: order statistic and largest value move by no more than the map does.

    So a pixel stays where it is when it is further from the threshold than ties are, and than both of them moved.
    """
    plain = maps("any")
    noisy = with_noise(plain, noise)
    largest = plain.abs().amax((-2, -1), keepdim=True)
    threshold = plain.flatten(-2).sort(-1).values[..., 243, None, None]
    changed = F.activation_regions(plain) != F.activation_regions(noisy)
    near = (plain - threshold).abs() <= (TIE + (2 + TIE) * noise) * largest + 1e-6
    assert (near | ~changed).all()


def test_a_map_that_varies_by_rounding_is_flat() -> None:
    """A model whose patches are all alike: 8.9 everywhere, and what is left is noise."""
    flat = with_noise(torch.full((20, 1, 4, 4), 8.9), 1e-5)
    assert not F.activation_regions(flat, 64).any()
    assert (F.peaks(flat, 64) == 0).all()
    bump = torch.full((1, 1, 4, 4), 8.9)
    bump[..., 1, 2] += 3 * FLAT * 8.9
    assert F.activation_regions(bump, 64).float().mean() == pytest.approx(0.05, abs=1e-3)


def test_what_a_flat_map_is_worth() -> None:
    """Nothing: it lies on no part, and corresponds to none."""
    flat, parts = torch.full((1, 2, 4, 4), 0.7), torch.ones(1, 3, 64, 64, dtype=torch.bool)
    regions = F.activation_regions(flat, 64)
    assigned = F.assign(F.overlap(regions, parts), 0.2)
    assert F.coverage(assigned) == 0
    assert F.redundancy(regions, assigned) == 0
    assert F.diversity(regions, assigned) == 0.5
    assert F.iou(regions).eq(0).all()
    assert F.region_background_share(regions, parts[:, 0]).isnan().all()
    corner = torch.ones(1, 3, 2)  # where `peaks` has to put the peak of a flat map
    assert not F.corresponding_parts(flat, corner, torch.ones(1, 3, dtype=torch.bool), 64).any()


def test_single_and_double_precision_make_the_same_regions() -> None:
    single = torch.nn.functional.avg_pool2d(maps("any", 200), 2)
    found, exact = F.activation_regions(single, 96), F.activation_regions(single.double(), 96)
    differs = (found != exact).flatten(1).sum(1)
    assert differs.max() <= 2  # one pixel taken for another that lies at the threshold to seven digits
    assert differs.sum() <= 8


def random_sets(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.6


@pytest.mark.skipif(not hasattr(np, "bitwise_count"), reason="numpy before 2.0 counts no bits")
@pytest.mark.parametrize("side", [(1, 1), (7, 9), (8, 8), (13, 64)])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (0,)])
def test_bits_and_products_agree(side: tuple[int, int], leading: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    """Pixels that sets share, by bits and by a matrix product."""
    a, b = random_sets(*leading, 4, *side, seed=0), random_sets(*leading, 5, *side, seed=1)
    found = shared_pixels(a, b), shared_pixels(a, a)
    monkeypatch.delattr(np, "bitwise_count")
    expected = shared_pixels(a, b), shared_pixels(a, a)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


def test_many_sets_are_taken_in_turns():
    """More sets than fit at once: 700 against 700 of 64 words."""
    sets = random_sets(1, 700, 64, 64, seed=2)
    shared, size = shared_pixels(sets, sets)
    assert torch.equal(shared[0].diagonal(), size[0])
    assert torch.equal(shared[0, 3, 5], (sets[0, 3] & sets[0, 5]).sum().float())


@pytest.mark.parametrize("percentile", [5.0, 85.0, 95.0, 99.9])
@pytest.mark.parametrize("kind", ["plateaus", "mirrored", "any", "flat", "one pixel"])
def test_regions_and_peaks_are_those_of_sorting(kind: str, percentile: float) -> None:
    """At the size of an image, where thresholds are bracketed by some of the values, and where no two pixels tie."""
    cells = maps(kind, 6)
    if kind == "flat":
        cells = 5 + 1e-4 * cells
    if kind == "one pixel":
        cells = torch.zeros(6, 1, 96, 96).index_fill(-1, torch.tensor([40]), 1.0)
        cells[..., :50, :] = 0
    size = None if kind == "one pixel" else 96
    regions, highest = F.regions_and_peaks(cells, size, percentile)
    assert torch.equal(highest, F.peaks(cells, size))
    number = 96 * 96 - math.ceil(percentile / 100 * (96 * 96 - 1))
    values = cells if size is None else F.upsample(cells - cells.amin((-2, -1), keepdim=True), size)
    for region, value, cell in zip(regions[:, 0], values[:, 0], cells[:, 0], strict=True):
        if kind == "flat":
            assert not region.any()
            continue
        assert region.sum() == number
        inside, outside = value[region], value[~region]
        assert outside.max() - inside.min() <= 2 * TIE * cell.abs().max()  # nothing outside is higher but by a tie


def test_sets_that_are_packed_once_count_as_tensors_do() -> None:
    regions, parts = random_sets(2, 4, 9, 13, seed=3), random_sets(2, 5, 9, 13, seed=4)
    mask = random_sets(2, 9, 13, seed=5)
    sets, others = F.PixelSets(regions), F.PixelSets(parts)
    assert torch.equal(sets.sizes(), regions.flatten(2).sum(2).float())
    assert torch.equal(F.overlap(sets, others), F.overlap(regions, parts))
    assert torch.equal(F.iou(sets), F.iou(regions))
    for function in (F.region_background_share, F.object_overlap):
        assert torch.equal(function(sets, mask), function(regions, mask))
        assert torch.equal(function(sets, mask), function(regions, mask.float()))
    assert repr(sets) == "PixelSets(2×4×9×13)"


def test_what_is_shown_of_a_crop_is_at_most_half_of_it() -> None:
    torch.manual_seed(0)
    model = Dapl(create_backbone("test_efficientnet", weights="random"), classes=2, heads=2, head_dim=4)
    maps = torch.rand(4, 7, 7)
    maps[3] = 0.5  # flat
    sides = torch.tensor([0.2, 0.31, 1.0, 0.2])
    squares = torch.cat((torch.full((4, 2), 0.5), sides.unsqueeze(1)), dim=1)
    measured, shown = model_regions(model, maps, 64), shown_regions(model, maps, 64, squares)
    assert not (shown & ~measured).any(), "a part of what is measured"
    whole = int(measured[0].sum())
    assert shown.sum((1, 2)).tolist() == [round((0.2 * 64) ** 2 / 2), round((0.31 * 64) ** 2 / 2), whole, 0]
    pixels = F.upsample(maps[0], 64)
    assert pixels[shown[0]].min() >= pixels[~shown[0]].max() - TIE, "its highest places"
    assert torch.equal(shown_regions(model, maps, 64, None), measured)
