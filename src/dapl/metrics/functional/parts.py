"""Part masks M_k from keypoints (decision 11): the paper needs masks of parts, CUB and its like give points."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import check_keypoints, check_positive, check_same_grid, shape_of
from dapl.metrics.functional.pixel_sets import first_and_last

PartMode = Literal["disc", "clipped", "voronoi", "point"]
RadiusOf = Literal["box", "image"]

RADIUS: dict[RadiusOf, float] = {"box": 0.12, "image": 0.08}
"""Radius of a disc as a share of √(area of the object's box), or of the image's side."""


def part_masks(
    keypoints: Tensor,
    visible: Tensor,
    size: int | tuple[int, int],
    mode: PartMode = "disc",
    radius: float | None = None,
    radius_of: RadiusOf = "box",
    boxes: Tensor | None = None,
    masks: Tensor | None = None,
) -> Tensor:
    r"""One mask per part, from one point per part.

    .. math:: M_k = \{x : \lVert x - \text{keypoint}_k \rVert \le \text{radius} \cdot \sqrt{\text{area of the box}}\}

    - ``disc``: the disc above, so that parts scale with the object; the pixel of the keypoint always belongs to it.
    - ``clipped``: the disc cut to the segmentation; empty if the keypoint lies too far beside it.
    - ``voronoi``: the segmentation, each pixel given to its nearest visible keypoint (a tie to the first of them).
    - ``point``: the one pixel of the keypoint. An overlap is then 0 or 1: the peers' point-in-region test.

    The box is the annotated one, else the bounding box of the segmentation; an image with neither has discs of
    0.08 × √(H·W). The mask of an invisible part, and of one whose keypoint lies outside the image (after a crop), is
    empty; `dapl.metrics.functional.visible_parts` takes it out of K.

    Args:
        keypoints: (…, K, 2), x and y in pixels; a pixel covers [x, x+1) × [y, y+1), its centre is at one half.
        visible: bool (…, K).
        size: height and width of the masks (of the image that the keypoints lie on).
        mode: see above.
        radius: as a share of what ``radius_of`` names; by default 0.12 of the box, 0.08 of the image.
        radius_of: ``box``, √(area of the object's box), or ``image``, √(H·W), the side of a square image.
        boxes: (…, 4), x and y of the upper left and of the lower right corner; a row without area means unknown.
        masks: (…, H, W), the segmentation, above ½ on the object; needed by ``clipped`` and ``voronoi``.

    Returns:
        bool (…, K, H, W).

    Example:
        >>> import torch
        >>> keypoints, visible = torch.tensor([[1.5, 1.5], [3.5, 0.5]]), torch.tensor([True, True])
        >>> part_masks(keypoints, visible, (3, 4), radius=0.5, boxes=torch.tensor([0.0, 0.0, 2.0, 2.0])).int()
        tensor([[[0, 1, 0, 0],
                 [1, 1, 1, 0],
                 [0, 1, 0, 0]],
        <BLANKLINE>
                [[0, 0, 1, 1],
                 [0, 0, 0, 1],
                 [0, 0, 0, 0]]], dtype=torch.int32)
        >>> part_masks(keypoints, visible, (3, 4), mode="point").sum((-2, -1))
        tensor([1, 1])
    """
    height, width = (size, size) if isinstance(size, int) else size
    visible = check_keypoints(keypoints, visible)
    for value, known, name in ((mode, get_args(PartMode), "mode"), (radius_of, get_args(RadiusOf), "radius_of")):
        if value not in known:
            raise DaplError(f"{name} of the part masks must be one of {', '.join(known)}, but is {value!r}.")
    if radius is not None:
        check_positive(radius, "radius of the part masks")
    if boxes is not None and boxes.shape != (*keypoints.shape[:-2], 4):
        raise DaplError(f"boxes must be (…, 4), one per image, but {shape_of(boxes)} do not fit {shape_of(keypoints)}.")
    foreground = None if masks is None else _foreground(masks, keypoints, height, width)
    x, y = keypoints.to(torch.float32).unbind(-1)
    visible = visible & (x >= 0) & (x <= width) & (y >= 0) & (y <= height)
    if mode == "point":
        return _with_points(torch.zeros((*x.shape, height, width), dtype=torch.bool, device=x.device), x, y, visible)
    if foreground is None and mode != "disc":
        raise DaplError(f"part masks of mode {mode} need a segmentation: give masks, or use mode disc or point.")
    if foreground is not None and mode == "voronoi":
        return _cells(x, y, visible, foreground)
    pixels = _radius(radius, radius_of, boxes, foreground, x.new_full(x.shape[:-1], (height * width) ** 0.5))
    discs = _discs(x, y, visible, pixels, height, width)
    if mode == "disc" or foreground is None:
        return discs
    return discs & foreground.unsqueeze(-3)


def _foreground(masks: Tensor, keypoints: Tensor, height: int, width: int) -> Tensor:
    check_same_grid(masks, masks.new_empty((height, width)), "masks and size")
    if masks.shape[:-2] != keypoints.shape[:-2]:
        raise DaplError(f"masks must be (…, height, width), but {shape_of(masks)} do not fit {shape_of(keypoints)}.")
    return masks if masks.dtype == torch.bool else masks > 0.5


def _radius(
    radius: float | None, radius_of: RadiusOf, boxes: Tensor | None, foreground: Tensor | None, side: Tensor
) -> Tensor:
    """The radius of an image's discs in pixels (…): from its box, else its segmentation, else its side."""
    share = RADIUS[radius_of] if radius is None else radius
    if radius_of == "image":
        return share * side
    area = torch.zeros_like(side)
    if foreground is not None:
        area = _extent(foreground.any(-2)) * _extent(foreground.any(-1))
    if boxes is not None:
        annotated = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1).to(torch.float32)
        area = torch.where(annotated > 0, annotated, area)
    return torch.where(area > 0, share * area.sqrt(), RADIUS["image"] * side)


def _extent(occupied: Tensor) -> Tensor:
    """From the first to the last True along the last axis, as a number of pixels (0 if there is none)."""
    first, last = first_and_last(occupied)
    return torch.where(occupied.any(-1), last - first + 1, 0).to(torch.float32)


def _squares(place: Tensor, number: int) -> Tensor:
    """Squared distance along one axis from places (…, K) to the centres of its pixels: (…, K, number)."""
    centres = torch.arange(number, dtype=torch.float32, device=place.device) + 0.5
    return (centres - place.unsqueeze(-1)).square()


def _discs(x: Tensor, y: Tensor, visible: Tensor, radius: Tensor, height: int, width: int) -> Tensor:
    # dx² ≤ r² − dy²: one comparison of a row with a column, and only of the rows that the disc reaches.
    reach = radius.square()[..., None, None] - _squares(y, height)
    rows = (reach >= 0).logical_and_(visible.unsqueeze(-1)).flatten().nonzero().flatten()
    discs = torch.zeros((*x.shape, height, width), dtype=torch.bool, device=x.device)
    across = _squares(x, width).flatten(0, -2)[rows // height]
    discs.view(-1, width)[rows] = across <= reach.flatten()[rows].unsqueeze(1)
    return _with_points(discs, x, y, visible)


def _with_points(masks: Tensor, x: Tensor, y: Tensor, visible: Tensor) -> Tensor:
    """The masks (…, K, H, W), in place, with the pixel of every visible keypoint in them."""
    height, width = masks.shape[-2:]
    column, row = (p.floor().nan_to_num(0).clamp(0, n - 1).long() for p, n in ((x, width), (y, height)))
    flat, place = masks.flatten(-2), (row * width + column).unsqueeze(-1)
    flat.scatter_(-1, place, flat.gather(-1, place) | visible.unsqueeze(-1))
    return masks


def _cells(x: Tensor, y: Tensor, visible: Tensor, foreground: Tensor) -> Tensor:
    """Voronoi cells of the visible keypoints within the foreground, one keypoint at a time to keep memory small."""
    height, width = foreground.shape[-2:]
    across = _squares(x, width).masked_fill(~visible.unsqueeze(-1), torch.inf)  # never nearer than what is seen
    down = _squares(y, height).nan_to_num(0)
    best = torch.full(foreground.shape, torch.inf, device=x.device)
    nearest = torch.full(foreground.shape, -1, dtype=torch.int16, device=x.device)
    for k in range(x.shape[-1]):
        distance = across[..., k, None, :] + down[..., k, :, None]
        nearest.masked_fill_(distance < best, k)
        torch.minimum(best, distance, out=best)
    nearest.masked_fill_(~foreground, -1)
    return nearest.unsqueeze(-3) == torch.arange(x.shape[-1], dtype=torch.int16, device=x.device)[:, None, None]
