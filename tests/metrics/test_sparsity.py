"""Sparsity and the size of explanations against loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapl.metrics import functional as C


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
