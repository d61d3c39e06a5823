"""Blurring out, moving at random, and the similarity that is lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.common.seeds import generator
from dapl.metrics import functional as C
from dapl.metrics import functional as F


def slow_blur(image: Tensor, sigma: float) -> Tensor:
    """H×W: every pixel as the weighted mean of all, weights exp(−d²/2σ²)."""
    height, width = image.shape
    result = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            total = weight = 0.0
            for v in range(height):
                for u in range(width):
                    w = math.exp(-((v - y) ** 2 + (u - x) ** 2) / (2 * sigma**2))
                    total, weight = total + w * image[v, u].item(), weight + w
            result[y, x] = total / weight
    return result


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from((0.3, 1.0, 4.0)))
def test_blur_out_equals_the_loops(seed: int, sigma: float) -> None:
    g = torch.Generator().manual_seed(seed)
    images, regions = torch.rand(2, 1, 5, 6, generator=g), torch.rand(2, 5, 6, generator=g) < 0.4
    got = C.blur_out(images, regions, sigma)
    for b in range(2):
        wanted = torch.where(regions[b], slow_blur(images[b, 0], sigma), images[b, 0])
        torch.testing.assert_close(got[b, 0], wanted)


class TestBlurOut:
    def test_several_regions_an_image(self) -> None:
        images, regions = torch.rand(3, 3, 9, 8), torch.rand(3, 4, 9, 8) < 0.3
        got = C.blur_out(images, regions, 2.0)
        assert got.shape == (3, 4, 3, 9, 8)
        for j in range(4):
            torch.testing.assert_close(got[:, j], C.blur_out(images, regions[:, j], 2.0))

    def test_outside_nothing_changes(self) -> None:
        images, regions = torch.rand(2, 3, 16, 16), torch.rand(2, 16, 16) < 0.5
        got = C.blur_out(images, regions)
        outside = ~regions.unsqueeze(1).expand_as(images)
        assert torch.equal(got[outside], images[outside])
        assert not torch.equal(got, images)

    def test_a_plain_image_stays_as_it_is_and_range_is_kept(self) -> None:
        everywhere = torch.ones(20, 24).bool()
        plain = torch.full((3, 20, 24), 0.3)
        torch.testing.assert_close(C.blur_out(plain, everywhere), plain)
        blurred = C.blur_out((torch.rand(3, 20, 24) > 0.5).float(), everywhere, 1.0)
        assert blurred.min() >= 0
        assert blurred.max() <= 1 + 1e-6

    def test_bytes_are_scaled_as_the_models_do(self) -> None:
        images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
        regions = torch.rand(2, 8, 8) < 0.5
        torch.testing.assert_close(C.blur_out(images, regions, 2.0), C.blur_out(images / 255, regions, 2.0))

    def test_autocast_does_not_reach_it(self) -> None:
        images, regions = torch.rand(2, 3, 8, 8), torch.ones(2, 8, 8).bool()
        wanted = C.blur_out(images, regions, 2.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(C.blur_out(images, regions, 2.0), wanted)


class TestRandomRegions:
    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(st.integers(0, 2**31))
    def test_each_is_a_roll_that_moves(self, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        regions = torch.rand(2, 3, 4, 5, generator=g) < 0.4
        got = C.random_regions(regions, g)
        assert torch.equal(got.sum((-2, -1)), regions.sum((-2, -1)))
        for before, after in zip(regions.flatten(0, 1), got.flatten(0, 1), strict=True):
            rolls = [before.roll((dy, dx), (0, 1)) for dy in range(4) for dx in range(5) if dy or dx]
            assert any(torch.equal(after, roll) for roll in rolls)

    def test_every_place_is_as_likely_and_the_own_one_never(self) -> None:
        regions = torch.zeros(4000, 3, 4).bool()
        regions[:, 1, 2] = True
        places = C.random_regions(regions, generator(0)).float().mean(0)
        assert places[1, 2] == 0
        assert places.sum().item() == pytest.approx(1)
        others = places.flatten()[torch.arange(12) != 6]
        assert (others - 1 / 11).abs().max() < 0.02

    def test_seeded_and_by_image(self) -> None:
        regions = torch.rand(6, 2, 8, 8, generator=generator(1)) < 0.2
        assert torch.equal(C.random_regions(regions, generator(2)), C.random_regions(regions, generator(2)))
        whole = C.random_regions(regions, [generator(3, i) for i in range(6)])
        halves = [C.random_regions(regions[r], [generator(3, i) for i in r]) for r in ([0, 1], [2, 3, 4, 5])]
        assert torch.equal(whole, torch.cat(halves))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(0, 2**31))
def test_faithfulness_equals_the_loops(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    before, blurred, other, alone, nothing = (torch.randint(0, 6, (5, 3), generator=g).float() for _ in range(5))
    measured = torch.rand(5, 3, generator=g) < (0.7 if seed % 5 else 0.02)
    losses = [
        (before[i, j].item() - blurred[i, j].item(), before[i, j].item() - other[i, j].item())
        for i in range(5)
        for j in range(3)
        if measured[i, j]
    ]
    got = C.faithfulness(before, blurred, other, measured, alone, nothing)
    assert C.faithfulness(before, blurred, other, measured).own_share.isnan()
    if not losses:
        assert all(value.isnan() for value in got)
        return
    own, chance = (sum(column) / len(losses) for column in zip(*losses, strict=True))
    wanted = (own, chance, own - chance, own / chance if chance > 0 else math.nan, sum(a > b for a, b in losses))
    for value, number in zip(got[:4], wanted[:4], strict=True):
        assert value.item() == pytest.approx(number, abs=1e-6, nan_ok=True)
    assert got.wins.item() == pytest.approx(wanted[4] / len(losses))
    cases = [(i, j) for i in range(5) for j in range(3) if measured[i, j]]
    carried = sum(alone[case].item() - nothing[case].item() for case in cases)
    whole = sum(before[case].item() - nothing[case].item() for case in cases)
    assert got.own_share.item() == pytest.approx(carried / whole if whole > 0 else math.nan, abs=1e-6, nan_ok=True)


def contrast(images: Tensor, spot: tuple[int, int]) -> Tensor:
    """A model that looks at one pixel: how far it stands out from its neighbours. B×3×H×W → B."""
    y, x = spot
    patch = images[:, 0, y - 2 : y + 3, x - 2 : x + 3]
    return patch[:, 2, 2] - patch.mean((-2, -1))


@pytest.mark.parametrize("honest", [True, False])
def test_it_tells_shown_evidence_from_shown_elsewhere(honest: bool) -> None:
    """The score comes from a bright pixel; the map points to it, or (a dishonest explanation) to another place."""
    images = torch.zeros(40, 3, 32, 32)
    images[:, :, 8, 20] = 1.0
    maps = torch.zeros(40, 1, 32, 32)
    maps[:, :, 8 if honest else 28, 20 if honest else 4] = 1.0
    maps = torch.nn.functional.avg_pool2d(maps, 7, 1, 3) + 0.1 * maps
    regions = F.activation_regions(maps + 1e-3 * torch.rand(maps.shape, generator=generator(1)), None).squeeze(1)
    chance = C.random_regions(regions, generator(0))
    scores = [contrast(x, (8, 20)) for x in (images, C.blur_out(images, regions), C.blur_out(images, chance))]
    loss = C.faithfulness(scores[0], scores[1], scores[2])
    if honest:
        assert loss.region > 0.9
        assert loss.random < 0.3
        assert loss.wins > 0.8
    else:
        assert loss.region < 1e-3
        assert loss.wins < 0.2


def test_own_pixels_carry_all_of_a_local_score_and_little_of_a_global_one() -> None:
    """One model looks at a pixel within the region, the other at the contrast of the whole image."""
    images = torch.rand(20, 3, 32, 32, generator=generator(5))
    images[:, :, 8, 20] = 1.0
    region = torch.zeros(20, 32, 32).bool()
    region[:, 4:13, 16:25] = True
    everything = torch.ones_like(region)
    variants = [images, *(C.blur_out(images, hidden) for hidden in (region, region, ~region, everything))]
    shares = []
    for score in (lambda x: contrast(x, (8, 20)), lambda x: x.flatten(1).std(1)):
        before, blurred, random, alone, nothing = (score(each) for each in variants)
        shares.append(C.faithfulness(before, blurred, random, None, alone, nothing).own_share.item())
    local, spread = shares
    assert local == pytest.approx(1, abs=1e-4)  # the window of the score lies within the region
    assert 0 < spread < 0.3  # the region is 8 % of the image


def test_half_of_what_own_share_needs_is_refused() -> None:
    scores = torch.rand(3)
    with pytest.raises(DaplError, match="belong together"):
        C.faithfulness(scores, scores, scores, None, scores)
