"""One prototype for one part: matchings, islands and part identity against loops written from their definitions."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics import functional as F
from dapl.metrics.classes import IslandsPerRegion, OneToOneCoverage, PartIdentity, PartsPerPrototype


def random_flags(*shape: int, seed: int, share: float = 0.4) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def best_matching(table: Tensor) -> float:
    """The largest sum over all ways to give the rows different columns; table P×K, P ≤ K."""
    rows = range(len(table))
    return max(sum(float(table[j, k]) for j, k in zip(rows, ks, strict=True)) for ks in permutations(range(5), 4))


def test_one_to_one_coverage_against_all_matchings() -> None:
    assigned = random_flags(20, 4, 5, seed=0)
    visible, kept = random_flags(20, 5, seed=1, share=0.8), random_flags(20, 4, seed=2, share=0.8)
    visible[0] = False
    found = F.one_to_one_coverage(assigned, visible, kept)
    parts = F.parts_per_prototype(assigned, visible, kept)
    assert found[0].isnan()
    assert parts[0].isnan()
    for image in range(1, 20):
        edges = assigned[image] & visible[image] & kept[image].unsqueeze(1)
        prototypes, seen = int(kept[image].sum()), int(visible[image].sum())
        assert float(found[image]) == pytest.approx(2 * best_matching(edges.float()) / (prototypes + seen))
        assert float(parts[image]) == pytest.approx(int(edges.sum()) / prototypes)


def test_one_region_on_all_parts_counts_once() -> None:
    everywhere = torch.ones(10, 12, dtype=torch.bool)
    everywhere[1:] = False
    assert F.coverage(everywhere) == pytest.approx(2 * 0.1 / 1.1)
    assert F.one_to_one_coverage(everywhere) == pytest.approx(2 / 22)
    assert F.one_to_one_coverage(torch.ones(10, 12, dtype=torch.bool)) == pytest.approx(20 / 22)


@pytest.mark.parametrize("scope", ["image", "dataset"])
def test_classes_add_up_batches(scope) -> None:
    assigned, visible = random_flags(6, 3, 4, seed=3), random_flags(6, 4, seed=4, share=0.7)
    regions = random_flags(6, 3, 5, 5, seed=5)
    matched, parts, islands = OneToOneCoverage(scope), PartsPerPrototype(scope), IslandsPerRegion(scope)
    for rows in (slice(0, 2), slice(2, 6)):
        matched.update(assigned[rows], visible[rows])
        parts.update(assigned[rows], visible[rows])
        islands.update(regions[rows])
    if scope == "image":
        assert matched.compute() == pytest.approx(float(F.one_to_one_coverage(assigned, visible).nanmean()))
        assert parts.compute() == pytest.approx(float(F.parts_per_prototype(assigned, visible).nanmean()))
    else:
        counts = F.matched_counts(assigned, visible).sum(0)
        assert matched.compute() == pytest.approx(float(2 * counts[0] / (counts[1] + counts[2])))
        seen = visible.any(1).sum()
        assert parts.compute() == pytest.approx(float((assigned & visible.unsqueeze(1)).sum() / (3 * seen)))
    assert islands.compute() == pytest.approx(float(F.islands(regions).number.float().mean()))  # none is empty


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("side", [(1, 1), (5, 9), (16, 3)])
def test_islands_against_labelling(side: tuple[int, int], share: float) -> None:
    regions = random_flags(2, 15, *side, seed=7, share=share)
    found = F.islands(regions)
    for region, number, largest in zip(
        regions.flatten(0, 1), found.number.flatten(), found.largest.flatten(0, 1), strict=True
    ):
        labels, count = ndimage.label(region.numpy(), structure=np.ones((3, 3)))
        assert int(number) == count
        sizes = np.bincount(labels.ravel(), minlength=count + 1)[1:]
        # Labels are in row-major order, so the first of the largest is the first in that order too.
        wanted = labels == sizes.argmax() + 1 if count else np.zeros(side, bool)
        assert np.array_equal(largest.numpy(), wanted)


IMAGES, CLASSES, P, K = 40, 3, 4, 5


@pytest.fixture
def hits() -> tuple[Tensor, Tensor, Tensor]:
    """Hits n×P×K, visible n×K, labels n; class 0 has no image, and part 4 is never seen in class 1."""
    visible = random_flags(IMAGES, K, seed=1, share=0.7)
    labels = 1 + torch.arange(IMAGES) % 2
    visible[labels == 1, 4] = False
    return random_flags(IMAGES, P, K, seed=0, share=0.3) & visible.unsqueeze(1), visible, labels


def slow_identity(hits: Tensor, visible: Tensor, labels: Tensor, kept: Tensor) -> float:
    """kept: bool C×P."""
    values = []
    for label in labels.unique().tolist():
        images = [i for i in range(len(labels)) if labels[i] == label]
        table = torch.zeros(P, K)
        for j in range(P):
            for k in range(K):
                shown = [i for i in images if visible[i, k]]
                if shown and kept[label, j]:
                    table[j, k] = sum(bool(hits[i, j, k]) for i in shown) / len(shown)
        seen = sum(any(bool(visible[i, k]) for i in images) for k in range(K))
        values.append(best_matching(table) / min(int(kept[label].sum()), seen))
    return sum(values) / len(values)


def test_part_identity_against_a_loop(hits: tuple[Tensor, Tensor, Tensor]) -> None:
    flags, visible, labels = hits
    kept = torch.ones(CLASSES, P, dtype=torch.bool)
    kept[1, 2] = False
    found = F.part_identity(*F.identity_counts(flags, visible, labels, CLASSES), kept)
    assert float(found) == pytest.approx(slow_identity(flags, visible, labels, kept))
    metric = PartIdentity(CLASSES, P, K)
    for rows in (slice(0, 7), slice(7, IMAGES)):
        metric.update(flags[rows], visible[rows], labels[rows], kept[labels[rows]])
    assert float(metric.compute()) == pytest.approx(float(found))


def test_an_oracle_has_identity_one_and_renamed_its_null(hits: tuple[Tensor, Tensor, Tensor]) -> None:
    """Prototype j on part j wherever that is seen; renamed in each image, its share on each part is about 1/P."""
    _, visible, labels = hits
    oracle = torch.eye(P, K).bool() & visible.unsqueeze(1)
    assert F.part_identity(*F.identity_counts(oracle, visible, labels, CLASSES)) == 1
    each = [torch.Generator().manual_seed(seed) for seed in range(IMAGES)]
    shuffled = F.renamed(oracle, each)
    null = float(F.part_identity(*F.identity_counts(shuffled, visible, labels, CLASSES)))
    again = F.renamed(shuffled, torch.Generator().manual_seed(5))
    assert 1 / P < null < 0.6  # the best of 24 matchings of 20 images: above 1/4, far from 1
    # Renaming what is renamed already changes nothing but noise: 20 images per share, whose deviation is about 0.1.
    assert float(F.part_identity(*F.identity_counts(again, visible, labels, CLASSES))) == pytest.approx(null, abs=0.1)


def test_renaming_leaves_what_lies_where_and_pruned_prototypes_alone(hits: tuple[Tensor, Tensor, Tensor]) -> None:
    flags, _, _ = hits
    kept = random_flags(IMAGES, P, seed=8, share=0.7)
    each = [torch.Generator().manual_seed(seed) for seed in range(IMAGES)]
    found = F.renamed(flags, each, kept)
    assert torch.equal(found.sum(1), flags.sum(1))
    assert torch.equal(found[~kept], flags[~kept])
    assert not torch.equal(found, flags)
    alone = F.renamed(flags[5:6], [torch.Generator().manual_seed(5)], kept[5:6])
    assert torch.equal(found[5:6], alone), "an image's draw depends on that image alone"


def test_the_parts_that_hold_a_peak() -> None:
    maps = torch.zeros(1, 3, 4, 4)
    maps[0, 0, 1, 2] = 1.0
    maps[0, 1, 3, 0] = 1.0  # the third is flat
    parts = torch.zeros(1, 3, 32, 32, dtype=torch.bool)
    parts[0, 0, 8:16, 16:24] = True
    parts[0, 1, 24:, :8] = True
    parts[0, 2] = True
    found = F.peak_parts(maps, parts, torch.tensor([[True, True, False]]))
    assert found.tolist() == [[[True, False, False], [False, True, False], [False, False, False]]]


def test_bad_counts_are_refused(hits: tuple[Tensor, Tensor, Tensor]) -> None:
    flags, visible, labels = hits
    with pytest.raises(DaplError, match="do not describe the same images and parts"):
        F.identity_counts(flags, visible[:, :3], labels, CLASSES)
    with pytest.raises(DaplError, match="made for 9 parts"):
        PartIdentity(CLASSES, P, 9).update(flags, visible, labels)
