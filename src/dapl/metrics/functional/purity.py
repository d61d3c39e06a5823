"""Purity: do the images that a prototype likes best all show it the same part? (PIP-Net, Nauta et al. 2023)

The best images of each prototype as a table of fixed size, which batches and processes can be merged into.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    check_flags,
    check_integers,
    check_keypoints,
    check_numbers,
    check_positive,
    check_same,
    check_same_shape,
    shape_of,
    which,
)
from dapl.metrics.functional.regions import pair


def merge_left_right(part_names: Sequence[str]) -> tuple[list[str], Tensor]:
    """Which parts are one when left and right are not told apart, as PIP-Net does (12 of CUB's 15 remain).

    Returns:
        the names of the merged parts, G of them in the order of their first part, and for each of the K parts the
        merged one it belongs to: integers (K), for `merge_parts`.

    Example:
        >>> merge_left_right(["beak", "left_wing", "right_wing"])
        (['beak', 'wing'], tensor([0, 1, 1]))
    """
    if not part_names:
        raise DaplError("there are no part names to merge: purity needs data with annotated parts.")
    merged: dict[str, str] = {}
    keys: list[str] = []
    for name in part_names:
        words = [word for word in re.split(r"[\s_-]+", name) if word.lower() not in ("left", "right")]
        both = " ".join(words) or name
        keys.append(both.lower())
        merged.setdefault(keys[-1], both)
    return list(merged.values()), torch.tensor([list(merged).index(key) for key in keys])


def merge_parts(flags: Tensor, groups: Tensor) -> Tensor:
    """Flags of parts as flags of merged parts: up if that of any member is (either wing in the patch, or visible).

    Args:
        flags: bool (…, K), presence or visibility.
        groups: integers (K), from `merge_left_right`, or any grouping numbered from 0.

    Returns:
        bool (…, G).

    Example:
        >>> import torch
        >>> merge_parts(torch.tensor([[False, False, True], [True, False, False]]), torch.tensor([0, 1, 1]))
        tensor([[False,  True],
                [ True, False]])
    """
    check_flags(flags, "flags", "parts")
    check_integers(groups, flags.shape[-1:], flags.shape[-1], "groups", "parts")
    member = torch.nn.functional.one_hot(groups.long()).to(device=flags.device, dtype=torch.float32)
    with torch.autocast(flags.device.type, enabled=False):
        return (flags.to(torch.float32) @ member) > 0


def patches(locations: Tensor, grid: tuple[int, int], size: int | tuple[int, int], patch_size: float = 32) -> Tensor:
    """The square of the image around a location of the grid, moved inside the image where it would stick out.

    A cell of a 7×7 grid on 224 px *is* its patch of 32 px, as in PIP-Net. For other grids the patch is centred on the
    cell; PIP-Net steps by a rounded stride there.

    Args:
        locations: integers (…), row · w + column, as ``Output.locations`` has them.
        grid: h and w of the map.
        size: height and width of the image as the model saw it.
        patch_size: 32 as published, for images of 224 px.

    Returns:
        (…, 4), x and y of the upper left and of the lower right corner.

    Example:
        >>> import torch
        >>> patches(torch.tensor([0, 8]), (7, 7), 224)
        tensor([[ 0.,  0., 32., 32.],
                [32., 32., 64., 64.]])
    """
    check_positive(patch_size, "patch_size")
    check_integers(locations, locations.shape, grid[0] * grid[1], "locations", "cells of the grid")
    corners = []
    for cell, cells, side in zip(
        (locations % grid[1], locations // grid[1]), grid[::-1], pair(size)[::-1], strict=True
    ):
        length = min(patch_size, side)
        centre = (cell.to(torch.float32) + 0.5) * (side / cells)
        start = (centre - length / 2).clamp(0, side - length)
        corners.append((start, start + length))
    (left, right), (top, bottom) = corners
    return torch.stack((left, top, right, bottom), dim=-1)


def parts_in_patches(boxes: Tensor, keypoints: Tensor, visible: Tensor) -> Tensor:
    """Which visible parts lie in each prototype's patch, bounds included.

    Args:
        boxes: (…, P, 4), from `patches`.
        keypoints: (…, K, 2), in pixels of the same image: moved with every crop and resize that the model's image went
            through. (PIP-Net's code scales them but does not shift them for box crops.)
        visible: bool (…, K).

    Returns:
        bool (…, P, K).

    Example:
        >>> import torch
        >>> boxes = torch.tensor([[0.0, 0.0, 32.0, 32.0]])
        >>> keypoints = torch.tensor([[32.0, 5.0], [33.0, 5.0], [1.0, 1.0]])
        >>> parts_in_patches(boxes, keypoints, torch.tensor([True, True, False]))
        tensor([[ True, False, False]])
    """
    visible = check_keypoints(keypoints, visible)
    if not boxes.is_floating_point() or boxes.ndim < 2 or boxes.shape[-1] != 4:
        raise DaplError(f"boxes must be floating point (…, prototypes, 4), but are {boxes.dtype} {shape_of(boxes)}.")
    check_same(boxes, keypoints, "boxes and keypoints", leading=2, trailing=2)
    left, top, right, bottom = boxes.unsqueeze(-2).unbind(-1)  # (…, P, 1)
    x, y = keypoints.unsqueeze(-3).unbind(-1)  # (…, 1, K)
    return (x >= left) & (x <= right) & (y >= top) & (y <= bottom) & visible.unsqueeze(-2)


def top_images(scores: Tensor, top: int = 10, images: Tensor | None = None) -> Tensor:
    """The images on which each prototype scores highest; of equal scores, those with the lower number.

    Args:
        scores: (n, P), the similarity of each prototype to its nearest patch in each image.
        top: 10 as published.
        images: integers (n), a number for each image to settle ties with; None means the order given.

    Returns:
        rows of scores, integers (P, min(top, n)), best first.

    Example:
        >>> import torch
        >>> top_images(torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 5.0]]), top=2)
        tensor([[1, 2],
                [2, 0]])
    """
    check_numbers(scores, "scores", "images, prototypes", finite=False)
    if scores.ndim != 2 or bool(scores.isnan().any()):
        raise DaplError(f"scores must be (images, prototypes) without NaN, but are {shape_of(scores)}.")
    if top < 1:
        raise DaplError(f"top must be at least 1 image, but is {top}.")
    numbers = torch.arange(len(scores), device=scores.device) if images is None else images.to(scores.device)
    if numbers.shape != scores.shape[:1]:
        raise DaplError(f"images must be one number per image, but are {shape_of(numbers)} for {len(scores)} images.")
    return ranked(scores.detach().mT, numbers.expand(scores.shape[1], -1))[:, :top]


def ranked(scores: Tensor, images: Tensor) -> Tensor:
    """Positions along the last axis by falling score, then by rising number of the image."""
    order = images.argsort(dim=-1, stable=True)
    return order.gather(-1, scores.gather(-1, order).argsort(dim=-1, descending=True, stable=True))


def purity(present: Tensor, visible: Tensor) -> Tensor:
    r"""Purity of each prototype: how often its purest part lies in its patch, over its best images.

    .. math:: \text{Purity}_j = \max_k \frac{\#\{x \in T_j : k \text{ in the patch of } p_j \text{ on } x\}}
        {\#\{x \in T_j : k \text{ visible}\}}

    where :math:`T_j` are the 10 images of the *training* (projection) set, of any class, with the highest score of
    prototype j. The paper's figure is the mean over the prototypes that have a class weight above 1e-5. Costs one pass
    over the training images, with no maps: scores and locations of a forward pass are enough.

    Reference: M. Nauta et al., "PIP-Net: Patch-Based Intuitive Prototypes for Interpretable Image Classification",
    CVPR 2023.

    Args:
        present: bool (…, P, T, G), from `parts_in_patches` on the `top_images`, left and right merged.
        visible: bool (…, P, T, G), the parts visible in these images, merged.

    Returns:
        (…, P), in [0, 1]; NaN where no part is visible in any of the images.

    Example:
        >>> import torch
        >>> present = torch.tensor([[[True, False], [True, False], [False, False]]])
        >>> visible = torch.tensor([[[True, True], [True, True], [True, False]]])
        >>> purity(present, visible)
        tensor([0.6667])
    """
    check_flags(present, "present", "prototypes, images, parts")
    check_flags(visible, "visible", "prototypes, images, parts")
    check_same_shape(present, visible, "present and visible")
    number = visible.sum(-2)
    share = (present & visible).sum(-2).double() / number.clamp(min=1)
    return share.amax(-1).where(number.any(-1), torch.nan).float()


@dataclass(frozen=True)
class PurityTable:
    """Tables (P, top, 2 + 2·G): score, number of the image, presence and visibility of the G parts.

    One tensor holds it all, because processes are merged a tensor at a time. float64, in which scores and numbers of
    images are exact; a row that is still free has the score −∞.
    """

    prototypes: int
    parts: int
    top: int = 10

    def __post_init__(self) -> None:
        for name in ("prototypes", "parts", "top"):
            if getattr(self, name) < 1:
                raise DaplError(f"purity needs at least 1 of {name}, but was made for {getattr(self, name)}.")

    def empty(self) -> Tensor:
        table = torch.zeros(self.prototypes, self.top, 2 + 2 * self.parts, dtype=torch.float64)
        table[..., 0], table[..., 1] = -torch.inf, torch.inf
        return table

    def rows(
        self, scores: Tensor, present: Tensor, visible: Tensor, images: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """The best of a batch: scores (B, P), present (B, P, G), visible (B, G), images (B), kept (P) or (B, P)."""
        check_flags(present, "present", "images, prototypes, parts")
        wanted = (len(scores), self.prototypes, self.parts)
        if present.shape != wanted or scores.shape != wanted[:2]:
            raise DaplError(
                f"this metric was made for {self.prototypes} prototypes and {self.parts} parts, "
                f"but scores are {shape_of(scores)} and present is {shape_of(present)}."
            )
        visible = which(visible, present, torch.Size((wanted[0], wanted[2])), "visible", "parts")
        if not bool(torch.isfinite(scores).all()):
            raise DaplError("scores hold NaN or infinite values: look for a model that diverged.")
        scores = scores.detach().where(which(kept, scores, scores.shape, "kept", "prototypes"), -torch.inf)
        chosen = top_images(scores, self.top, images)  # (P, at most top)
        owner = torch.arange(self.prototypes, device=chosen.device).unsqueeze(1)
        columns = (scores[chosen, owner].unsqueeze(2), images.to(chosen.device)[chosen].unsqueeze(2))
        flags = (present[chosen, owner], visible[chosen])
        return torch.cat([part.double() for part in (*columns, *flags)], dim=2)

    def best(self, rows: Tensor) -> Tensor:
        """The table of the best among (P, any number, 2 + 2·G)."""
        order = ranked(rows[..., 0], rows[..., 1])[:, : self.top]
        return rows.gather(1, order.unsqueeze(2).expand(-1, -1, rows.shape[2]))

    def merge(self, tables: Tensor) -> Tensor:
        """One table of those of several processes, (W, P, top, 2 + 2·G)."""
        return self.best(tables.transpose(0, 1).flatten(1, 2))

    def purity(self, table: Tensor) -> Tensor:
        """Purity of each prototype, (P)."""
        present, visible = table[..., 2:].bool().split(self.parts, dim=-1)
        return purity(present, visible & (table[..., :1] > -torch.inf))
