"""Pixels that sets share are counted in two ways, by bits and by a matrix product: both give the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dapl.metrics.functional.regions import shared_pixels

pytestmark = pytest.mark.skipif(not hasattr(np, "bitwise_count"), reason="numpy before 2.0 counts no bits")


def random_sets(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.6


@pytest.mark.parametrize("side", [(1, 1), (7, 9), (8, 8), (13, 64)])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (0,)])
def test_bits_and_products_agree(side: tuple[int, int], leading: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
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
