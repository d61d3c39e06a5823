"""One prototype for one part: Coverage by a matching within the image, and how many parts a prototype is on."""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.metrics.functional.checks import counted


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
