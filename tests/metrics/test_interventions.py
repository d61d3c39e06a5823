"""The scores of explanations against interventions, each against a slow loop over its definition."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
import torch

from dapl.common.errors import DaplError
from dapl.metrics import functional as F

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=GENERATOR, dtype=torch.float64)


def flags(*shape: int, share: float = 0.5) -> torch.Tensor:
    return random(*shape) < share


def test_importance_is_the_sum_over_the_pixels_of_each_piece():
    relevance = random(2, 5, 6) - 0.3
    numbers = torch.randint(4, (2, 5, 6), generator=GENERATOR)
    masks = torch.stack([numbers == piece for piece in range(3)], dim=1)
    found = F.part_importance(relevance, masks)
    for image in range(2):
        for piece in range(4):  # the last is the rest
            pixels = (numbers[image] == piece).nonzero().tolist()
            assert found[image, piece] == pytest.approx(sum(float(relevance[image, y, x]) for y, x in pixels))
    assert torch.allclose(found.sum(-1), relevance.sum((1, 2)))


def test_masks_that_overlap_are_refused():
    with pytest.raises(DaplError, match="masks overlap"):
        F.part_importance(torch.ones(2, 2), torch.ones(2, 2, 2, dtype=torch.bool))


def test_a_piece_is_important_above_its_share_of_all_positive_relevance():
    importance, thresholds = random(3, 6) - 0.4, torch.tensor([0.01, 0.1, 0.3], dtype=torch.float64)
    found = F.important_pieces(importance, thresholds)
    for image, row in enumerate(importance.tolist()):
        whole = sum(max(value, 0.0) for value in row)
        for place, threshold in enumerate(thresholds.tolist()):
            assert found[image, place].tolist() == [value > threshold * whole for value in row]


def subsets(parts: list[int]) -> list[frozenset[int]]:
    return [frozenset(one) for one in chain.from_iterable(combinations(parts, n) for n in range(1, len(parts) + 1))]


@pytest.mark.parametrize("seed", range(4))
def test_sufficient_sets_are_all_minimal_ones(seed):
    generator = torch.Generator().manual_seed(seed)
    looks = torch.randint(3, (5, 5), generator=generator)
    visible = torch.rand(5, generator=generator) < 0.8
    parts = [part for part in range(5) if visible[part]]
    for label in range(5):
        others = [row for row in range(5) if row != label]
        enough = [
            one
            for one in subsets(parts)
            if all(any(looks[other, part] != looks[label, part] for part in one) for other in others)
        ]
        minimal = {one for one in enough if not any(other < one for other in enough)}
        found = F.sufficient_sets(looks, label, visible)
        assert {frozenset(row.nonzero().flatten().tolist()) for row in found} == minimal
        assert found.shape == (len(minimal), 5)


def test_controlled_data_check_is_the_best_share_of_a_sufficient_set():
    important, sufficient = flags(6, 5), torch.tensor([[1, 1, 0, 0, 1], [0, 0, 1, 1, 0], [0, 1, 0, 0, 0]]).bool()
    found = F.controlled_data_check(important, sufficient)
    for row, value in zip(important.tolist(), found.tolist(), strict=True):
        shares = [
            sum(named and wanted for named, wanted in zip(row, one, strict=True)) / sum(one)
            for one in sufficient.tolist()
        ]
        assert value == pytest.approx(max(shares))
    assert F.controlled_data_check(important, sufficient[:0]).isnan().all()


def test_single_deletion_is_spearmans_correlation_of_the_visible_parts():
    from scipy.stats import spearmanr

    importance = torch.randint(4, (20, 7), generator=GENERATOR).double()  # with ties
    drops, visible = torch.randint(-2, 3, (20, 7), generator=GENERATOR).double(), flags(20, 7, share=0.8)
    found = F.single_deletion(importance, drops, visible)
    compared = 0
    for row in range(20):
        seen = visible[row]
        first, second = importance[row, seen], drops[row, seen]
        if len(first.unique()) < 2 or len(second.unique()) < 2:
            assert found[row].isnan()
            continue
        compared += 1
        assert float(found[row]) == pytest.approx((1 + spearmanr(first, second).statistic) / 2)
    assert compared > 10


def test_distractibility_counts_what_does_not_matter():
    important, drops, worth = flags(8, 6), random(8, 6) - 0.3, random(8)
    irrelevant = F.irrelevant_pieces(drops, worth, share=0.4)
    found = F.distractibility(important, irrelevant)
    for row in range(8):
        useless = {k for k in range(6) if float(drops[row, k]) < 0.4 * abs(float(worth[row]))}
        named = {k for k in range(6) if important[row, k]}
        assert float(found[row]) == pytest.approx(1 - len(useless & named) / len(useless))
    assert F.distractibility(important[0], torch.zeros(6, dtype=torch.bool)).isnan()


def test_target_sensitivity_compares_two_classes_on_the_parts_of_each():
    first, second = random(10, 5), random(10, 5)
    of_first = flags(10, 5)
    of_second = flags(10, 5) & ~of_first
    found = F.target_sensitivity(first, second, of_first, of_second)
    for row in range(10):
        a, b = of_first[row].nonzero().flatten().tolist(), of_second[row].nonzero().flatten().tolist()
        total = (sum(first[row, k] for k in a) > sum(second[row, k] for k in a)) if a else False
        other = (sum(second[row, k] for k in b) > sum(first[row, k] for k in b)) if b else False
        assert float(found[row]) == (bool(total) + bool(other)) / 2
    assert F.target_sensitivity(first, first, of_first, of_second).eq(0).all()  # the same for every class


def test_background_independence_is_the_share_of_things_that_can_go():
    drops, worth, visible = torch.tensor([0.6, 0.1, -3.0, 9.0]), torch.tensor(-10.0), torch.tensor([1, 1, 1, 0]).bool()
    assert float(F.background_independence(drops, worth, visible)) == pytest.approx(2 / 3)
    assert F.background_independence(drops, worth, ~visible & visible).isnan()


def test_completeness_weighs_three_checks_as_much_as_distractibility():
    csdc, pc, dc, d = random(4, 3)
    assert torch.allclose(F.completeness(csdc, pc, dc, d), 0.5 * ((csdc + pc + dc) / 3 + d))
    with pytest.raises(DaplError, match="one shape"):
        F.completeness(csdc, pc, dc, d[:2])
