"""Prototypes against the mask of the object: how much of a map or region lies beside it, how much of it they cover."""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import check_boolean, check_maps, check_masks, check_same_shape, has_negative, which
from dapl.metrics.functional.pixel_sets import PixelSets, as_sets, shared_pixels


def background_bias(maps: Tensor, masks: Tensor, kept: Tensor | None = None) -> Tensor:
    r"""The share of a prototype's activation that lies on background, on the raw map.

    .. math:: B(p_j, x, m) = \frac{\sum_{h,w} (1 - m[h,w]) \cdot a_j[h,w]}{\sum_{h,w} a_j[h,w]}

    NaN for a prototype that is not kept, or whose map is 0 everywhere.

    Args:
        maps: a, floating point (…, P, H, W), not negative (log similarities never are).
        masks: m, (…, H, W) in [0, 1] on the grid of the maps: the area average of the image's mask (decision 4).
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        (…, P), in [0, 1].

    Example:
        >>> import torch
        >>> maps = torch.tensor([[[3.0, 1.0]], [[0.0, 2.0]]])
        >>> background_bias(maps, torch.tensor([[1.0, 0.5]]))
        tensor([0.1250, 0.5000])
    """
    check_maps(maps)
    masks = check_masks(masks, maps, "maps and masks")
    if has_negative(maps):
        raise DaplError("maps hold negative values, of which no share can be taken: shift them, or measure regions.")
    maps = maps if maps.dtype == torch.float64 else maps.to(torch.float32)
    value = share_beside(maps, masks.to(maps.dtype), torch.nan).clamp(max=1)  # two sums that round differently
    return value.where(which(kept, maps, value.shape, "kept", "prototypes"), torch.nan)


def share_beside(maps: Tensor, masks: Tensor, empty: float) -> Tensor:
    """The formula of `background_bias` alone, differentiable and unchecked, for the foreground loss (equation 5).

    ``empty``: the value of a map that is 0 everywhere. Shapes: maps (…, P, H, W), masks (…, H, W) → (…, P).

    Example:
        >>> share_beside(torch.tensor([[[3.0, 1.0]], [[0.0, 0.0]]]), torch.tensor([[1.0, 0.0]]), empty=0.0)
        tensor([0.2500, 0.0000])
    """
    total = maps.sum((-2, -1))
    beside = torch.einsum("...phw,...hw->...p", maps, 1 - masks)
    return (beside / total.clamp_min(torch.finfo(maps.dtype).tiny)).where(total > 0, empty)


def region_background_share(regions: Tensor | PixelSets, masks: Tensor, kept: Tensor | None = None) -> Tensor:
    r"""The share of a prototype's activation region that lies on background.

    .. math:: \frac{\sum_{x \in A_j} (1 - m[x])}{|A_j|}

    NaN for a prototype that is not kept, or whose region is empty. 1 minus its mean over images is the foreground share
    that pruning looks at (decision 7).

    Args:
        regions: A, bool (…, P, H, W), or `dapl.metrics.functional.PixelSets` of them.
        masks: m, (…, H, W) in [0, 1] at the size of the regions.
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        (…, P), in [0, 1].

    Example:
        >>> import torch
        >>> regions = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool().view(2, 1, 3)
        >>> region_background_share(regions, torch.tensor([[1, 1, 0]]).bool())
        tensor([0.0000, 0.5000])
    """
    regions = as_sets(regions)
    check_boolean(regions.sets, "regions", "prototypes")
    soft = check_masks(masks, regions.sets, "regions and masks")
    background = ~masks if masks.dtype == torch.bool else 1 - soft.detach()
    beside, _ = shared_pixels(regions, background.unsqueeze(-3))
    value = beside.squeeze(-1) / regions.sizes()
    return value.where(which(kept, regions.sets, value.shape, "kept", "prototypes"), torch.nan)


def object_overlap(regions: Tensor | PixelSets, masks: Tensor, kept: Tensor | None = None) -> Tensor:
    r"""The share of the object that a prototype's region covers.

    .. math:: \frac{|A_j \cap M|}{|M|}

    Neither high nor low is good: near 1 the prototype is the whole object, not a part of it. A region of the 95th
    percentile has 5 % of the pixels, so the value is at most 5 % over the object's share of the image. Costs no model
    pass of its own.

    Reference: P. Schlinge et al., "Comprehensive Evaluation of Prototype Neural Networks" (QuanProto), 2025.

    Arguments as of `region_background_share`.

    Returns:
        (…, P), in [0, 1]; NaN for a prototype that is not kept and for an image without object (QuanProto: 0).

    Example:
        >>> import torch
        >>> regions = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool().view(2, 1, 3)
        >>> object_overlap(regions, torch.tensor([[1, 0, 0]]).bool())
        tensor([1., 0.])
    """
    regions = as_sets(regions)
    check_boolean(regions.sets, "regions", "prototypes")
    soft = check_masks(masks, regions.sets, "regions and masks")
    shared, area = shared_pixels(regions, (masks if masks.dtype == torch.bool else soft.detach()).unsqueeze(-3))
    value = shared.squeeze(-1) / area
    return value.where(which(kept, regions.sets, value.shape, "kept", "prototypes"), torch.nan)


background_overlap = region_background_share
"""QuanProto's name for it; an empty region is NaN here and 0 there."""


def outside_inside_relevance_ratio(
    maps: Tensor, masks: Tensor, kept: Tensor | None = None, regions: Tensor | None = None
) -> Tensor:
    r"""OIRR: mean activation outside the object over mean activation inside; 0 is best, 1 means no preference.

    .. math:: \frac{\sum_x (1 - m[x]) \, a_j[x] \,/\, \sum_x (1 - m[x])}{\sum_x m[x] \, a_j[x] \,/\, \sum_x m[x]}

    The background bias B weighs the same two sums without the areas: OIRR = B/(1−B) · Σm/Σ(1−m), so OIRR does not
    mistake a small bird for a biased prototype. With ``regions`` all sums run over x ∈ A_j only: what QuanProto's code
    computes. Costs no model pass of its own.

    References: S. Lapuschkin et al., "Analyzing Classifiers: Fisher Vectors and Deep Neural Networks", CVPR 2016;
    P. Schlinge et al., "Comprehensive Evaluation of Prototype Neural Networks" (QuanProto), 2025.

    Args:
        maps: a, floating point (…, P, H, W), not negative. Raw maps will do; upsampled ones need ``clamp(min=0)``,
            since bicubic interpolation overshoots.
        masks: m, (…, H, W) in [0, 1] on the same grid; for raw maps the area average of the image's mask.
        kept: bool (…, P), the prototypes that count; None means all.
        regions: A, bool (…, P, H, W) on the same grid; None means everywhere.

    Returns:
        (…, P), at least 0. Infinite with activation outside and none inside; NaN without activation, without object, or
        for a prototype that is not kept.

    Example:
        >>> import torch
        >>> maps = torch.tensor([[[4.0, 2.0, 0.0]], [[0.0, 1.0, 1.0]]])
        >>> outside_inside_relevance_ratio(maps, torch.tensor([[1.0, 0.0, 0.0]]))
        tensor([0.2500,    inf])
    """
    check_maps(maps)
    masks = check_masks(masks, maps, "maps and masks").detach()
    if has_negative(maps):
        raise DaplError("maps hold negative values, of which no ratio can be taken: clamp upsampled maps at 0.")
    maps = maps.detach() if maps.dtype == torch.float64 else maps.detach().to(torch.float32)
    sides = [weights.to(maps.dtype).unsqueeze(-3) for weights in (masks, 1 - masks)]
    if regions is not None:
        check_boolean(regions, "regions", "prototypes")
        check_same_shape(maps, regions, "maps and regions")
        sides = [regions.to(maps.dtype) * weights for weights in sides]
    inside, outside = (_mean(maps, weights) for weights in sides)
    has_object = (masks.sum((-2, -1)) > 0).unsqueeze(-1)
    counts = has_object & which(kept, maps, maps.shape[:-2], "kept", "prototypes")
    return (outside / inside).where(counts, torch.nan)


def oirr_counts(ratios: Tensor) -> Tensor:
    """The sum of the finite ratios (…, P), their number, and the number of infinite ones: float64 (…, 3).

    OIRR over many images is the first over the second: one infinite ratio would swallow the mean.

    Example:
        >>> oirr_counts(torch.tensor([0.25, 0.5, torch.inf, torch.nan])).tolist()
        [0.75, 2.0, 1.0]
    """
    finite = ratios.isfinite()
    counts = ratios.double().where(finite, 0.0).sum(-1), finite.sum(-1), ratios.isinf().sum(-1)
    return torch.stack([count.double() for count in counts], dim=-1)


def share_counts(shares: Tensor) -> Tensor:
    """The sum of the shares (…, P) that are numbers, and how many: (…, 2). Their mean is the first over the second.

    Example:
        >>> share_counts(torch.tensor([0.25, 0.5, torch.nan]))
        tensor([0.7500, 2.0000])
    """
    return torch.stack((shares.nansum(-1), (~shares.isnan()).sum(-1).to(shares.dtype)), dim=-1)


def _mean(maps: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the pixels; 0 where there is no weight."""
    total = weights.sum((-2, -1))
    return (maps * weights).sum((-2, -1)) / total.where(total > 0, 1.0)
