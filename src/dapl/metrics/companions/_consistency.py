"""Consistency: does a prototype show the same part in all images of its class? (Huang et al. 2023)"""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.errors import DaplError
from dapl.metrics.companions._checks import check_flags, check_integers, check_share
from dapl.metrics.companions._keypoints import pixel_of, visible_keypoints
from dapl.metrics.functional import upsample
from dapl.metrics.functional._checks import check_maps, check_same, shape_of, which
from dapl.metrics.functional._regions import _pair

_CHUNK_PIXELS = 2**22
"""Pixels of upsampled maps held at once."""


def peaks(maps: Tensor, size: int | tuple[int, int] | None = None) -> Tensor:
    r"""The pixel where a prototype's upsampled map is highest; of several, the first in row-major order.

    .. math:: \operatorname{argmax}_{(x, y)} a_j[y, x]

    Both coordinates are of one and the same pixel (ProtoPNeXt takes the row for both when there is a tie).

    Args:
        maps: (…, P, h, w), finite.
        size: of the image; None when the maps have that size already.

    Returns:
        integers (…, P, 2), x (column) and y (row).

    Example:
        >>> import torch
        >>> peaks(torch.tensor([[[0.0, 1.0, 3.0], [3.0, 2.0, 0.0]]]))
        tensor([[2, 0]])
    """
    check_maps(maps)
    height, width = maps.shape[-2:] if size is None else _pair(size)
    flat = maps.detach().flatten(0, -3)
    flat = flat if flat.dtype == torch.float64 else flat.to(torch.float32)
    flat = flat - flat.amin((-2, -1), keepdim=True)  # a constant map keeps its ties, see `activation_regions`
    chunks = flat.split(max(1, _CHUNK_PIXELS // (height * width)))
    pixels = chunks if size is None else (upsample(chunk, (height, width)) for chunk in chunks)
    places = torch.cat([chunk.flatten(1).argmax(1) for chunk in pixels])
    return torch.stack((places % width, places // width), dim=-1).view(*maps.shape[:-2], 2)


def corresponding_parts(
    maps: Tensor, keypoints: Tensor, visible: Tensor, size: int | tuple[int, int], half_size: int = 36
) -> Tensor:
    r"""The parts that a prototype corresponds to in an image: those in a box around its highest pixel.

    .. math:: o_{jk} = [\, k \text{ visible},\ |x_k - x_j| \le \text{half_size},\ |y_k - y_j| \le \text{half_size} \,]

    with the pixels :math:`(x_k, y_k)` of the keypoint and :math:`(x_j, y_j)` of `peaks`, bounds included: the box of
    "72 px" of the paper holds 73 pixels a side. A part whose keypoint lies outside the picture is not visible.

    No model pass beyond the one that gave the maps.

    Args:
        maps: (…, P, h, w) of the prototypes of each image's class.
        keypoints: (…, K, 2), x and y in pixels of the image as the model saw it.
        visible: bool (…, K).
        size: height and width of that image; the maps are upsampled to it bicubically.
        half_size: 36 as published, for images of 224 px.

    Returns:
        bool (…, P, K).

    Example:
        >>> import torch
        >>> maps = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])  # highest at the upper right
        >>> keypoints = torch.tensor([[200.0, 20.0], [20.0, 200.0]])
        >>> corresponding_parts(maps, keypoints, torch.ones(2).bool(), 224)
        tensor([[ True, False]])
    """
    if half_size < 0:
        raise DaplError(f"half_size must be at least 0 pixels, but is {half_size:g}.")
    visible = visible_keypoints(keypoints, visible, size)
    check_maps(maps)
    check_same(maps, keypoints, "maps and keypoints", leading=3, trailing=2)
    offsets = pixel_of(keypoints, size).unsqueeze(-3) - peaks(maps, size).unsqueeze(-2)
    return (offsets.abs() <= half_size).all(-1) & visible.unsqueeze(-2)


def count_parts(
    corresponding: Tensor, visible: Tensor, prototypes: Tensor, number: int, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """How often each prototype corresponded to a part, and how often it could have: over the images of its class.

    Args:
        corresponding: bool (B, M, K), from `corresponding_parts`, for the M prototypes of each image's class.
        visible: bool (B, K), from `visible_keypoints`.
        prototypes: integers (B, M), which prototypes these are.
        number: P, of all prototypes.
        kept: bool (B, M), those that count; None means all.

    Returns:
        hits and seen, integers (P, K).

    Example:
        >>> import torch
        >>> corresponding = torch.tensor([[[True, False]], [[True, True]]])
        >>> visible = torch.tensor([[True, False], [True, True]])
        >>> count_parts(corresponding, visible, torch.tensor([[1], [1]]), number=2)
        (tensor([[0, 0],
                [2, 1]]), tensor([[0, 0],
                [2, 1]]))
    """
    check_flags(corresponding, "corresponding", "images, prototypes, parts")
    if corresponding.ndim != 3:
        raise DaplError(f"corresponding must be (images, prototypes, parts), but is {shape_of(corresponding)}.")
    images, named, parts = corresponding.shape
    check_integers(prototypes, torch.Size((images, named)), number, "prototypes", "prototypes")
    visible = which(visible, corresponding, torch.Size((images, parts)), "visible", "parts")
    kept = which(kept, corresponding, torch.Size((images, named)), "kept", "prototypes")
    seen = visible.unsqueeze(1) & kept.unsqueeze(2)
    empty = torch.zeros(number, parts, dtype=torch.long, device=corresponding.device)
    rows = prototypes.to(corresponding.device).flatten()
    hits, seen = (empty.index_add(0, rows, flags.flatten(0, 1).long()) for flags in (corresponding & seen, seen))
    return hits, seen


def consistent_prototypes(hits: Tensor, seen: Tensor, threshold: float = 0.8) -> Tensor:
    r"""Which prototypes are consistent: some part is hit in at least 0.8 of the images in which it is visible.

    .. math:: \exists k : \text{hits}_{jk} / \text{seen}_{jk} \ge \text{threshold}

    Args:
        hits: integers (…, P, K), from `count_parts`.
        seen: the same shape.
        threshold: 0.8 as published.

    Returns:
        (…, P), 1 or 0; NaN where no part was ever visible (or the prototype pruned), so that nothing can be said.

    Example:
        >>> import torch
        >>> consistent_prototypes(torch.tensor([[4, 1], [3, 0], [0, 0]]), torch.tensor([[5, 5], [4, 9], [0, 0]]))
        tensor([1., 0., nan])
    """
    check_share(threshold, "threshold")
    if hits.shape != seen.shape or hits.ndim < 2 or bool(((hits < 0) | (hits > seen)).any()):
        raise DaplError(
            f"hits must be counts (…, prototypes, parts) that are at most seen, "
            f"but are {shape_of(hits)} beside {shape_of(seen)}: both come from `count_parts`."
        )
    rate = hits.double() / seen.clamp(min=1)  # exact quotients round as the threshold does: 4/5 is at least 0.8
    return (rate >= threshold).any(-1).float().where(seen.any(-1), torch.nan)


def consistency(hits: Tensor, seen: Tensor, threshold: float = 0.8) -> Tensor:
    r"""Consistency: the share of prototypes that show the same part in (nearly) all images of their class.

    .. math:: \frac{1}{|\mathcal{P}|} \sum_j [\, \max_k \text{hits}_{jk} / \text{seen}_{jk} \ge \text{threshold} \,]

    over the prototypes that could be measured, see `consistent_prototypes`. The paper prints it in percent. Costs
    no model pass of its own.

    Reference: Q. Huang et al., "Evaluation and Improvement of Interpretability for Self-Explainable Part-Prototype
    Networks", ICCV 2023.

    Args:
        hits: integers (…, P, K), from `count_parts` over the test images.
        seen: the same shape.
        threshold: 0.8 as published.

    Returns:
        (…), in [0, 1]; NaN when nothing could be measured.

    Example:
        >>> import torch
        >>> consistency(torch.tensor([[4, 1], [3, 0], [0, 0]]), torch.tensor([[5, 5], [4, 9], [0, 0]]))
        tensor(0.5000)
    """
    return consistent_prototypes(hits, seen, threshold).nanmean(-1)
