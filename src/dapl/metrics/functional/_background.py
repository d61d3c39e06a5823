"""How much of a prototype's activation lies beside the object."""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.errors import DaplError
from dapl.metrics.functional._checks import check_boolean, check_maps, check_masks, which
from dapl.metrics.functional._regions import shared_pixels


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
    if bool((maps < 0).any()):
        raise DaplError("maps hold negative values, of which no share can be taken: shift them, or measure regions.")
    maps = maps if maps.dtype == torch.float64 else maps.to(torch.float32)
    beside = (maps * (1 - masks).unsqueeze(-3)).sum((-2, -1))
    value = beside / maps.sum((-2, -1))
    return value.where(which(kept, maps, value.shape, "kept", "prototypes"), torch.nan)


def region_background_share(regions: Tensor, masks: Tensor, kept: Tensor | None = None) -> Tensor:
    r"""The share of a prototype's activation region that lies on background.

    .. math:: \frac{\sum_{x \in A_j} (1 - m[x])}{|A_j|}

    NaN for a prototype that is not kept, or whose region is empty. 1 minus its mean over images is the foreground share
    that pruning looks at (decision 7).

    Args:
        regions: A, bool (…, P, H, W).
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
    check_boolean(regions, "regions", "prototypes")
    soft = check_masks(masks, regions, "regions and masks")
    background = ~masks if masks.dtype == torch.bool else 1 - soft.detach()
    sums, _ = shared_pixels(regions, torch.stack((background, torch.ones_like(background)), dim=-3))
    value = sums[..., 0] / sums[..., 1]  # the second sum is the region's area
    return value.where(which(kept, regions, value.shape, "kept", "prototypes"), torch.nan)
