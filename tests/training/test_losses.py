"""Every term against a loop written from the paper, where it must not go wrong, and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.models.prototypes import log_similarity
from dapl.training import losses

B, C, N, H, W = 5, 4, 3, 3, 4
P = C * N
LABELS = torch.tensor([0, 3, 1, 3, 2])
MEMBERSHIP = torch.eye(C).bool().repeat_interleave(N, 0)


@pytest.fixture
def distances() -> Tensor:
    return 4 * torch.rand(B, P, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def maps() -> Tensor:
    """B×N×H×W activation maps."""
    return 9 * torch.rand(B, N, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def masks() -> Tensor:
    """Soft, as the area average of a mask is, with cells wholly in and wholly out."""
    random = torch.rand(B, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return (2 * random - 0.5).clamp(0, 1)


def slow_nearest(distances: Tensor, own: bool) -> float:
    """(1/n) Σ_x min over prototypes that are (not) of x's class, as ProtoPNet's cluster and separation costs."""
    total = 0.0
    for image, label in enumerate(LABELS.tolist()):
        total += min(distances[image, j].item() for j in range(P) if (j // N == label) == own)
    return total / B


def slow_bias(activations: Tensor, mask: Tensor) -> float:
    """Equation 5 for one prototype and image."""
    background = everything = 0.0
    for y in range(H):
        for x in range(W):
            background += (1 - mask[y, x].item()) * activations[y, x].item()
            everything += activations[y, x].item()
    return background / everything


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(loss, of)
    return result


# --- cross-entropy, cluster, separation, L1 ---------------------------------------------------------------------


def test_cross_entropy() -> None:
    logits = torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    total = 0.0
    for image, label in enumerate(LABELS.tolist()):
        exponentials = [math.exp(value) for value in logits[image].tolist()]
        total -= math.log(exponentials[label] / sum(exponentials))
    assert losses.cross_entropy(logits, LABELS).item() == pytest.approx(total / B)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_cluster_and_separation(scale: float, distances: Tensor) -> None:
    """Distances beyond 128 too, where ProtoPNet's 128 − max((128 − d)·mask) would answer 128."""
    distances = distances * scale
    assert losses.cluster(distances, MEMBERSHIP, LABELS).item() == pytest.approx(slow_nearest(distances, own=True))
    assert losses.separation(distances, MEMBERSHIP, LABELS).item() == pytest.approx(slow_nearest(distances, own=False))


def test_prototypes_of_several_classes(distances: Tensor) -> None:
    """As ProtoPShare's merging leaves them."""
    shared = MEMBERSHIP.clone()
    shared[4, 0] = True
    distances[0, 4] = -1.0
    assert losses.cluster(distances[:1], shared, LABELS[:1]) == -1
    assert losses.separation(distances[:1], shared, LABELS[:1]) > -1


def test_one_class_only() -> None:
    distances = torch.rand(2, N, requires_grad=True)
    only, labels = torch.ones(N, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.long)
    assert losses.separation(distances, only, labels) == 0
    assert not gradient(losses.separation(distances, only, labels), distances).any()
    assert_close(losses.cluster(distances, only, labels), distances.amin(1).mean())


def test_images_without_a_prototype_do_not_count(distances: Tensor) -> None:
    """Pruned prototypes come as infinitely far; a class may have lost all but those of other classes."""
    distances = distances.masked_fill(MEMBERSHIP[:, 3], torch.inf).requires_grad_()
    expected = sum(distances[x, MEMBERSHIP[:, LABELS[x]]].min() for x in (0, 2, 4)) / 3
    loss = losses.cluster(distances, MEMBERSHIP, LABELS)
    assert_close(loss, expected)
    assert gradient(loss, distances).isfinite().all()


def test_cluster_of_all_prototypes_of_the_class(distances: Tensor) -> None:
    total = 0.0
    for image, label in enumerate(LABELS.tolist()):
        total += sum(distances[image, j].item() for j in range(P) if j // N == label) / N
    assert losses.cluster_all(distances, MEMBERSHIP, LABELS).item() == pytest.approx(total / B)

    removed = distances.clone()
    removed[:, 0] = torch.inf  # of class 0: the others of its class still count
    left = [removed[x, j] for x, label in enumerate(LABELS.tolist()) for j in range(1, P) if j // N == label]
    removed.requires_grad_()
    loss = losses.cluster_all(removed, MEMBERSHIP, LABELS)
    assert_close(loss, sum(left) / len(left))
    flow = gradient(loss, removed)
    assert flow.isfinite().all()
    assert not flow[:, 0].any()
    assert torch.equal(flow[:, 1:] != 0, MEMBERSHIP.T[LABELS][:, 1:])
    nothing = torch.full_like(distances, torch.inf)
    assert losses.cluster_all(nothing, MEMBERSHIP, LABELS) == 0


def test_gradients_of_cluster_and_separation(distances: Tensor) -> None:
    distances.requires_grad_()
    for term in (losses.cluster, losses.cluster_all, losses.separation):
        assert torch.autograd.gradcheck(lambda d, term=term: term(d, MEMBERSHIP, LABELS), distances)
    flow = gradient(losses.cluster(distances, MEMBERSHIP, LABELS), distances)
    assert (flow != 0).sum(1).tolist() == [1] * B  # through the nearest one only
    assert_close(flow.sum(1), torch.full((B,), 1 / B, dtype=torch.float64))


def test_l1() -> None:
    weights = torch.tensor([[1.0, -2.0], [0.0, 0.5]], requires_grad=True)
    assert losses.l1(weights) == 3.5
    assert gradient(losses.l1(weights), weights).tolist() == [[1, -1], [0, 1]]


# --- contrastive ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, C])
@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_contrastive_is_equation_3_as_a_mean(count: int, margin: float) -> None:
    """One positive a head (the image's class) or all of P_h."""
    generator = torch.Generator().manual_seed(4)
    positives = 3 * torch.rand(B, N, count, dtype=torch.float64, generator=generator)
    negatives = 3 * torch.rand(B, N, 7, dtype=torch.float64, generator=generator)
    values = []
    for x in range(B):
        for h in range(N):
            for i in range(count):
                for k in range(7):
                    values.append(max(0.0, margin - positives[x, h, i].item() + negatives[x, h, k].item()))
    assert 0 < sum(value == 0 for value in values) < len(values)
    expected = sum(values) / len(values)
    assert losses.contrastive(positives, negatives, margin).item() == pytest.approx(expected)
    inputs = (positives.requires_grad_(), negatives.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: losses.contrastive(p, n, margin), inputs)


# --- foreground -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5])
def test_foreground_is_equations_5_and_6(threshold: float, maps: Tensor, masks: Tensor) -> None:
    biases = [[slow_bias(maps[x, j], masks[x]) for j in range(N)] for x in range(B)]
    assert_close(losses.background_bias(maps, masks), torch.tensor(biases, dtype=torch.float64))
    expected = sum(max(0.0, bias - threshold) for row in biases for bias in row) / (B * N)
    assert losses.foreground(maps, masks, threshold).item() == pytest.approx(expected)
    maps.requires_grad_()
    assert torch.autograd.gradcheck(lambda m: losses.foreground(m, masks, threshold), maps)


def test_all_and_no_foreground(maps: Tensor) -> None:
    assert losses.foreground(maps, torch.ones(B, H, W, dtype=torch.float64), 0.25) == 0
    nothing = losses.foreground(maps, torch.zeros(B, H, W, dtype=torch.float64), 0.25)
    assert nothing.item() == pytest.approx(0.75)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.0, 0.25])
def test_a_map_of_zeros(threshold: float, dtype: torch.dtype, maps: Tensor, masks: Tensor) -> None:
    """Far prototypes: log((d² + 1)/(d² + ε)) is exactly 0 from d² ≈ 10⁷ on in float32."""
    assert log_similarity(torch.tensor(1e9), 1e-4) == 0
    maps, masks = maps.to(dtype), masks.to(dtype)
    maps[0, 1] = 0
    maps[2] = 0
    maps.requires_grad_()
    bias = losses.background_bias(maps, masks)
    assert bias[0, 1] == 0
    assert bias[2].tolist() == [0] * N
    loss = losses.foreground(maps, masks, threshold)
    assert loss.isfinite()
    assert gradient(loss, maps).isfinite().all()


# --- spatial ----------------------------------------------------------------------------------------------------


def slow_cosine(first: Tensor, second: Tensor, sharpness: float) -> float:
    places = []
    for values in (first, second):
        exponentials = [math.exp(sharpness * value) for value in values.flatten().tolist()]
        places.append([value / sum(exponentials) for value in exponentials])
    product = sum(a * b for a, b in zip(*places, strict=True))
    return product / math.sqrt(sum(a * a for a in places[0]) * sum(b * b for b in places[1]))


@pytest.mark.parametrize("sharpness", [0.5, 4.0])
def test_spatial_overlap(sharpness: float, maps: Tensor) -> None:
    """DESIGN section 2: mean cosine of softmax(sharpness·a_h) over pairs of different heads."""
    maps = maps / 9
    pairs = [(h, g) for h in range(N) for g in range(N) if h != g]
    cosines = [slow_cosine(maps[x, h], maps[x, g], sharpness) for x in range(B) for h, g in pairs]
    assert losses.spatial_overlap(maps, sharpness).item() == pytest.approx(sum(cosines) / len(cosines))
    assert torch.autograd.gradcheck(lambda m: losses.spatial_overlap(m, sharpness), maps[:1].requires_grad_())


def test_spatial_overlap_at_its_ends() -> None:
    apart = torch.zeros(1, 2, 1, 4)
    apart[0, 0, 0, 0] = apart[0, 1, 0, 3] = 30.0
    assert losses.spatial_overlap(apart) < 1e-6
    assert losses.spatial_overlap(apart[:, :1].repeat(1, 3, 1, 1)).item() == pytest.approx(1)
    alike = torch.zeros(2, 3, 2, 2, requires_grad=True)
    assert losses.spatial_overlap(alike).item() == pytest.approx(1)
    assert gradient(losses.spatial_overlap(alike), alike).isfinite().all()


def test_a_single_head_overlaps_with_nobody() -> None:
    maps = torch.rand(2, 1, 3, 3, requires_grad=True)
    loss = losses.spatial_overlap(maps)
    assert loss == 0
    assert not gradient(loss, maps).any()


# --- prototypes that were removed ---------------------------------------------------------------------------------


@pytest.fixture
def counts() -> Tensor:
    """bool B×N: all, none, one and some of an image's prototypes are left."""
    return torch.tensor([[1, 1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 0]], dtype=torch.bool)


def test_removed_positives_do_not_count(counts: Tensor) -> None:
    generator = torch.Generator().manual_seed(5)
    positives = 3 * torch.rand(B, N, 2, dtype=torch.float64, generator=generator)
    negatives = 3 * torch.rand(B, N, 4, dtype=torch.float64, generator=generator)
    left = torch.stack([counts, counts.flip(0)], dim=2)
    values = []
    for x in range(B):
        for h in range(N):
            for i in range(2):
                if left[x, h, i]:
                    values += [max(0.0, 1 - positives[x, h, i].item() + n) for n in negatives[x, h].tolist()]
    loss = losses.contrastive(positives, negatives, 1.0, left)
    assert loss.item() == pytest.approx(sum(values) / len(values))
    flow = gradient(losses.contrastive(positives.requires_grad_(), negatives, 1.0, left), positives)
    assert not flow[~left].any()
    assert flow[left].any()


def test_removed_prototypes_have_no_background(counts: Tensor, maps: Tensor, masks: Tensor) -> None:
    values = [max(0.0, slow_bias(maps[x, j], masks[x]) - 0.1) for x in range(B) for j in range(N) if counts[x, j]]
    assert losses.foreground(maps, masks, 0.1, counts).item() == pytest.approx(sum(values) / len(values))
    flow = gradient(losses.foreground(maps.requires_grad_(), masks, 0.1, counts), maps)
    assert not flow[~counts].any()
    assert flow[counts].any()


def test_removed_heads_overlap_with_nobody(counts: Tensor, maps: Tensor) -> None:
    """The mean over pairs in each image that has one, then over those images."""
    maps = maps / 9
    images = []
    for x in range(B):
        heads = [h for h in range(N) if counts[x, h]]
        pairs = [slow_cosine(maps[x, h], maps[x, g], 4.0) for h in heads for g in heads if h != g]
        if pairs:
            images.append(sum(pairs) / len(pairs))
    assert len(images) == 3
    loss = losses.spatial_overlap(maps, 4.0, counts)
    assert loss.item() == pytest.approx(sum(images) / len(images))
    flow = gradient(losses.spatial_overlap(maps.requires_grad_(), 4.0, counts), maps)
    assert not flow[~counts].any()
    assert not flow[2].any()  # a single head
    assert flow[counts].any()


@pytest.mark.parametrize("left", [True, False])
def test_when_all_count_and_when_none_does(left: bool, maps: Tensor, masks: Tensor) -> None:
    """All: as if nothing had been said. None: 0, with gradients that are 0 and not nan."""
    negatives = torch.rand(B, N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    counts = torch.full((B, N), left)
    maps.requires_grad_()
    scores = maps.amax((2, 3)).unsqueeze(2) / 9
    terms = {
        "contrastive": lambda *said: losses.contrastive(scores, negatives, 1.0, *(c.unsqueeze(2) for c in said)),
        "foreground": lambda *said: losses.foreground(maps, masks, 0.1, *said),
        "spatial": lambda *said: losses.spatial_overlap(maps / 9, 4.0, *said),
    }
    for name, term in terms.items():
        found = term(counts)
        assert_close(found, term() if left else torch.zeros_like(found), msg=name)
        (flow,) = torch.autograd.grad(found, maps, retain_graph=True)
        assert flow.isfinite().all(), name
        assert bool(flow.any()) == left, name


def test_removed_maps_of_zeros_leave_gradients_finite(counts: Tensor, maps: Tensor, masks: Tensor) -> None:
    """A prototype that was removed is trained no more and may end up anywhere."""
    maps[~counts] = 0
    maps.requires_grad_()
    for loss in (losses.foreground(maps, masks, 0.1, counts), losses.spatial_overlap(maps, 4.0, counts)):
        assert loss.isfinite()
        assert gradient(loss, maps).isfinite().all()
