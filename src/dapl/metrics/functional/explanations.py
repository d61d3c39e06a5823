"""Explanations as a whole: do their prototypes point to different places (Distinctiveness), do they together show the
object (Comprehensiveness), and how few of them make do (sparsity)?

The first two are of Zhu et al., "Interpretable Image Classification via Non-parametric Part Prototype Learning",
CVPR 2025; where paper and we differ, docs/companions.md says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    check_integers,
    check_maps,
    check_numbers,
    check_open_interval,
    check_positive,
    check_same,
    check_same_grid,
    shape_of,
    which,
)
from dapl.metrics.functional.pixel_sets import PixelSets
from dapl.metrics.functional.regions import flat_maps, on_pixels, pair


def most_active(maps: Tensor, kept: Tensor | None = None, top: int = 5) -> Tensor:
    """The prototypes that an explanation shows: those of the highest values, at most ``top``, none with a flat map.

    Args:
        maps: (…, P, h, w), of the prototypes of each image's class.
        kept: bool (…, P), the prototypes that count.
        top: 5 as published.

    Returns:
        bool (…, P).

    Example:
        >>> import torch
        >>> maps = torch.tensor([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0], [9.0, 9.0]]).view(1, 4, 1, 2)
        >>> most_active(maps, top=2)
        tensor([[ True, False,  True, False]])
    """
    check_maps(maps)
    if top < 1:
        raise DaplError(f"top must be 1 or more, but is {top}.")
    counts = which(kept, maps, maps.shape[:-2], "kept", "prototypes")
    counts = counts & ~flat_maps(maps)
    highest = maps.amax((-2, -1)).masked_fill(~counts, -torch.inf)
    order = highest.argsort(dim=-1, descending=True, stable=True)[..., :top]
    return torch.zeros_like(counts).scatter(-1, order, True) & counts


def distinctiveness(points: Tensor, side: float = 72, kept: Tensor | None = None) -> Tensor:
    r"""Distinctiveness of an explanation: one minus the mean IoU of every two boxes around the prototypes' peaks.

    .. math:: 1 - \frac{2}{P(P-1)} \sum_{i<j} \text{IoU}(b_i, b_j), \qquad
        \text{IoU}(b_i, b_j) = \frac{I}{2 s^2 - I}, \quad I = (s - |x_i - x_j|)_+ \, (s - |y_i - y_j|)_+

    with boxes of side s, which may reach beyond the image. 1 where no two boxes meet, 0 where all peaks are the same.
    Says nothing about where the peaks are: ten points drawn at random are distinct, on the object or beside it.

    Args:
        points: (…, P, 2), the highest pixel of each map (`peaks`).
        side: of the boxes in pixels; 72 as published, for images of 224.
        kept: bool (…, P), the prototypes that count (`most_active`).

    Returns:
        (…); NaN for an image with fewer than two of them.

    Example:
        >>> import torch
        >>> distinctiveness(torch.tensor([[10, 10], [46, 10], [200, 200]]))     # IoUs 1/3, 0, 0
        tensor(0.8889)
    """
    return 1 - _share(distinctiveness_counts(points, side, kept))


def distinctiveness_counts(points: Tensor, side: float = 72, kept: Tensor | None = None) -> Tensor:
    """What Distinctiveness is made of, (…, 2): the sum of the IoUs over pairs, and the number of pairs.

    Example:
        >>> distinctiveness_counts(torch.tensor([[10, 10], [10, 10], [200, 200]])).tolist()
        [1.0, 3.0]
    """
    check_positive(side, "side")
    if points.ndim < 2 or points.shape[-1] != 2 or points.shape[-2] == 0:
        raise DaplError(f"points must be (…, prototypes, 2), x and y in pixels, but are {shape_of(points)}.")
    counts = which(kept, points, points.shape[:-1], "kept", "prototypes")
    place = points.double()
    apart = (place.unsqueeze(-2) - place.unsqueeze(-3)).abs()
    shared = (side - apart).clamp(min=0).prod(-1)
    pairs = (counts.unsqueeze(-1) & counts.unsqueeze(-2)).double().triu(1)
    ious = shared / (2 * side**2 - shared)
    return torch.stack(((ious * pairs).sum((-2, -1)), pairs.sum((-2, -1))), dim=-1)


def comprehensiveness(
    maps: Tensor,
    masks: Tensor,
    size: int | tuple[int, int] | None = None,
    threshold: float = 0.6,
    kept: Tensor | None = None,
) -> Tensor:
    r"""Comprehensiveness of an explanation: the IoU of the object with all that its prototypes' maps mark together.

    .. math:: \frac{|U \cap M|}{|U \cup M|}, \qquad
        U = \bigcup_j \Big\{x : \frac{a_j[x] - \min a_j}{\max a_j - \min a_j} \ge \theta \Big\}

    with the maps at the size of the image. 1 where the maps mark the object and nothing else. A blob that is as large
    as the object and lies on it scores high without a part in it.

    Args:
        maps: (…, P, h, w), finite.
        masks: bool (…, H, W), the object.
        size: of the image; None when the maps have that size already.
        threshold: θ; 0.6 as in the published code.
        kept: bool (…, P), the prototypes that count (`most_active`).

    Returns:
        (…); NaN where neither the maps nor the mask mark a pixel.

    Example:
        >>> import torch
        >>> maps = torch.tensor([[0.0, 1.0, 5.0, 2.0], [4.0, 0.0, 0.0, 0.0]]).view(2, 1, 4)
        >>> comprehensiveness(maps, torch.tensor([[True, True, True, False]]))     # marked: pixels 3 and 1
        tensor(0.6667)
    """
    return _share(comprehensiveness_counts(maps, masks, size, threshold, kept))


def comprehensiveness_counts(
    maps: Tensor,
    masks: Tensor,
    size: int | tuple[int, int] | None = None,
    threshold: float = 0.6,
    kept: Tensor | None = None,
) -> Tensor:
    """What Comprehensiveness is made of, (…, 2): |U ∩ M| and |U ∪ M| in pixels.

    Example:
        >>> maps = torch.tensor([[0.0, 1.0, 5.0, 2.0], [4.0, 0.0, 0.0, 0.0]]).view(2, 1, 4)
        >>> comprehensiveness_counts(maps, torch.tensor([[True, True, True, False]])).tolist()
        [2.0, 3.0]
    """
    check_maps(maps)
    check_open_interval(threshold, 0, 1, "threshold")
    if masks.dtype != torch.bool:
        raise DaplError(f"masks must be boolean (…, height, width), but are {masks.dtype}.")
    check_same(maps, masks, "maps and masks", leading=3, trailing=2)
    height, width = maps.shape[-2:] if size is None else pair(size)
    counts = which(kept, maps, maps.shape[:-2], "kept", "prototypes")
    flat_counts, prototypes = counts.flatten(), counts.shape[-1]
    counted = flat_counts.nonzero().flatten()
    union = torch.zeros((len(flat_counts) // prototypes, height, width), dtype=torch.bool, device=maps.device)
    for rows, chunk, slack in on_pixels(maps.flatten(0, -3)[counted], size):
        high, low = chunk.flatten(1).amax(1), chunk.flatten(1).amin(1)
        bounds = (low + threshold * (high - low)).masked_fill(slack.isinf(), torch.inf)  # a flat map marks nothing
        for image, pixels, bound in zip((counted[rows] // prototypes).tolist(), chunk, bounds, strict=True):
            union[image] |= pixels >= bound
    union = union.view(*counts.shape[:-1], height, width)
    check_same_grid(union, masks, "maps and masks")
    both, of_maps, of_masks = (PixelSets(one.unsqueeze(-3)).sizes() for one in (union & masks, union, masks))
    return torch.cat((both, of_maps + of_masks - both), dim=-1).double()


def _share(counts: Tensor) -> Tensor:
    return (counts[..., 0] / counts[..., 1]).float()


def unique_prototypes(
    vectors: Tensor, kept: Tensor | None = None, groups: Tensor | None = None, decimals: int = 8
) -> Tensor:
    """The number of prototypes that differ: projection may put several on the same patch.

    Args:
        vectors: (P, D).
        kept: bool (P), those that count; None means all.
        groups: integers (P), the group (head) that each is compared in: equal vectors that meet different heads are
            not the same prototype. None compares vectors alone, as ProtoPNeXt does, whose prototypes meet one map.
        decimals: vectors that agree after rounding to this many are equal; 8 as in ProtoPNeXt.

    Returns:
        an integer.

    Example:
        >>> import torch
        >>> unique_prototypes(torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 2.0]]))
        tensor(2)
        >>> unique_prototypes(torch.ones(3, 2), groups=torch.tensor([0, 1, 1]))
        tensor(2)
    """
    check_numbers(vectors, "vectors", "prototypes, width")
    if vectors.ndim != 2:
        raise DaplError(f"vectors must be (prototypes, width), but are {shape_of(vectors)}.")
    rows = vectors.detach().double().round(decimals=decimals)
    if groups is not None:
        check_integers(groups, vectors.shape[:1], max(1, len(vectors)), "groups", "groups at most")
        rows = torch.cat((groups.to(rows).unsqueeze(1), rows), dim=1)
    rows = rows[which(kept, vectors, vectors.shape[:1], "kept", "prototypes")]
    return torch.tensor(len(rows.unique(dim=0)), device=vectors.device)


def sparsity(
    vectors: Tensor,
    classes: int,
    kept: Tensor | None = None,
    groups: Tensor | None = None,
    decimals: int = 8,
) -> Tensor:
    r"""ProtoPNeXt's prototype sparsity: 1 for one prototype per class, less the more there are.

    .. math:: \frac{C (1 + 1/HW)}{U + U_\text{parts}/HW} = \frac{C}{U}

    U is the number of `unique_prototypes` and U_parts that of unique parts of prototypes; ours are single vectors, so
    the two are one, and the grid H×W cancels. Above 1 when classes share prototypes (ProtoPShare); ProtoPNeXt caps it
    at 1 where it enters a combined score. Read off the model: no pass over images.

    Reference: F. Willard et al., "This Looks Better than That: Better Interpretable Models with ProtoPNeXt", 2024.

    Args:
        vectors: (P, D).
        classes: C.
        kept: bool (P), those that count; None means all.
        groups: integers (P), see `unique_prototypes`.
        decimals: see `unique_prototypes`.

    Returns:
        a number above 0; NaN when no prototype is kept.

    Example:
        >>> import torch
        >>> sparsity(torch.eye(8), classes=4)
        tensor(0.5000)
    """
    if classes < 1:
        raise DaplError(f"classes must be at least 1, but is {classes}.")
    unique = unique_prototypes(vectors, kept, groups, decimals)
    return (classes / unique.float()).where(unique > 0, torch.nan)


def class_sizes(class_weights: Tensor, threshold: float = 0.0) -> Tensor:
    r"""How many prototypes each class is explained with: its non-zero class weights.

    .. math:: \#\{j : |w_{jc}| > \text{threshold}\}

    Read off the model: no pass over images.

    Args:
        class_weights: (P, C), ``model.class_weights()``; pruned prototypes have weight 0.
        threshold: 0; PIP-Net calls a prototype relevant above 1e-5.

    Returns:
        integers (C).

    Example:
        >>> import torch
        >>> class_sizes(torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.0, -0.5]]))
        tensor([2, 1])
    """
    check_numbers(class_weights, "class_weights", "prototypes, classes")
    if not 0 <= threshold < float("inf"):
        raise DaplError(f"threshold must be at least 0, but is {threshold:g}.")
    return (class_weights.detach().abs() > threshold).sum(-2)


def explanation_size(contributions: Tensor, share: float = 0.1) -> Tensor:
    r"""How many prototypes an explanation has: those that contribute more than a tenth of the largest contribution.

    .. math:: \#\{j : |e_j| > \text{share} \cdot \max_i |e_i|\}

    With the scores as contributions this is QuanProto's *local size*; with ``scores · class_weights[:, c]``, the terms
    of class c's logit, only the prototypes that the decision is made of count. Costs no model pass of its own.

    Reference: P. Schlinge et al., "Comprehensive Evaluation of Prototype Neural Networks" (QuanProto), 2025.

    Args:
        contributions: e, (…, P).
        share: 0.1 as in QuanProto; 0 counts all that are not zero.

    Returns:
        integers (…).

    Example:
        >>> import torch
        >>> explanation_size(torch.tensor([[5.0, 0.5, 1.0], [0.0, 0.0, 0.0]]))
        tensor([2, 0])
    """
    check_numbers(contributions, "contributions", "prototypes")
    if not 0 <= share < 1:
        raise DaplError(f"share must be at least 0 and below 1, but is {share:g}.")
    amounts = contributions.detach().abs()
    return (amounts > share * amounts.amax(-1, keepdim=True)).sum(-1)
