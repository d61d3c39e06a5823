"""Regions of other sizes than a fixed share of the image: sized by the object, or by the mass of the map."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import check_maps, check_share, shape_of
from dapl.metrics.functional.regions import on_pixels, pair, settle_ties


def sized_regions(maps: Tensor, numbers: Tensor, size: int | tuple[int, int] | None = None) -> Tensor:
    """Regions of a given number of pixels: the highest of each map, ties as in `activation_regions`.

    Args:
        maps: (…, P, h, w), finite.
        numbers: integers (…, P), the pixels of each region; more than there are take all, 0 none.
        size: of the image; None when the maps have that size already.

    Returns:
        bool (…, P, H, W); a flat map has an empty region.

    Example:
        >>> import torch
        >>> sized_regions(torch.tensor([[[1.0, 3.0, 2.0]], [[0.0, 0.0, 0.0]]]), torch.tensor([2, 2])).int()
        tensor([[[0, 1, 1]],
        <BLANKLINE>
                [[0, 0, 0]]], dtype=torch.int32)
    """
    check_maps(maps)
    if numbers.is_floating_point() or numbers.shape != maps.shape[:-2] or bool((numbers < 0).any()):
        raise DaplError(
            f"numbers must be integers from 0 up, one per map, but are {numbers.dtype} {shape_of(numbers)} "
            f"for maps of {shape_of(maps)}."
        )
    height, width = maps.shape[-2:] if size is None else pair(size)
    counts = numbers.flatten().cpu().clamp(max=height * width)
    regions = torch.empty((*maps.shape[:-2], height, width), dtype=torch.bool, device=maps.device)
    by_map = regions.flatten(0, -3)
    for rows, chunk, slack in on_pixels(maps, size):
        values, chosen = chunk.flatten(1).cpu().numpy(), counts[rows]
        ranks = [values.shape[1] - max(1, number) for number in chosen.tolist()]
        thresholds = [float(np.partition(one, rank)[rank]) for one, rank in zip(values, ranks, strict=True)]
        settled = settle_ties(chunk, torch.tensor(thresholds, dtype=torch.float64), slack.cpu(), chosen)
        by_map[rows] = settled.to(maps.device)
    return regions


def object_regions(
    maps: Tensor, areas: Tensor, size: int | tuple[int, int] | None = None, share: float = 0.1
) -> Tensor:
    r"""Regions as large as a share of the object, so that a small bird has small regions.

    .. math:: |A_j| = \max(1, [\text{share} \cdot |M|])

    of the highest pixels of the map, with the object's mask M; empty without an object. At 0.1, ten regions could just
    tile the object. A region by percentile has 5 % of the image, which is a third of CUB's median bird.

    Args:
        maps: (…, P, h, w), finite.
        areas: integers (…, P) or (…, 1), the pixels of the object.
        size: of the image; None when the maps have that size already.
        share: above 0 and at most 1.

    Returns:
        bool (…, P, H, W).

    Example:
        >>> import torch
        >>> object_regions(torch.rand(2, 7, 7), torch.tensor([5000]), size=224).sum((-2, -1))
        tensor([500, 500])
    """
    check_share(share, "share")
    numbers = (areas.double() * share).round().clamp(min=1).where(areas > 0, 0).long()
    return sized_regions(maps, numbers.expand(maps.shape[:-2]), size)


def mass_regions(maps: Tensor, size: int | tuple[int, int] | None = None, share: float = 0.2) -> Tensor:
    r"""The smallest regions that hold a share of the map's mass: small for a sharp map, large for a blurred one.

    .. math:: A_j = \operatorname{argmin}_A |A| \quad \text{with} \quad
        \sum_{x \in A} (a_j[x] - \min a_j) \ge \text{share} \cdot \sum_x (a_j[x] - \min a_j)

    Mass is counted from the map's minimum: log similarities are positive everywhere, and what is the same everywhere
    says nothing of any place.

    Args:
        maps: (…, P, h, w), finite.
        size: of the image; None when the maps have that size already.
        share: above 0 and at most 1.

    Returns:
        bool (…, P, H, W); a flat map has an empty region.

    Example:
        >>> import torch
        >>> mass_regions(torch.tensor([[[1.0, 5.0, 2.0, 4.0]]]), share=0.5).int()  # 4 of 0 + 4 + 1 + 3
        tensor([[[0, 1, 0, 0]]], dtype=torch.int32)
    """
    check_maps(maps)
    check_share(share, "share")
    numbers = torch.zeros(maps.shape[:-2].numel(), dtype=torch.long)
    for rows, chunk, _ in on_pixels(maps, size):
        values = np.sort(chunk.flatten(1).cpu().numpy(), axis=1)[:, ::-1]
        mass = np.cumsum(values - values[:, -1:], axis=1, dtype=np.float64)
        numbers[rows] = torch.from_numpy((mass < share * mass[:, -1:]).sum(1) + 1)
    return sized_regions(maps, numbers.view(maps.shape[:-2]), size)
