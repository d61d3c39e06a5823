"""Diversity: are the prototypes of a part different pixels (Redundancy), and spread over the parts (Imbalance)?"""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.metrics.functional.checks import check_boolean, check_same, counted
from dapl.metrics.functional.regions import iou


def redundancy(
    regions: Tensor,
    assigned: Tensor,
    visible: Tensor | None = None,
    kept: Tensor | None = None,
    images: Tensor | None = None,
) -> Tensor:
    r"""Mean IoU of the prototypes that are assigned to the same part.

    .. math:: \text{Redundancy} = \frac{1}{|R|} \sum_{r \in R} \frac{1}{C_r}
        \sum_{(i,j) \in \text{pairs}(P_r)} \text{IoU}(A_i, A_j)

    R holds the parts with at least one pair, C_r > 0; 0 when there is none (decision 13).

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
        >>> regions = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 1, 1]]).bool().view(3, 1, 3)
        >>> assigned = torch.tensor([[1, 0], [1, 1], [0, 1]]).bool()
        >>> redundancy(regions, assigned)  # (1/3 + 1) / 2
        tensor(0.6667)
    """
    assigned, _, _ = counted(assigned, visible, kept)
    return mean_over_parts(*pair_overlap(regions, assigned, images))


def imbalance(assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
    r"""Gini coefficient of the number of prototypes a part: 0 when all parts have as many.

    .. math:: \text{Imbalance} = \frac{\sum_{i=1}^K \sum_{j=1}^K |c_i - c_j|}{2 K^2 \mu}

    over the K visible parts. 1 when no prototype is assigned (decision 14), NaN when no part is visible.

    Args:
        assigned: bool (…, P, K), from `assign`.
        visible: bool (…, K), the parts that count; None means all.
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        (…), in [0, 1].

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

    1/2 when no prototype is assigned (redundancy 0, imbalance 1), NaN when no part is visible.

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
    return 1 - (redundancy(regions, assigned, visible, kept, images) + imbalance(assigned, visible, kept)) / 2


def pair_overlap(regions: Tensor, assigned: Tensor, images: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """For each part the sum of IoU over the pairs assigned to it, and C_r, the number of pairs: both (…, K)."""
    check_boolean(regions, "regions", "prototypes")
    check_same(regions, assigned, "regions and assigned", leading=2, trailing=1)  # the P axis must agree as well
    return pair_sums(iou(regions, images), assigned)


def pair_sums(ious: Tensor, assigned: Tensor) -> tuple[Tensor, Tensor]:
    """As `pair_overlap`, from the IoU (…, P, P) of every two regions."""
    member = assigned.to(torch.float32)
    others = ious.to(torch.float32, copy=True)
    others.diagonal(dim1=-2, dim2=-1).zero_()
    with torch.autocast(ious.device.type, enabled=False):
        iou_sums = ((others @ member) * member).sum(-2) / 2  # every pair was met from both sides
    number = member.sum(-2)
    return iou_sums, number * (number - 1) / 2


def mean_over_parts(iou_sums: Tensor, pairs: Tensor) -> Tensor:
    """The mean over the parts with a pair of their mean IoU; 0 when there is none (decision 13)."""
    shared = (pairs > 0).sum(-1)
    return (iou_sums / pairs.clamp(min=1)).sum(-1) / shared.clamp(min=1)


def gini(amounts: Tensor, present: Tensor) -> Tensor:
    """Gini coefficient of the amounts (…, K) that are present (bool …, K); 1 if they are all 0, NaN if none is."""
    both = present.unsqueeze(-1) & present.unsqueeze(-2)
    differences = ((amounts.unsqueeze(-1) - amounts.unsqueeze(-2)).abs() * both).sum((-2, -1))
    number, total = present.sum(-1), (amounts * present).sum(-1)
    value = (differences / (2 * number * total)).where(total > 0, 1.0)  # K² μ = K Σ c
    return value.where(number > 0, torch.nan)
