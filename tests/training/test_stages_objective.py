"""The total loss: which terms, over which prototypes, with which weights; and the draw of negatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.batches.sources import Batch
from dapl.common.seeds import generator
from dapl.config import LossConfig
from dapl.models.dapl import Dapl
from dapl.training import losses
from dapl.training.stages import Objective, draw_negatives

B, C, N, D1, CHANNELS, SIDE = 3, 4, 3, 5, 6, 4
LABELS = torch.tensor([0, 3, 2])
EVERYTHING = {
    "cluster": 0.7,
    "separation": 0.3,
    "contrast": {"weight": 0.6, "margin": 0.9, "negatives": 5},
    "foreground": {"weight": 2.0, "threshold": 0.2},
    "spatial": {"weight": 1.5, "sharpness": 3.0},
}


class Doubling(nn.Module):
    """A backbone that is easy to see through: B×3×4×4 uint8 → B×6×4×4."""

    channels = CHANNELS

    def forward(self, images: Tensor) -> Tensor:
        return images.float().repeat(1, 2, 1, 1) / 255


def make_objective(heads: int = N, **weights: Any) -> Objective:
    torch.manual_seed(0)
    model = Dapl(Doubling(), C, heads, D1)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in (*model.attention.parameters(), *model.addon.parameters()):
            parameter.mul_(4)
    return Objective(model, LossConfig.model_validate(weights))


@pytest.fixture
def batch() -> Batch:
    random = torch.Generator().manual_seed(1)
    features = torch.rand(B, CHANNELS, SIDE, SIDE, generator=random)
    masks = (torch.rand(B, 4 * SIDE, 4 * SIDE, generator=random) > 0.6).to(torch.uint8)
    masks[0] = 0
    return Batch(torch.arange(B), LABELS, features=features, masks=masks)


def grid_share(masks: Tensor) -> Tensor:
    """Share of foreground pixels in each 4×4 cell."""
    result = torch.empty(B, SIDE, SIDE)
    for y in range(SIDE):
        for x in range(SIDE):
            result[:, y, x] = masks[:, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4].float().mean((1, 2))
    return result


@pytest.mark.parametrize("positives", ["class", "all"])
@pytest.mark.parametrize("over", ["class", "all"])
def test_total_is_the_weighted_sum(positives: str, over: str, batch: Batch) -> None:
    weights: dict[str, Any] = {**EVERYTHING, "contrast": {**EVERYTHING["contrast"], "positives": positives}}
    weights["foreground"] = {**EVERYTHING["foreground"], "over": over}
    objective = make_objective(**weights)
    terms = objective(batch, objective.draw_negatives(generator(0)))
    assert set(terms) == {"total", "cross_entropy", "accuracy", *EVERYTHING}
    assert all(terms[name] > 0 for name in terms if name != "accuracy")
    expected = (
        terms["cross_entropy"]
        + 0.7 * terms["cluster"]
        - 0.3 * terms["separation"]
        + 0.6 * terms["contrast"]
        + 2.0 * terms["foreground"]
        + 1.5 * terms["spatial"]
    )
    assert_close(terms["total"], expected)
    terms["total"].backward()
    for name, part in objective.model.components().items():
        assert all(p.grad is not None and p.grad.isfinite().all() for p in part.parameters()), name


def test_the_paper_s_defaults(batch: Batch) -> None:
    objective = make_objective()
    terms = objective(batch, objective.draw_negatives(generator(0)))
    expected = terms["cross_entropy"] + 0.8 * terms["cluster"] - 0.08 * terms["separation"] + 0.5 * terms["contrast"]
    assert_close(terms["total"], expected)


@torch.no_grad()
def test_plain_terms(batch: Batch) -> None:
    objective = make_objective(contrast={"weight": 0})
    output = objective.model.from_features(batch.features)
    terms = objective(batch, None)
    membership = objective.model.prototypes.membership
    assert_close(terms["cross_entropy"], losses.cross_entropy(output.logits, LABELS))
    assert_close(terms["cluster"], losses.cluster(output.distances, membership, LABELS))
    assert_close(terms["separation"], losses.separation(output.distances, membership, LABELS))
    every = make_objective(contrast={"weight": 0}, cluster_of="all")(batch, None)
    assert_close(every["cluster"], losses.cluster_all(output.distances, membership, LABELS))
    assert every["cluster"] > terms["cluster"]
    right = sum(output.logits[x].argmax() == LABELS[x] for x in range(B))
    assert terms["accuracy"].item() == pytest.approx(right / B)


@torch.no_grad()
@pytest.mark.parametrize("positives", ["class", "all"])
def test_contrastive_by_loop(positives: str, batch: Batch) -> None:
    objective = make_objective(contrast={"weight": 1, "margin": 0.9, "negatives": 5, "positives": positives})
    negatives = objective.draw_negatives(generator(0))
    assert negatives is not None
    prototypes = objective.model.prototypes
    embedding = objective.model.from_features(batch.features).embedding.values

    def score(image: int, head: int, j: int) -> float:
        distances = (embedding[image, head] - prototypes.vectors[j].view(-1, 1, 1)).square().sum(0)
        return ((distances + 1) / (distances + 1e-4)).log().max().item()

    values = []
    for x, label in enumerate(LABELS.tolist()):
        for h in range(N):
            for c in [label] if positives == "class" else range(C):
                for k in negatives[h].tolist():
                    values.append(max(0.0, 0.9 - score(x, h, c * N + h) + score(x, h, k)))
    expected = sum(values) / len(values)
    assert objective(batch, negatives)["contrast"].item() == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("over", ["class", "all"])
def test_foreground_by_loop(over: str, batch: Batch) -> None:
    objective = make_objective(contrast={"weight": 0}, foreground={"weight": 1, "threshold": 0.3, "over": over})
    assert batch.masks is not None
    maps, shares = objective.model.maps(objective.model.embed(batch.features)), grid_share(batch.masks)
    values = []
    for x, label in enumerate(LABELS.tolist()):
        for j in range(C * N):
            if over == "all" or j // N == label:
                bias = ((1 - shares[x]) * maps[x, j]).sum() / maps[x, j].sum()
                values.append(max(0.0, bias.item() - 0.3))
    expected = sum(values) / len(values)
    assert objective(batch, None)["foreground"].item() == pytest.approx(expected, rel=1e-4)
    on_the_grid = Batch(batch.indices, batch.labels, features=batch.features, masks=shares)
    assert objective(on_the_grid, None)["foreground"].item() == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_spatial_takes_the_maps_of_the_image_s_class(batch: Batch) -> None:
    objective = make_objective(contrast={"weight": 0}, spatial={"weight": 1, "sharpness": 3})
    maps = objective.model.maps(objective.model.embed(batch.features))
    own = torch.stack([maps[x, label * N : (label + 1) * N] for x, label in enumerate(LABELS.tolist())])
    assert_close(objective(batch, None)["spatial"], losses.spatial_overlap(own, 3), rtol=1e-4, atol=1e-5)


def test_terms_without_weight_or_masks_are_absent(batch: Batch) -> None:
    objective = make_objective(contrast={"weight": 0})
    assert objective.draw_negatives(generator(0)) is None
    assert set(objective(batch, None)) == {"total", "cross_entropy", "cluster", "separation", "accuracy"}
    with_foreground = make_objective(foreground={"weight": 1})
    assert "foreground" in with_foreground(batch, None)
    assert "foreground" not in with_foreground(Batch(batch.indices, batch.labels, features=batch.features), None)


def test_a_single_head_has_no_negatives(batch: Batch) -> None:
    objective = make_objective(heads=1, spatial={"weight": 1})
    negatives = objective.draw_negatives(generator(0))
    assert negatives is None
    terms = objective(batch, negatives)
    assert "contrast" not in terms
    assert terms["total"].isfinite()


@torch.no_grad()
def test_pruned_prototypes_are_neither_near_nor_far(batch: Batch) -> None:
    objective = make_objective(contrast={"weight": 0})
    prototypes = objective.model.prototypes
    distances = objective.model.from_features(batch.features).distances
    nearest_own = int(distances[0, :N].argmin())
    nearest_other = N + int(distances[0, N:].argmin())
    prototypes.kept[[nearest_own, nearest_other]] = False
    first = Batch(batch.indices[:1], batch.labels[:1], features=batch.features[:1])  # type: ignore[index]
    terms = objective(first, None)
    kept = [j for j in range(C * N) if prototypes.kept[j]]
    assert_close(terms["cluster"], min(distances[0, j] for j in kept if j < N))
    assert_close(terms["separation"], min(distances[0, j] for j in kept if j >= N))
    assert terms["cluster"] > distances[0, :N].min()
    assert terms["separation"] > distances[0, N:].min()


@torch.no_grad()
def test_pruned_prototypes_count_in_no_term(batch: Batch) -> None:
    """Wherever they lie, and though they would be drawn as negatives, every term is that of the others."""
    objective = make_objective(**EVERYTHING | {"contrast": {"weight": 0.6, "negatives": 64, "positives": "all"}})
    prototypes = objective.model.prototypes
    pruned = [0, N + 1, 2 * N]
    prototypes.kept[pruned] = False
    negatives = objective.draw_negatives(generator(0))
    assert negatives is not None
    assert not set(pruned) & set(negatives.flatten().tolist())
    expected = objective(batch, negatives)
    assert {"contrast", "foreground", "spatial"} <= set(expected)
    for value in (0.0, 0.5, 40.0):
        prototypes.vectors[pruned] = value
        found = objective(batch, objective.draw_negatives(generator(0)))
        for name, term in expected.items():
            assert_close(found[name], term)


def test_without_a_prototype_of_another_head_there_are_no_negatives() -> None:
    objective = make_objective()
    objective.model.prototypes.kept.copy_(objective.model.prototypes.group_of == 0)
    assert objective.draw_negatives(generator(0)) is None


@torch.no_grad()
def test_images_and_their_features_cost_the_same() -> None:
    objective = make_objective()
    images = torch.randint(0, 256, (B, 3, SIDE, SIDE), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    negatives = objective.draw_negatives(generator(0))
    from_images = objective(Batch(torch.arange(B), LABELS, images=images), negatives)
    features = objective.model.backbone(images)
    from_features = objective(Batch(torch.arange(B), LABELS, features=features), negatives)
    assert_close(from_images["total"], from_features["total"])


@pytest.mark.parametrize(
    ("count", "groups", "number"), [(12, 3, 5), (12, 3, 8), (12, 3, 64), (2000, 10, 64), (4, 2, 1)]
)
def test_draw_negatives(count: int, groups: int, number: int) -> None:
    drawn = draw_negatives(torch.ones(count, dtype=torch.bool), groups, number, generator(0))
    others = count - count // groups
    assert drawn.shape == (groups, min(number, others))
    assert drawn.dtype == torch.long
    for group, row in enumerate(drawn.tolist()):
        assert len(set(row)) == len(row)
        assert all(0 <= j < count and j % groups != group for j in row)


def test_draw_negatives_is_seeded() -> None:
    first, again, other = (
        draw_negatives(torch.ones(120, dtype=torch.bool), 6, 10, generator(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_negative_is_as_likely_as_another() -> None:
    """3 of the 8 prototypes that are not of a head's own, 2,000 times: each about 750 times."""
    random = generator(0)
    counts = torch.zeros(3, 12)
    for _ in range(2000):
        counts.scatter_add_(1, draw_negatives(torch.ones(12, dtype=torch.bool), 3, 3, random), torch.ones(3, 3))
    for group in range(3):
        others = counts[group][torch.arange(12) % 3 != group]
        assert others.min() > 650  # five standard deviations
        assert others.max() < 860
