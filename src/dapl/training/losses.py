"""The terms of the loss: one pure function of tensors per term, each with its equation.

B images, P prototypes, C classes, N heads, H×W locations. `membership` is bool P×C; labels are long B.
Total = cross-entropy + 0.8·cluster − 0.08·separation + λ_contrast·contrastive + λ_fg·foreground (+ spatial + L1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.metrics.functional.background import share_beside


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−mean_x log softmax(logits)[label]. Shapes: logits B×C.

    >>> cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))    # log 2
    tensor(0.6931)
    """
    return F.cross_entropy(logits, labels)


def cluster(distances: Tensor, membership: Tensor, labels: Tensor) -> Tensor:
    """mean_x min_{p of x's class} min_l ‖z_l − p‖²: some prototype of the class is near some patch.

    A masked minimum with infinity (decision 3): ProtoPNet's max((128 − d)·mask) is right only while d ≤ 128.
    Shapes: distances B×P, already the minimum over locations.

    >>> distances, membership = torch.tensor([[4.0, 1.0, 9.0]]), torch.tensor([[1, 0], [1, 0], [0, 1]]).bool()
    >>> cluster(distances, membership, labels=torch.tensor([0]))
    tensor(1.)
    """
    nearest = distances.masked_fill(~membership.T[labels], torch.inf).amin(1)
    return _mean(nearest, nearest.isfinite())  # images whose class has no prototype left do not count


def cluster_all(distances: Tensor, membership: Tensor, labels: Tensor) -> Tensor:
    """mean over x and all p of x's class of min_l ‖z_l − p‖²: each prototype of the class is near some patch.

    Ours, not the paper's: where a head has one prototype per class, `cluster` moves the nearest head alone, and
    their prototypes lie far from the patches that they are projected on. Shapes as `cluster`; infinite: removed.

    >>> distances, membership = torch.tensor([[4.0, 1.0, 9.0]]), torch.tensor([[1, 0], [1, 0], [0, 1]]).bool()
    >>> cluster_all(distances, membership, labels=torch.tensor([0]))
    tensor(2.5000)
    """
    return _mean(distances, membership.T[labels] & distances.isfinite())


def separation(distances: Tensor, membership: Tensor, labels: Tensor) -> Tensor:
    """mean_x min_{p not of x's class} min_l ‖z_l − p‖²; *subtracted* from the total. Shapes as `cluster`.

    >>> distances, membership = torch.tensor([[4.0, 1.0, 9.0]]), torch.tensor([[1, 0], [1, 0], [0, 1]]).bool()
    >>> separation(distances, membership, labels=torch.tensor([0]))
    tensor(9.)
    """
    nearest = distances.masked_fill(membership.T[labels], torch.inf).amin(1)
    return _mean(nearest, nearest.isfinite())  # a single class has no other one to compare with


def contrastive(positives: Tensor, negatives: Tensor, margin: float, counts: Tensor | None = None) -> Tensor:
    """Equation 3 as a mean: mean over x, h, i, k of max(0, m − s_{h,i} + s_{h,k}) (decision 1).

    i runs over prototypes assigned to head h, k over prototypes of other heads, both scored by head h's embedding.
    Shapes: positives B×N×I (I = 1 for the image's class, C for all of P_h), negatives B×N×M, counts bool B×N×I:
    which positives are still there.

    >>> positives, negatives = torch.tensor([[[3.0]]]), torch.tensor([[[1.0, 4.0]]])    # 0 and 1 − 3 + 4
    >>> contrastive(positives, negatives, margin=1.0)
    tensor(1.)
    """
    return _mean(F.relu(margin - positives.unsqueeze(3) + negatives.unsqueeze(2)).mean(3), counts)


def foreground(maps: Tensor, masks: Tensor, threshold: float, counts: Tensor | None = None) -> Tensor:
    """Equation 6: mean over x and j of max(0, B(p_j, x, m) − τ_bg), with B of equation 5.

    Shapes: maps B×M×H×W (non-negative), masks B×H×W in [0, 1], the area average of the foreground (decision 4),
    counts bool B×M: which prototypes are still there.

    >>> foreground(torch.tensor([[[[3.0, 1.0]]]]), torch.tensor([[[1.0, 0.0]]]), threshold=0.125)
    tensor(0.1250)
    """
    return foreground_of(background_bias(maps, masks), threshold, counts)


def foreground_of(bias: Tensor, threshold: float, counts: Tensor | None = None) -> Tensor:
    """As `foreground`, from B of each image and prototype, B×M.

    >>> foreground_of(torch.tensor([[0.25, 0.0]]), threshold=0.125)
    tensor(0.0625)
    """
    return _mean(F.relu(bias - threshold), counts)


def background_bias(maps: Tensor, masks: Tensor) -> Tensor:
    """Equation 5: B = Σ_l (1 − m_l)·a_l / Σ_l a_l, by the formula of the metric; 0 for a map that is 0 everywhere.

    Shapes: maps B×M×H×W, masks B×H×W → B×M in [0, 1].

    >>> background_bias(torch.tensor([[[[3.0, 1.0]]]]), torch.tensor([[[1.0, 0.0]]]))
    tensor([[0.2500]])
    """
    return share_beside(maps, masks, empty=0.0)


def spatial_overlap(maps: Tensor, sharpness: float = 4.0, counts: Tensor | None = None) -> Tensor:
    """mean over x and pairs h ≠ g of cos(q_h, q_g), q_h = softmax over places of sharpness·a_h.

    Ours, not the paper's: it asks the heads of the image's class to look at different places.
    Shapes: maps B×N×H×W, counts bool B×N: which heads still have a prototype there; 0 for a single one.

    >>> spatial_overlap(torch.tensor([[[[9.0, 0.0]], [[0.0, 9.0]]]])).round(decimals=4)
    tensor(0.)
    """
    places = F.normalize((sharpness * maps.flatten(2)).softmax(2), dim=2)
    if counts is None:
        counts = torch.ones(maps.shape[:2], dtype=torch.bool, device=maps.device)
    places = places * counts.unsqueeze(2)
    cosines = places @ places.transpose(1, 2)
    heads = counts.sum(1)
    pairs = cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)
    return _mean(pairs / (heads * (heads - 1)).clamp_min(1), heads > 1)


def coverage_of_object(covered: Tensor, masks: Tensor) -> Tensor:
    """Binary cross-entropy of what is no background, Σ_h M_h(l) and the rest of the object, against the mask.

    Shapes: covered and masks B×H×W in [0, 1].

    >>> coverage_of_object(torch.tensor([[[0.75]]]), torch.tensor([[[1.0]]])).exp()
    tensor(1.3333)
    """
    return F.binary_cross_entropy(covered.float().clamp(1e-6, 1 - 1e-6), masks.float())


def commitment(cosines: Tensor, labels: Tensor) -> Tensor:
    """mean over x and h of 1 − cos(V_h·ĝ_h(x), c_{y,h}), y the class of x: a head sees the same thing in a class.

    Shapes: cosines B×C×N of the scout, labels B.

    >>> commitment(torch.tensor([[[1.0, 0.5], [0.0, 0.0]]]), torch.tensor([0]))
    tensor(0.2500)
    """
    own = cosines[torch.arange(len(cosines), device=cosines.device), labels]
    return (1 - own).mean()


SMALLEST_AREA = 0.02
"""Share of an image below which an object counts as this large, so that no speck decides a step."""


def concentration(maps: Tensor, area: Tensor) -> Tensor:
    """mean over x and h of the spatial variance of q_h = M_h/ΣM_h by the area of the object: Σ_l q_h(l)·‖l − l̄_h‖²/A.

    By the area, as a part of a large object is large. Coordinates are in [0, 1].
    Shapes: maps B×N×H×W, area B, as a share of the image.

    >>> concentration(torch.tensor([[[[1.0, 0.0, 0.0, 1.0]]]]), torch.tensor([0.5]))  # places 1/8 and 7/8
    tensor(0.2812)
    """
    shares = maps / maps.sum((-2, -1), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
    variances = []
    for axis in (-1, -2):
        along = shares.sum(-3 - axis)  # the other axis of the two is summed over: B×N×side
        place = (torch.arange(along.shape[-1], device=maps.device, dtype=maps.dtype) + 0.5) / along.shape[-1]
        mean = (along * place).sum(-1, keepdim=True)
        variances.append((along * (place - mean).square()).sum(-1))
    return ((variances[0] + variances[1]) / area.clamp_min(SMALLEST_AREA).unsqueeze(1)).mean()


def imbalance_of_heads(maps: Tensor, in_image: bool = False) -> Tensor:
    """KL(π ‖ uniform) of the heads' shares π_h = Σ_l M_h(l)/Σ_g Σ_l M_g(l), over the batch or the mean over images.

    Shapes: maps B×N×H×W.

    >>> imbalance_of_heads(torch.tensor([[[[1.0]], [[0.0]]], [[[0.0]], [[1.0]]]]))
    tensor(0.)
    """
    mass = maps.sum((2, 3)) if in_image else maps.sum((0, 2, 3))
    shares = (mass + 1e-6) / (mass + 1e-6).sum(-1, keepdim=True)
    return (shares * (shares * shares.shape[-1]).log()).sum(-1).mean()


def equivariance(maps: Tensor, mirrored: Tensor) -> Tensor:
    """1 − mean over x and h of cos(M(x), flip M(flip x)): a mirrored image has mirrored maps.

    Shapes: maps and mirrored B×N×H×W, the second those of the mirrored images.

    >>> equivariance(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 1.0]]]]))
    tensor(0.)
    """
    return (1 - F.cosine_similarity(maps.flatten(2), mirrored.flip(-1).flatten(2), dim=2)).mean()


def l1(weights: Tensor) -> Tensor:
    """Σ|w| over the class weights.

    >>> l1(torch.tensor([[1.0, -0.5]]))
    tensor(1.5000)
    """
    return weights.abs().sum()


def _mean(values: Tensor, counts: Tensor | None) -> Tensor:
    """Mean of the values that count; 0 where none does."""
    if counts is None:
        return values.mean()
    return torch.where(counts, values, 0).sum() / counts.sum().clamp_min(1)
