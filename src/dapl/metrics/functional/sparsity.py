"""Sparsity: how few prototypes does the model, a class, an explanation make do with?"""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import check_integers, check_numbers, shape_of, which


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
