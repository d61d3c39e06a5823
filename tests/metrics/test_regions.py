"""Regions: the last bits of a map decide nothing; the pixels that sets share are counted in two ways, both the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.functional.regions import FLAT, TIE, shared_pixels

NOISE = 2e-6
"""Of the largest value: what maps of one model differ by between batch sizes, seen on several processors."""


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
    """The same plateaus, cut at the percentile to the bit: the regions are noise."""
    noisy = with_noise(maps("plateaus"), NOISE).flatten(2)
    threshold = noisy.sort(-1).values[..., 243:244]
    assert (noisy >= threshold).sum(-1).lt(20).all()  # some of a plateau of fifty
    assert (F.activation_regions(maps("plateaus"))).flatten(2).sum(-1).gt(30).all()


@pytest.mark.parametrize("noise", [1e-7, 1e-6, 1e-4, 1e-2])
def test_only_pixels_at_the_threshold_can_change(noise: float) -> None:
    """True by construction: order statistic and largest value move by no more than the map does."""
    plain = maps("any")
    noisy = with_noise(plain, noise)
    largest = plain.abs().amax((-2, -1), keepdim=True)
    threshold = plain.flatten(-2).sort(-1).values[..., 243, None, None] - TIE * largest
    changed = F.activation_regions(plain) != F.activation_regions(noisy)
    near = (plain - threshold).abs() <= (2 + TIE) * noise * largest + 1e-6
    assert (near | ~changed).all()


def test_a_map_that_varies_by_rounding_is_flat() -> None:
    """A model whose patches are all alike: 8.9 everywhere, and what is left is noise."""
    flat = with_noise(torch.full((20, 1, 4, 4), 8.9), 1e-5)
    assert F.activation_regions(flat, 64).all()
    assert (F.peaks(flat, 64) == 0).all()
    bump = torch.full((1, 1, 4, 4), 8.9)
    bump[..., 1, 2] += 3 * FLAT * 8.9
    assert F.activation_regions(bump, 64).float().mean() < 0.1


def test_single_and_double_precision_make_the_same_regions() -> None:
    single = torch.nn.functional.avg_pool2d(maps("any", 200), 2)
    found, exact = F.activation_regions(single, 96), F.activation_regions(single.double(), 96)
    differs = (found != exact).flatten(1).sum(1)
    assert differs.max() <= 1  # one pixel that lies at the threshold to seven digits
    assert differs.sum() <= 4


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
