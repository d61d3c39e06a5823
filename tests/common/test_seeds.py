"""Seeds as a function of the position."""

from __future__ import annotations

import itertools

import torch

from dapl.common.seeds import derive_seed, generator


def test_stable() -> None:
    """These may never change: a run resumed with another version would go on with other numbers."""
    assert derive_seed(0, "order", 1, 2) == 1046558010937469445
    assert torch.randperm(6, generator=generator(0, "order", 1, 2)).tolist() == [4, 3, 5, 0, 1, 2]


def test_differ_by_position() -> None:
    positions = list(itertools.product((0, 1, 12), ("order", "negatives"), range(12), range(12)))
    seeds = {derive_seed(*position) for position in positions}
    assert len(seeds) == len(positions)
    assert all(0 <= seed < 2**63 for seed in seeds)  # as a generator wants them
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(0, 1) != derive_seed(1, 0)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, again = (torch.rand(4, generator=generator(3, "x")) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
