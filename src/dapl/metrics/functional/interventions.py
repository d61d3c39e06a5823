"""Explanations against interventions: take a part away, and see whether the explanation had named it.

The protocols of FunnyBirds (Hesse, Schaub-Meyer, Roth: FunnyBirds: A Synthetic Vision Dataset for a Part-Based Analysis
of Explainable AI Methods, ICCV 2023) as functions of numbers: importances that an explanation gives to parts, logits of
images without parts, labels that these images get. K parts, J pieces (parts, things around the object, and last the
rest of the image). docs/interventions.md says what is asked, and where it differs from the paper.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    check_boolean,
    check_flags,
    check_numbers,
    check_same_grid,
    check_same_shape,
)


def part_importance(relevance: Tensor, masks: Tensor) -> Tensor:
    r"""The relevance that an explanation puts on each piece of an image, and on the rest of it.

    .. math:: PI_k = \sum_{x \in M_k} R(x), \qquad PI_{J} = \sum_x R(x) - \sum_{k < J} PI_k

    Args:
        relevance: (…, H, W), what each pixel adds to the logit of a class; may be negative.
        masks: bool (…, J − 1, H, W), disjoint.

    Returns:
        (…, J), float64; the last is what lies on none of the masks.

    Example:
        >>> import torch
        >>> relevance = torch.tensor([[1.0, 2.0, 0.5]])
        >>> masks = torch.tensor([[[1, 0, 0]], [[0, 1, 0]]]).bool()
        >>> part_importance(relevance, masks)
        tensor([1.0000, 2.0000, 0.5000], dtype=torch.float64)
    """
    check_numbers(relevance, "relevance", "height, width")
    check_boolean(masks, "masks", "pieces")
    check_same_grid(relevance, masks, "relevance and masks")
    if bool((masks.sum(-3) > 1).any()):
        raise DaplError("masks overlap: a pixel may belong to one piece only, or its relevance would count twice.")
    values = relevance.double()
    pieces = (values.unsqueeze(-3) * masks).sum((-2, -1))
    return torch.cat([pieces, (values * ~masks.any(-3)).sum((-2, -1)).unsqueeze(-1)], dim=-1)


def important_pieces(importance: Tensor, thresholds: Tensor) -> Tensor:
    r"""The pieces that an explanation calls important, one set for each threshold.

    .. math:: P_t = \{k : PI_k > t \sum_l \max(PI_l, 0)\}

    For relevance that is nowhere negative the sum is that of the whole image, as in the paper.

    Args:
        importance: (…, J), of all pieces and the rest, as `part_importance` gives them.
        thresholds: (T), shares.

    Returns:
        bool (…, T, J).

    Example:
        >>> import torch
        >>> important_pieces(torch.tensor([6.0, 3.0, 1.0]), torch.tensor([0.05, 0.2, 0.5]))
        tensor([[ True,  True,  True],
                [ True,  True, False],
                [ True, False, False]])
    """
    check_numbers(importance, "importance", "pieces")
    whole = importance.clamp_min(0).sum(-1, keepdim=True)
    return importance.unsqueeze(-2) > thresholds.unsqueeze(-1) * whole.unsqueeze(-2)


def sufficient_sets(styles: Tensor, label: int, visible: Tensor) -> Tensor:
    """The minimal sets of visible parts that tell a class from all others: no part of such a set can be spared.

    Args:
        styles: integer C×K, how each part of each class looks; two classes share a part where the numbers agree.
        label: the class.
        visible: bool K.

    Returns:
        bool S×K; S is 0 where the visible parts do not tell the class.

    Example:
        >>> import torch
        >>> styles = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 0]])     # the third part is the same everywhere
        >>> sufficient_sets(styles, 0, torch.ones(3, dtype=torch.bool)).int()
        tensor([[1, 1, 0]], dtype=torch.int32)
        >>> sufficient_sets(styles, 1, torch.ones(3, dtype=torch.bool)).int()
        tensor([[0, 1, 0]], dtype=torch.int32)
    """
    others = torch.arange(len(styles)) != label
    # For every other class, as bits, the parts in which it differs; a set suffices if it meets all of them.
    differing = {_bits(row) for row in (styles[others] != styles[label]) & visible}
    parts = [part for part in range(styles.shape[1]) if visible[part]]
    found: list[int] = []
    for size in range(1, len(parts) + 1):
        for chosen in combinations(parts, size):
            bits = sum(1 << part for part in chosen)
            if any(bits & smaller == smaller for smaller in found):
                continue
            if all(bits & row for row in differing):
                found.append(bits)
    columns = torch.arange(styles.shape[1])
    return torch.tensor(found, dtype=torch.long).unsqueeze(1).bitwise_right_shift(columns).bitwise_and(1).bool()


def _bits(flags: Tensor) -> int:
    return sum(1 << place for place, flag in enumerate(flags.tolist()) if flag)


def controlled_data_check(important: Tensor, sufficient: Tensor) -> Tensor:
    r"""CSDC: does the explanation name parts that suffice to tell the class?

    .. math:: \text{CSDC} = \max_{S} \frac{|S \cap P|}{|S|} \quad\text{over the minimal sufficient sets } S

    Args:
        important: bool (…, K), the parts that it names.
        sufficient: bool S×K, as `sufficient_sets` gives them.

    Returns:
        (…), NaN where there is no sufficient set.

    Example:
        >>> import torch
        >>> sufficient = torch.tensor([[1, 1, 0], [0, 0, 1]]).bool()
        >>> controlled_data_check(torch.tensor([[1, 0, 0], [0, 0, 1]]).bool(), sufficient)
        tensor([0.5000, 1.0000])
    """
    check_flags(important, "important", "parts")
    if not len(sufficient):
        return torch.full(important.shape[:-1], torch.nan)
    named = important.float() @ sufficient.float().T
    return (named / sufficient.sum(1)).amax(-1)


def single_deletion(importance: Tensor, drops: Tensor, visible: Tensor) -> Tensor:
    r"""SD: does the logit fall most when the part is taken away that is said to matter most?

    .. math:: \text{SD} = \frac{1 + \rho}{2}

    where :math:`\rho` is Spearman's rank correlation, over the visible parts, of importances with what the logit loses
    without each part; ties share their mean rank. 0.5 is chance.

    Args:
        importance: (…, K).
        drops: (…, K), logit of the image − logit of the image without the part.
        visible: bool (…, K).

    Returns:
        (…), float64; NaN where fewer than two parts are visible, or one of the two is the same for all of them.

    Example:
        >>> import torch
        >>> drops, visible = torch.tensor([3.0, 1.0, 0.0, 9.0]), torch.tensor([1, 1, 1, 0]).bool()
        >>> single_deletion(torch.tensor([0.9, 0.5, 0.1, 0.0]), drops, visible)
        tensor(1., dtype=torch.float64)
        >>> single_deletion(torch.tensor([0.1, 0.5, 0.9, 0.0]), drops, visible)
        tensor(0., dtype=torch.float64)
    """
    check_numbers(importance, "importance", "parts")
    check_numbers(drops, "drops", "parts")
    check_same_shape(importance, drops, "importance and drops")
    check_flags(visible, "visible", "parts")
    first, second = _centred_ranks(importance, visible), _centred_ranks(drops, visible)
    spread = first.square().sum(-1) * second.square().sum(-1)
    correlation = (first * second).sum(-1) / spread.sqrt()  # 0 / 0 where all ranks are the same
    return (1 + correlation.clamp(-1, 1)) / 2


def _centred_ranks(values: Tensor, counted: Tensor) -> Tensor:
    """Ranks (ties share their mean) among the values that count, minus their mean; 0 for the others."""
    values, pairs = values.double(), counted.unsqueeze(-1) & counted.unsqueeze(-2)
    difference = values.unsqueeze(-1) - values.unsqueeze(-2)
    ranks = ((difference > 0) & pairs).double().sum(-1) + ((difference == 0) & pairs).double().sum(-1) / 2
    number = counted.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(counted, ranks - ranks.sum(-1, keepdim=True) / number, 0.0)


def irrelevant_pieces(drops: Tensor, worth: Tensor, share: float = 0.05) -> Tensor:
    r"""The pieces without which the logit hardly falls, or rises.

    .. math:: I = \{k : \text{drop}_k < \text{share} \cdot |\text{worth}|\}

    Args:
        drops: (…, J), what the logit loses without each piece.
        worth: (…), what the whole object adds to the logit: that of the image − that of the image without the object.
            The paper takes the logit itself, which would let a constant that is added to all logits decide.
        share: of that worth.

    Returns:
        bool (…, J).

    Example:
        >>> import torch
        >>> irrelevant_pieces(torch.tensor([4.0, 0.1, -2.0]), torch.tensor(10.0))
        tensor([False,  True,  True])
    """
    return drops < share * worth.abs().unsqueeze(-1)


def distractibility(important: Tensor, irrelevant: Tensor) -> Tensor:
    r"""D: does the explanation leave out what does not matter?

    .. math:: \text{D} = 1 - \frac{|P \cap I|}{|I|}

    Args:
        important: bool (…, J), the pieces that it names.
        irrelevant: bool (…, J), those that do not matter, as `irrelevant_pieces` finds them.

    Returns:
        (…), NaN where every piece matters.

    Example:
        >>> import torch
        >>> distractibility(torch.tensor([True, True, False]), torch.tensor([False, True, True]))
        tensor(0.5000)
    """
    check_flags(important, "important", "pieces")
    check_flags(irrelevant, "irrelevant", "pieces")
    return 1 - (important & irrelevant).float().sum(-1) / irrelevant.sum(-1)


def target_sensitivity(first: Tensor, second: Tensor, of_first: Tensor, of_second: Tensor) -> Tensor:
    r"""TS: does the explanation of a class name the parts that speak for this class, rather than for another one?

    The image shows parts :math:`A` of class a and parts :math:`B` of class b, and is neither.

    .. math:: \text{TS} = \tfrac12 [PI_a(A) > PI_b(A)] + \tfrac12 [PI_b(B) > PI_a(B)]

    Chance is 0.5 at most, less where ties are likely; an explanation that is the same for every class gets 0.

    Args:
        first: (…, K), importances for class a.
        second: (…, K), importances for class b.
        of_first: bool (…, K), the parts A.
        of_second: bool (…, K), the parts B.

    Returns:
        (…).

    Example:
        >>> import torch
        >>> a, b = torch.tensor([1, 0, 0]).bool(), torch.tensor([0, 0, 1]).bool()
        >>> target_sensitivity(torch.tensor([5.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 4.0]), a, b)
        tensor(1.)
    """
    check_same_shape(first, second, "importances for the first and for the second class")
    for_a = (first * of_first).sum(-1) > (second * of_first).sum(-1)
    for_b = (second * of_second).sum(-1) > (first * of_second).sum(-1)
    return (for_a.float() + for_b.float()) / 2


def background_independence(drops: Tensor, worth: Tensor, visible: Tensor, share: float = 0.05) -> Tensor:
    r"""BI: the share of the things around the object that the logit can do without (`irrelevant_pieces`).

    It is a property of the model; no explanation takes part in it.

    Args:
        drops: (…, T), what the logit loses without each thing.
        worth: (…), what the whole object adds to the logit.
        visible: bool (…, T).
        share: of that worth.

    Returns:
        (…), NaN where no thing is visible.

    Example:
        >>> import torch
        >>> background_independence(torch.tensor([4.0, 0.1]), torch.tensor(10.0), torch.tensor([True, True]))
        tensor(0.5000)
    """
    check_flags(visible, "visible", "things")
    spared = irrelevant_pieces(drops, worth, share) & visible
    return spared.float().sum(-1) / visible.sum(-1)


def completeness(csdc: Tensor, preservation: Tensor, deletion: Tensor, distractible: Tensor) -> Tensor:
    r"""Com: the explanation holds all that matters, and no more.

    .. math:: \text{Com} = \tfrac12 \left( \tfrac13 (\text{CSDC} + \text{PC} + \text{DC}) + \text{D} \right)

    Args:
        csdc: (…), `controlled_data_check`.
        preservation: (…), PC: 1 where the label stays although all parts that are not important are taken away.
        deletion: (…), DC: 1 where the label changes when all important parts are taken away.
        distractible: (…), D: `distractibility`.

    Returns:
        (…).

    Example:
        >>> import torch
        >>> completeness(*torch.tensor([1.0, 1.0, 0.4, 0.6]))
        tensor(0.7000)
    """
    shapes = {tensor.shape for tensor in (csdc, preservation, deletion, distractible)}
    if len(shapes) > 1:
        raise DaplError(f"the four scores must have one shape, but have {' and '.join(map(str, map(tuple, shapes)))}.")
    return ((csdc + preservation + deletion) / 3 + distractible) / 2
