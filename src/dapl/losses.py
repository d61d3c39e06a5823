"""The terms of the loss: pure functions of tensors, one a term, each with its equation.

B pictures, P prototypes, C classes, N heads, H×W locations. `membership` is bool P×C; labels are long B.
Total = cross-entropy + 0.8·cluster − 0.08·separation + λ_contrast·contrastive + λ_fg·foreground (+ spatial + L1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−mean_x log softmax(logits)[label]. Shapes: logits B×C."""
    return F.cross_entropy(logits, labels)


def cluster(distances: Tensor, membership: Tensor, labels: Tensor) -> Tensor:
    """mean_x min_{p of x's class} min_l ‖z_l − p‖²: some prototype of the class is near some patch.

    A masked minimum with infinity (decision 3): ProtoPNet's max((128 − d)·mask) is right only while d ≤ 128.
    Shapes: distances B×P, already the minimum over locations.
    """
    own = membership.T[labels]
    return _finite_mean(distances.masked_fill(~own, torch.inf).amin(1))


def separation(distances: Tensor, membership: Tensor, labels: Tensor) -> Tensor:
    """mean_x min_{p not of x's class} min_l ‖z_l − p‖²; *subtracted* from the total. Shapes as `cluster`."""
    own = membership.T[labels]
    return _finite_mean(distances.masked_fill(own, torch.inf).amin(1))


def contrastive(positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """Equation 3 as a mean: mean over x, h, i, k of max(0, m − s_{h,i} + s_{h,k}) (decision 1).

    i runs over prototypes assigned to head h, k over prototypes of other heads, both scored by head h's embedding.
    Shapes: positives B×N×I (I = 1 for the picture's class, C for all of P_h), negatives B×N×M.
    """
    return F.relu(margin - positives.unsqueeze(3) + negatives.unsqueeze(2)).mean()


def foreground(maps: Tensor, masks: Tensor, threshold: float) -> Tensor:
    """Equation 6: mean over x and j of max(0, B(p_j, x, m) − τ_bg), with B of equation 5.

    Shapes: maps B×M×H×W (non-negative), masks B×H×W in [0, 1], the area average of the foreground (decision 4).
    """
    return F.relu(background_bias(maps, masks) - threshold).mean()


def background_bias(maps: Tensor, masks: Tensor) -> Tensor:
    """Equation 5: B = Σ_l (1 − m_l)·a_l / Σ_l a_l. Shapes: maps B×M×H×W, masks B×H×W → B×M in [0, 1]."""
    total = maps.sum((2, 3))
    background = torch.einsum("bmhw,bhw->bm", maps, 1 - masks)
    return background / total.clamp_min(torch.finfo(maps.dtype).tiny)


def spatial_overlap(maps: Tensor, sharpness: float = 4.0) -> Tensor:
    """mean over x and pairs h ≠ g of cos(q_h, q_g), q_h = softmax over places of sharpness·a_h.

    Ours, not the paper's: it asks the heads of the picture's class to look at different places.
    Shapes: maps B×N×H×W; 0 for a single head.
    """
    heads = maps.shape[1]
    if heads < 2:
        return maps.sum() * 0
    places = F.normalize((sharpness * maps.flatten(2)).softmax(2), dim=2)
    cosines = places @ places.transpose(1, 2)
    return (cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)).mean() / (heads * (heads - 1))


def l1(weights: Tensor) -> Tensor:
    """Σ|w| over the class weights."""
    return weights.abs().sum()


def _finite_mean(minima: Tensor) -> Tensor:
    """Mean over pictures that have a prototype to compare with (a single class has no other one)."""
    finite = minima.isfinite()
    return torch.where(finite, minima, 0).sum() / finite.sum().clamp_min(1)
