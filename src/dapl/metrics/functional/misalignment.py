"""Spatial misalignment: do map, similarity and answer change when only pixels *outside* the shown region are attacked?

After Sacha et al., "Interpretability Benchmark for Evaluating Spatial Misalignment of Prototypical Parts Explanations",
AAAI 2024. Where the published code and ours differ, docs/companions.md says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    Generators,
    check_flags,
    check_images,
    check_integers,
    check_same,
    check_same_grid,
    check_same_shape,
    drawn,
    which,
)
from dapl.metrics.functional.pixel_sets import first_and_last


class Misalignment(NamedTuple):
    """What an attack outside the region changed; each a number, or (…) per image."""

    location: Tensor
    """PLC, Prototypical part Location Change: 1 − IoU of the prototype's regions before and after; 0 is best."""
    activation: Tensor
    """PAC, Activation Change: the share of its similarity that the prototype lost."""
    rank: Tensor
    """PRC, Rank Change: how many more prototypes of other classes are now more similar to the image than it is."""
    accuracy: Tensor
    """AC, Accuracy Change: accuracy before the attack minus accuracy after it."""


def location_change(before: Tensor, after: Tensor) -> Tensor:
    r"""PLC of each image, :math:`1 - |A \cap A'| / |A \cup A'|`; NaN where there was no region, 1 where none is left.

    Args:
        before: bool (…, H, W), the region of the prototype on the image (above the 90th percentile, as published).
        after: bool (…, H, W), on the attacked image.

    Returns:
        (…).

    Example:
        >>> import torch
        >>> location_change(torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]]))
        tensor(0.6667)
    """
    check_flags(before, "before", "height, width")
    check_flags(after, "after", "height, width")
    check_same_shape(before, after, "before and after")
    both, either = ((pixels).sum((-2, -1)) for pixels in (before & after, before | after))
    return (1 - both / either).where(before.flatten(-2).any(-1), torch.nan)


def activation_change(before: Tensor, after: Tensor) -> Tensor:
    r"""PAC of each image, :math:`1 - \max(s', 0) / s`; NaN where the similarity was not above 0 to begin with.

    Args:
        before: (…), the score of the prototype on the image.
        after: (…), on the attacked image.

    Returns:
        (…), at most 1; below 0 where the similarity rose.

    Example:
        >>> import torch
        >>> activation_change(torch.tensor([4.0, 2.0]), torch.tensor([1.0, 2.5]))
        tensor([ 0.7500, -0.2500])
    """
    check_same_shape(before, after, "before and after")
    return (1 - after.clamp(min=0) / before).where(before > 0, torch.nan)


def rank_change(before: Tensor, after: Tensor, prototype: Tensor, rivals: Tensor) -> Tensor:
    r"""PRC of each image: :math:`|\{i \in R : s'_i > s'_j\}| - |\{i \in R : s_i > s_j\}|` for the prototype j.

    Args:
        before: (…, P), the scores of all prototypes on the image.
        after: (…, P), on the attacked image.
        prototype: integers (…), j.
        rivals: bool (…, P), R: the prototypes of other classes than the image's.

    Returns:
        (…).

    Example:
        >>> import torch
        >>> before, after = torch.tensor([[5.0, 1.0, 2.0, 3.0]]), torch.tensor([[2.5, 1.0, 2.0, 3.0]])
        >>> rank_change(before, after, torch.tensor([0]), torch.tensor([[False, False, True, True]]))
        tensor([1.])
    """
    check_same_shape(before, after, "before and after")
    check_integers(prototype, before.shape[:-1], before.shape[-1], "prototype", "prototypes")
    rivals = which(rivals, before, before.shape, "rivals", "prototypes")

    def above(scores: Tensor) -> Tensor:
        return ((scores > scores.gather(-1, prototype.unsqueeze(-1))) & rivals).sum(-1)

    return (above(after) - above(before)).to(before.dtype)


def spatial_misalignment(
    regions: Tensor,
    attacked_regions: Tensor,
    scores: Tensor,
    attacked_scores: Tensor,
    prototype: Tensor,
    rivals: Tensor,
    right: Tensor,
    attacked_right: Tensor,
) -> Misalignment:
    """PLC, PAC, PRC and AC, the means over images of what an attack outside the region changed; 0 is best for all.

    The attack (`attack`) may change only pixels that `outside` gives. A region that held all that its prototype goes by
    would not mind. What changes shows that the map, the similarity or the answer hang on pixels that are not shown.

    Args:
        regions: bool (…, H, W), the region of one prototype on each image.
        attacked_regions: bool (…, H, W), of the same prototype on the attacked image.
        scores: (…, P), of all prototypes on the image.
        attacked_scores: (…, P), on the attacked image.
        prototype: integers (…), the one that is attacked.
        rivals: bool (…, P), the prototypes of other classes than the image's.
        right: bool (…), whether the answer was right.
        attacked_right: bool (…), whether it is on the attacked image.

    Returns:
        `Misalignment`, every field a number.

    Example:
        >>> import torch
        >>> region, moved = torch.tensor([[[True, False]]]), torch.tensor([[[False, True]]])
        >>> scores, attacked = torch.tensor([[4.0, 2.0]]), torch.tensor([[1.0, 2.0]])
        >>> yes, first, rival = torch.tensor([True]), torch.tensor([0]), torch.tensor([[False, True]])
        >>> spatial_misalignment(region, moved, scores, attacked, first, rival, yes, ~yes)
        Misalignment(location=tensor(1.), activation=tensor(0.7500), rank=tensor(1.), accuracy=tensor(1.))
    """
    terms = misalignment_terms(
        regions, attacked_regions, scores, attacked_scores, prototype, rivals, right, attacked_right
    )
    return Misalignment(*(term.double().nanmean().float() for term in terms))


def misalignment_terms(
    regions: Tensor,
    attacked_regions: Tensor,
    scores: Tensor,
    attacked_scores: Tensor,
    prototype: Tensor,
    rivals: Tensor,
    right: Tensor,
    attacked_right: Tensor,
) -> Misalignment:
    """What `spatial_misalignment` is the mean of: each field (…), NaN for an image that has no value.

    Example:
        >>> region, moved = torch.tensor([[[True, False]]]), torch.tensor([[[False, True]]])
        >>> scores, attacked = torch.tensor([[4.0, 2.0]]), torch.tensor([[1.0, 2.0]])
        >>> yes, first, rival = torch.tensor([True]), torch.tensor([0]), torch.tensor([[False, True]])
        >>> misalignment_terms(region, moved, scores, attacked, first, rival, yes, ~yes).activation
        tensor([0.7500])
    """
    chosen = prototype.unsqueeze(-1)
    return Misalignment(
        location_change(regions, attacked_regions),
        activation_change(scores.gather(-1, chosen), attacked_scores.gather(-1, chosen)).squeeze(-1),
        rank_change(scores, attacked_scores, prototype, rivals),
        right.to(scores.dtype) - attacked_right.to(scores.dtype),
    )


def outside(regions: Tensor, margin: int = 10) -> Tensor:
    """The pixels that an attack may change: all outside the box around the region, grown by a margin on each side.

    A region in pieces far apart has a large box, and leaves little to attack: read the share of these pixels as well.

    Args:
        regions: bool (…, H, W).
        margin: 10 pixels as published, for images of 224.

    Returns:
        bool (…, H, W); everything where the region is empty.

    Example:
        >>> import torch
        >>> outside(torch.tensor([[False, False, True, False, False, False]]), margin=1).int()
        tensor([[1, 0, 0, 0, 1, 1]], dtype=torch.int32)
    """
    check_flags(regions, "regions", "height, width")
    if margin < 0:
        raise DaplError(f"margin must be 0 or more, but is {margin}.")
    rows, columns = (_covered(occupied, margin) for occupied in (regions.any(-1), regions.any(-2)))
    return ~(rows.unsqueeze(-1) & columns.unsqueeze(-2))


def _covered(occupied: Tensor, margin: int) -> Tensor:
    """bool (…, S): from the first to the last of the occupied places, and a margin."""
    side = occupied.shape[-1]
    first, last = (place.unsqueeze(-1) for place in first_and_last(occupied))
    place = torch.arange(side, device=occupied.device)
    return (place >= first - margin) & (place <= last + margin) & occupied.any(-1, keepdim=True)


def attack(
    score: Callable[[Tensor], Tensor],
    images: Tensor,
    allowed: Tensor,
    epsilon: Tensor | float,
    steps: int,
    generator: Generators,
) -> Tensor:
    r"""Images changed where it is allowed, by at most ε, so that a score falls: projected gradient descent.

    .. math:: x_{t+1} = \Pi \big(x_t - \tfrac{2.5\,ε}{T} \operatorname{sign} \nabla s(x_t)\big), \qquad
        x_0 = \Pi(x + u), \; u \sim \mathcal{U}(-ε, ε)

    where Π keeps each pixel within ε of its value and within [0, 1], and puts back those that may not change (Madry et
    al., "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018). T forward and T backward passes.

    Args:
        score: images (B, channels, H, W) → scores (B), differentiable.
        images: (B, channels, H, W), uint8, or floating point in [0, 1].
        allowed: bool (B, H, W), the pixels that may change.
        epsilon: largest change of a value, one number or one for each channel.
        steps: T.
        generator: one for all; or one per image, so that the attack on an image does not depend on the batch.

    Returns:
        floating point in [0, 1], the shape of images.

    Example:
        >>> import torch
        >>> image, allowed = torch.full((1, 1, 1, 3), 0.5), torch.tensor([[[True, True, False]]])
        >>> attack(lambda x: x.sum((1, 2, 3)), image, allowed, 0.25, 4, torch.Generator().manual_seed(0))
        tensor([[[[0.2500, 0.2500, 0.5000]]]])
    """
    images = check_images(images)
    check_flags(allowed, "allowed", "height, width")
    check_same_grid(images, allowed, "images and allowed")
    check_same(images, allowed, "images and allowed", leading=3, trailing=2)
    if steps < 1:
        raise DaplError(f"steps must be 1 or more, but is {steps}.")
    bound = torch.as_tensor(epsilon, dtype=images.dtype, device=images.device).reshape(-1, 1, 1)
    if not bool((bound > 0).all()):
        raise DaplError("epsilon must be above 0 in every channel.")
    where, low, high = allowed.unsqueeze(-3), (images - bound).clamp(min=0), (images + bound).clamp(max=1)

    def projected(changed: Tensor) -> Tensor:
        return torch.where(where, changed.maximum(low).minimum(high), images)

    start = drawn(images.shape, generator, lambda shape, g: torch.rand(tuple(shape), generator=g, device=g.device))
    found = projected(images + (2 * start.to(images) - 1) * bound)
    for _ in range(steps):
        with torch.enable_grad():
            leaf = found.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(score(leaf).sum(), leaf)
        found = projected(found - 2.5 / steps * bound * gradient.sign())
    return found.detach()
