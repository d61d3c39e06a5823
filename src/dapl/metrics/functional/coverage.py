"""Which prototype is assigned to which part, and Coverage: do prototypes lie on parts, and on all the parts?

Also with one prototype for one part, by a matching within the image, and how many parts a prototype is on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    check_boolean,
    check_open_interval,
    check_same,
    check_same_grid,
    counted,
    shape_of,
    which,
)
from dapl.metrics.functional.pixel_sets import PixelSets, as_sets, shared_pixels


def overlap(regions: Tensor | PixelSets, parts: Tensor | PixelSets) -> Tensor:
    r"""The share of each part that each prototype's region covers, by one matrix product.

    .. math:: \text{overlap}(p_j, \text{part}_k) = \frac{|A_j \cap M_k|}{|M_k|}

    0 where a part has no pixel; `visible_parts` takes such a part out of K.

    Args:
        regions: A, bool (…, P, H, W), or `dapl.metrics.functional.PixelSets` of them.
        parts: M, bool (…, K, H, W), or `PixelSets`. Masks may overlap.

    Returns:
        (…, P, K).

    Example:
        >>> import torch
        >>> regions = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]]).bool().view(2, 1, 4)
        >>> parts = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 1]]).bool().view(2, 1, 4)
        >>> overlap(regions, parts)
        tensor([[0.6667, 0.0000],
                [0.6667, 1.0000]])
    """
    regions, parts = as_sets(regions), as_sets(parts)
    check_boolean(regions.sets, "regions", "prototypes")
    check_boolean(parts.sets, "parts", "parts")
    check_same_grid(regions.sets, parts.sets, "regions and parts")
    check_same(regions.sets, parts.sets, "regions and parts", leading=3, trailing=3)
    shared, size = shared_pixels(regions, parts)
    return shared / size.clamp(min=1).unsqueeze(-2)


def visible_parts(parts: Tensor, visible: Tensor | None = None) -> Tensor:
    """The parts that count in an image: those visible in it whose mask has a pixel (else the overlap is 0/0).

    Args:
        parts: M, bool (…, K, H, W).
        visible: bool (…, K) from the annotation; None means all.

    Returns:
        bool (…, K).

    Example:
        >>> import torch
        >>> parts = torch.tensor([[1, 0], [0, 0], [1, 1]]).bool().view(3, 1, 2)
        >>> visible_parts(parts, visible=torch.tensor([True, True, False]))
        tensor([ True, False, False])
    """
    check_boolean(parts, "parts", "parts")
    has_pixel = parts.view(torch.uint8).flatten(-2).amax(-1).bool()  # thirty times as fast as any() on booleans
    return has_pixel & which(visible, parts, parts.shape[:-2], "visible", "parts")


def assign(
    overlap: Tensor, threshold: float = 0.2, visible: Tensor | None = None, kept: Tensor | None = None
) -> Tensor:
    r"""A prototype is assigned to a part when it covers more than the share τ of it; to any number of parts, or none.

    .. math:: \text{overlap}(p_j, \text{part}_k) > \tau

    Args:
        overlap: (…, P, K).
        threshold: τ, strictly between 0 and 1; a prototype at exactly τ is not assigned.
        visible: bool (…, K): nothing is assigned to an invisible part.
        kept: bool (…, P): a pruned prototype is assigned to nothing.

    Returns:
        bool (…, P, K).

    Example:
        >>> import torch
        >>> assign(torch.tensor([[0.2, 0.3], [0.9, 0.0]]), visible=torch.tensor([True, False]))
        tensor([[False, False],
                [ True, False]])
    """
    check_open_interval(threshold, 0, 1, "threshold (τ)")
    if not overlap.is_floating_point():
        raise DaplError(f"overlap must be floating point, but is {overlap.dtype} {shape_of(overlap)}.")
    return counted(overlap > threshold, visible, kept)[0]


class CoverageTerms(NamedTuple):
    """Coverage and what it is made of, each (…)."""

    coverage: Tensor
    precision: Tensor
    recall: Tensor


def coverage_counts(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """What Coverage is made of, as counts that may be added up over images.

    Prototypes of an image in which no part is visible have nothing to hit and are not counted.

    Args:
        assigned: bool (…, P, K), from `assign`.
        visible: bool (…, K), the parts that count; None means all.
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        integers (…, 4): prototypes on a part, prototypes, parts with a prototype, parts.

    Example:
        >>> import torch
        >>> coverage_counts(torch.tensor([[True, False], [True, False]]))
        tensor([2, 2, 1, 2])
    """
    assigned, visible, kept = counted(assigned, visible, kept)
    kept = kept & visible.any(-1, keepdim=True)
    return torch.stack((assigned.any(-1).sum(-1), kept.sum(-1), assigned.any(-2).sum(-1), visible.sum(-1)), dim=-1)


def coverage_terms(counts: Tensor) -> CoverageTerms:
    r"""Coverage, precision and recall of `coverage_counts`, of one image or added up over many.

    .. math:: \text{Precision} = \frac{|\{p_j : p_j \text{ assigned to} \ge 1 \text{ part}\}|}{|\mathcal{P}|}, \quad
        \text{Recall} = \frac{|\{\text{part}_k : \text{part}_k \text{ captured by} \ge 1 \text{ prototype}\}|}{K}, \quad
        \text{Coverage} = \frac{2 \cdot \text{Precision} \cdot \text{Recall}}{\text{Precision} + \text{Recall}}

    This is the only place where they are computed: `coverage`, `dapl.metrics.Coverage` and `dapl evaluate` call it.

    Args:
        counts: (…, 4).

    Returns:
        `CoverageTerms`; NaN where no part is visible, 0 where nothing is assigned or no prototype is kept.

    Example:
        >>> import torch
        >>> coverage_terms(torch.tensor([2, 2, 1, 2]))
        CoverageTerms(coverage=tensor(0.6667), precision=tensor(1.), recall=tensor(0.5000))
    """
    prototypes_hit, prototypes, parts_hit, parts = counts.unbind(-1)
    precision = (prototypes_hit / prototypes.clamp(min=1)).where(parts > 0, torch.nan)
    recall = parts_hit / parts  # 0/0 is NaN
    total = precision + recall
    return CoverageTerms((2 * precision * recall / total).where(total != 0, 0.0), precision, recall)


def precision(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """The share of prototypes that lie on a part: the precision of `coverage_terms`. Arguments as of `coverage`.

    Example:
        >>> import torch
        >>> precision(torch.tensor([[True, True], [False, False]]))
        tensor(0.5000)
    """
    return coverage_terms(coverage_counts(assigned, visible, kept)).precision


def recall(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """The share of the visible parts that a prototype lies on: the recall of `coverage_terms`.

    Arguments as of `coverage`.

    Example:
        >>> import torch
        >>> recall(torch.tensor([[True, False, False]]), visible=torch.tensor([True, True, False]))
        tensor(0.5000)
    """
    return coverage_terms(coverage_counts(assigned, visible, kept)).recall


def coverage(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    r"""Coverage: do the prototypes lie on parts, and on all of them?

    .. math:: \text{Coverage} = \frac{2 \cdot \text{Precision} \cdot \text{Recall}}{\text{Precision} + \text{Recall}}

    with the terms of `coverage_terms`: 0 when nothing is assigned, NaN when no part is visible.

    Args:
        assigned: bool (…, P, K), from `assign`.
        visible: bool (…, K), the parts that count; None means all.
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        (…), in [0, 1].

    Example:
        >>> import torch
        >>> coverage(torch.tensor([[True, False], [True, False]]))  # precision 1, recall 1/2
        tensor(0.6667)
    """
    return coverage_terms(coverage_counts(assigned, visible, kept)).coverage


def matched_counts(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """What one-to-one Coverage is made of, as counts that may be added up over images.

    Args:
        assigned: bool (…, P, K), from `assign`: a prototype may be matched with the parts that it is assigned to.
        visible: bool (…, K), the parts that count; None means all.
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        integers (…, 3): pairs of a maximum matching, prototypes, parts. Prototypes of an image in which no part is
        visible are not counted.

    Example:
        >>> import torch
        >>> matched_counts(torch.tensor([[True, True, False], [True, False, False]]))  # 0 with 1, 1 with 0
        tensor([2, 2, 3])
    """
    assigned, visible, kept = counted(assigned, visible, kept)
    kept = kept & visible.any(-1, keepdim=True)
    edges = assigned.reshape(-1, *assigned.shape[-2:]).cpu().numpy()
    from scipy.optimize import linear_sum_assignment  # slow to load: only where it is used

    pairs = [int(one[linear_sum_assignment(one, maximize=True)].sum()) for one in edges]
    matched = torch.tensor(pairs, device=assigned.device).reshape(assigned.shape[:-2])
    return torch.stack((matched, kept.sum(-1), visible.sum(-1)), dim=-1)


def matched_share(counts: Tensor) -> Tensor:
    r"""One-to-one Coverage of `matched_counts` (…, 3), of one image or added up over many: (…); NaN without parts.

    .. math:: \frac{2 |\mathcal{M}|}{|\mathcal{P}| + K}

    Example:
        >>> import torch
        >>> matched_share(torch.tensor([2, 2, 3]))
        tensor(0.8000)
    """
    pairs, prototypes, parts = counts.unbind(-1)
    return (2 * pairs / (prototypes + parts)).where(parts > 0, torch.nan)


def one_to_one_coverage(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    r"""Coverage with every prototype on at most one part and every part taken by at most one prototype.

    .. math:: \frac{2 |\mathcal{M}|}{|\mathcal{P}| + K}

    with a maximum matching :math:`\mathcal{M}` of prototypes and visible parts along `assign`: the F1 score of the
    precision :math:`|\mathcal{M}| / |\mathcal{P}|` and the recall :math:`|\mathcal{M}| / K`. A region as large as the
    object is on all of its parts and raises Coverage for all; here it counts once. Ours.

    Args:
        assigned: bool (…, P, K), from `assign`.
        visible: bool (…, K), the parts that count; None means all.
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        (…), in [0, 1]; 1 only with as many prototypes as parts. NaN where no part is visible.

    Example:
        >>> import torch
        >>> everywhere = torch.tensor([[True, True, True], [False, False, False]])
        >>> one_to_one_coverage(everywhere)  # 1 pair; Coverage says 2/3
        tensor(0.4000)
    """
    return matched_share(matched_counts(assigned, visible, kept))


def assigned_counts(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """Assignments and prototypes, as counts that may be added up over images: integers (…, 2).

    Prototypes of an image in which no part is visible are not counted. Arguments as of `one_to_one_coverage`.

    Example:
        >>> import torch
        >>> assigned_counts(torch.tensor([[True, True, True], [False, False, False]]))
        tensor([3, 2])
    """
    assigned, visible, kept = counted(assigned, visible, kept)
    kept = kept & visible.any(-1, keepdim=True)
    return torch.stack((assigned.sum((-2, -1)), kept.sum(-1)), dim=-1)


def parts_per_prototype(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """How many visible parts a prototype is assigned to, mean over the prototypes that count.

    More than one means that regions are larger than parts, or lie on several. Arguments as of `one_to_one_coverage`.

    Returns:
        (…); NaN where no part is visible or no prototype kept.

    Example:
        >>> import torch
        >>> parts_per_prototype(torch.tensor([[True, True, True], [False, False, False]]))
        tensor(1.5000)
    """
    number, prototypes = assigned_counts(assigned, visible, kept).unbind(-1)
    return number / prototypes  # 0/0 is NaN
