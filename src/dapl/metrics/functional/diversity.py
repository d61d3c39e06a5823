"""Diversity: are the prototypes of a part different pixels (Redundancy), and spread over the parts (Imbalance)?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dapl.metrics.functional.checks import check_boolean, check_same, counted
from dapl.metrics.functional.pixel_sets import iou


class DiversityTerms(NamedTuple):
    """Diversity and what it is made of, each (…)."""

    diversity: Tensor
    redundancy: Tensor
    imbalance: Tensor


def diversity_counts(
    ious: Tensor, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None
) -> Tensor:
    """What Diversity is made of, part by part, as sums that may be added up over images.

    Args:
        ious: (…, P, P), the `iou` of every two regions.
        assigned: bool (…, P, K), from `assign`.
        visible: bool (…, K), the parts that count; None means all.
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        (…, 4, K): the sum of IoU over the pairs of prototypes on a part, the number of these pairs, the number of
        prototypes on a part, and 1 where the part is visible.

    Example:
        >>> import torch
        >>> diversity_counts(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.tensor([[True, True], [True, False]]))
        tensor([[0.5000, 0.0000],
                [1.0000, 0.0000],
                [2.0000, 1.0000],
                [1.0000, 1.0000]])
    """
    assigned, visible, _ = counted(assigned, visible, kept)
    member = assigned.to(torch.float32)
    others = ious.to(torch.float32, copy=True)
    others.diagonal(dim1=-2, dim2=-1).zero_()
    with torch.autocast(ious.device.type, enabled=False):
        iou_sums = ((others @ member) * member).sum(-2) / 2  # every pair was met from both sides
    number = member.sum(-2)
    return torch.stack((iou_sums, number * (number - 1) / 2, number, visible.to(number.dtype)), dim=-2)


def diversity_terms(counts: Tensor) -> DiversityTerms:
    r"""Diversity, redundancy and imbalance of `diversity_counts`, of one image or added up over many.

    .. math:: \text{Redundancy} = \frac{1}{|R|} \sum_{r \in R} \frac{1}{C_r}
        \sum_{(i,j) \in \text{pairs}(P_r)} \text{IoU}(A_i, A_j), \quad
        \text{Imbalance} = \frac{\sum_{i=1}^K \sum_{j=1}^K |c_i - c_j|}{2 K^2 \mu}, \quad
        \text{Diversity} = 1 - \frac{\text{Redundancy} + \text{Imbalance}}{2}

    R holds the parts with at least one pair, C_r > 0; Redundancy is 0 when there is none (decision 13). Imbalance is
    the Gini coefficient of the number of prototypes on each visible part; over many images of the mean number *where
    the part is visible*: a part that is often hidden is not for that reason uneven. It is 1 when no prototype is
    assigned (decision 14).

    This is the only place where they are computed: `diversity`, `dapl.metrics.Diversity` and `dapl evaluate` call it.

    Args:
        counts: (…, 4, K).

    Returns:
        `DiversityTerms`; NaN where no part is visible.

    Example:
        >>> import torch
        >>> terms = diversity_terms(torch.tensor([[0.5, 0.0], [1.0, 0.0], [2.0, 1.0], [1.0, 1.0]]))
        >>> terms.redundancy, terms.imbalance
        (tensor(0.5000), tensor(0.1667))
    """
    iou_sums, pairs, number, seen = counts.unbind(-2)
    visible = seen > 0
    redundancy = (iou_sums / pairs.clamp(min=1)).sum(-1) / (pairs > 0).sum(-1).clamp(min=1)
    redundancy = redundancy.where(visible.any(-1), torch.nan)
    imbalance = gini(number / seen.clamp(min=1), visible)
    return DiversityTerms(1 - (redundancy + imbalance) / 2, redundancy, imbalance)


def redundancy(
    regions: Tensor,
    assigned: Tensor,
    visible: Tensor | None = None,
    kept: Tensor | None = None,
    images: Tensor | None = None,
) -> Tensor:
    """Mean IoU of the prototypes that are assigned to the same part: the redundancy of `diversity_terms`.

    Arguments as of `diversity`.

    Example:
        >>> import torch
        >>> regions = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 1, 1]]).bool().view(3, 1, 3)
        >>> assigned = torch.tensor([[1, 0], [1, 1], [0, 1]]).bool()
        >>> redundancy(regions, assigned)  # (1/3 + 1) / 2
        tensor(0.6667)
    """
    return _terms(regions, assigned, visible, kept, images).redundancy


def imbalance(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    """Gini coefficient of the number of prototypes per part: 0 when all parts have as many.

    The imbalance of `diversity_terms`; arguments as of `diversity`.

    Example:
        >>> import torch
        >>> imbalance(torch.tensor([[1, 0, 1], [1, 0, 0]]).bool())  # c = 2, 0, 1
        tensor(0.4444)
    """
    assigned, visible, _ = counted(assigned, visible, kept)
    return gini(assigned.sum(-2).to(torch.float32), visible)


def diversity(
    regions: Tensor,
    assigned: Tensor,
    visible: Tensor | None = None,
    kept: Tensor | None = None,
    images: Tensor | None = None,
) -> Tensor:
    r"""Diversity: are the prototypes spatially distinct and spread evenly over the parts?

    .. math:: \text{Diversity} = 1 - \frac{\text{Redundancy} + \text{Imbalance}}{2}

    with the terms of `diversity_terms`: 1/2 when no prototype is assigned, NaN when no part is visible.

    Args:
        regions: A, bool (…, P, H, W).
        assigned: bool (…, P, K), from `assign`.
        visible: bool (…, K), the parts that count; None means all.
        kept: bool (…, P), the prototypes that count; None means all.
        images: integer (…, P), the image each region lies on, where they differ; see `iou`.

    Returns:
        (…), in [0, 1].

    Example:
        >>> import torch
        >>> regions = torch.eye(2).bool().view(2, 1, 2)
        >>> diversity(regions, torch.tensor([[True, False], [False, True]]))
        tensor(1.)
        >>> diversity(regions[[0, 0]], torch.tensor([[True, False], [True, False]]))
        tensor(0.2500)
    """
    return _terms(regions, assigned, visible, kept, images).diversity


def counts_of_regions(
    regions: Tensor, assigned: Tensor, visible: Tensor | None, kept: Tensor | None, images: Tensor | None
) -> Tensor:
    """`diversity_counts` from the regions themselves."""
    check_boolean(regions, "regions", "prototypes")
    check_same(regions, assigned, "regions and assigned", leading=2, trailing=1)  # the P axis must agree as well
    return diversity_counts(iou(regions, images), assigned, visible, kept)


def _terms(
    regions: Tensor, assigned: Tensor, visible: Tensor | None, kept: Tensor | None, images: Tensor | None
) -> DiversityTerms:
    return diversity_terms(counts_of_regions(regions, assigned, visible, kept, images))


def gini(amounts: Tensor, present: Tensor) -> Tensor:
    """Gini coefficient of the amounts (…, K) that are present (bool …, K); 1 if they are all 0, NaN if none is."""
    both = present.unsqueeze(-1) & present.unsqueeze(-2)
    differences = ((amounts.unsqueeze(-1) - amounts.unsqueeze(-2)).abs() * both).sum((-2, -1))
    number, total = present.sum(-1), (amounts * present).sum(-1)
    value = (differences / (2 * number * total)).where(total > 0, 1.0)  # K² μ = K Σ c
    return value.where(number > 0, torch.nan)
