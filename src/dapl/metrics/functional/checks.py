"""What bad input gets: one sentence that says what was wrong and what to do. Shapes are checked before any work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dapl.common.errors import DaplError


def shape_of(tensor: Tensor) -> str:
    """``2×10×7×7``: a shape as the messages write it."""
    return "×".join(map(str, tensor.shape)) or "a single number"


def check_open_interval(value: float, low: float, high: float, name: str) -> None:
    if not low < value < high:  # also refuses NaN
        raise DaplError(f"{name} must lie strictly between {low:g} and {high:g}, but is {value:g}.")


def check_maps(maps: Tensor) -> None:
    """Activation maps: real numbers (…, P, H, W), all finite."""
    check_numbers(maps, "maps", "prototypes, height, width")


def has_negative(maps: Tensor) -> bool:
    """Without a tensor of flags as large as the maps."""
    return maps.numel() > 0 and bool(maps.amin() < 0)


def check_boolean(tensor: Tensor, name: str, axis: str) -> None:
    """Sets of pixels (…, axis, H, W): regions of prototypes or masks of parts."""
    if tensor.dtype != torch.bool:
        raise DaplError(f"{name} must be boolean, but are {tensor.dtype}: compare them with a threshold first.")
    if tensor.ndim < 3 or 0 in tensor.shape[-2:]:
        raise DaplError(f"{name} must have the shape (…, {axis}, height, width), but are {shape_of(tensor)}.")
    if tensor.shape[-3] == 0:
        raise DaplError(f"{name} are empty: there are no {axis} to measure.")


def check_same(a: Tensor, b: Tensor, names: str, leading: int, trailing: int) -> None:
    """The batch axes agree (all but the last ``leading`` of a, ``trailing`` of b)."""
    if a.shape[: a.ndim - leading] != b.shape[: b.ndim - trailing]:
        raise DaplError(f"{names} do not describe the same images: their shapes are {shape_of(a)} and {shape_of(b)}.")


def check_same_grid(a: Tensor, b: Tensor, names: str) -> None:
    if a.shape[-2:] != b.shape[-2:]:
        raise DaplError(
            f"{names} must lie on the same grid, but are {shape_of(a)} and {shape_of(b)} (height and width are last)."
        )


def check_masks(masks: Tensor, maps: Tensor, names: str) -> Tensor:
    """Foreground masks (…, H, W) in [0, 1] beside maps or regions (…, P, H, W); returns them as floats."""
    check_same_grid(maps, masks, names)
    check_same(maps, masks, names, leading=3, trailing=2)
    if masks.dtype == torch.bool:
        return masks.to(torch.float32)
    masks = masks if masks.is_floating_point() else masks.to(torch.float32)
    if not bool(((masks >= 0) & (masks <= 1)).all()):
        raise DaplError("masks must lie between 0 (background) and 1 (foreground): divide masks of 0 and 255 by 255.")
    return masks


def which(flags: Tensor | None, like: Tensor, shape: torch.Size, name: str, axis: str) -> Tensor:
    """``flags`` (``visible`` parts or ``kept`` prototypes) for every image; None means all of them."""
    if flags is None:
        return torch.ones(shape, dtype=torch.bool, device=like.device)
    if flags.dtype != torch.bool:
        raise DaplError(f"{name} must be boolean (…, {axis}), but is {flags.dtype}.")
    try:
        return flags.broadcast_to(shape)
    except RuntimeError:
        wanted = "×".join(map(str, shape))
        raise DaplError(f"{name} has the shape {shape_of(flags)}, but there are {wanted} (…, {axis}).") from None


def counted(assigned: Tensor, visible: Tensor | None, kept: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The assignments (…, P, K) that count, the parts (…, K) and the prototypes (…, P) that count."""
    if assigned.dtype != torch.bool:
        raise DaplError(f"assigned must be boolean, but is {assigned.dtype}: it is what `assign` returns.")
    if assigned.ndim < 2 or 0 in assigned.shape[-2:]:
        raise DaplError(
            f"assigned must have the shape (…, prototypes, parts) with at least one of each, "
            f"but is {shape_of(assigned)}: data without parts have no Coverage and no Diversity."
        )
    *images, prototypes, parts = assigned.shape
    visible = which(visible, assigned, torch.Size((*images, parts)), "visible", "parts")
    kept = which(kept, assigned, torch.Size((*images, prototypes)), "kept", "prototypes")
    return assigned & visible.unsqueeze(-2) & kept.unsqueeze(-1), visible, kept


Generators = torch.Generator | Sequence[torch.Generator]
"""One for the whole batch, or one per image: then the draw of an image depends on neither batch nor process."""


def check_flags(tensor: Tensor, name: str, axes: str) -> None:
    """Booleans with at least the axes named, none of which is empty."""
    wanted = axes.count(",") + 1
    if tensor.dtype != torch.bool or tensor.ndim < wanted or 0 in tensor.shape[tensor.ndim - wanted :]:
        raise DaplError(f"{name} must be boolean (…, {axes}), but is {tensor.dtype} {shape_of(tensor)}.")


def check_numbers(tensor: Tensor, name: str, axes: str, finite: bool = True) -> None:
    """Floating point numbers with at least the axes named, none of which is empty."""
    wanted = axes.count(",") + 1
    if not tensor.is_floating_point() or tensor.ndim < wanted or 0 in tensor.shape[tensor.ndim - wanted :]:
        raise DaplError(f"{name} must be floating point (…, {axes}), but are {tensor.dtype} {shape_of(tensor)}.")
    if finite and tensor.numel() and not all(map(math.isfinite, torch.stack(tensor.aminmax()).tolist())):  # NaN stays
        raise DaplError(f"{name} hold NaN or infinite values: look for a model that diverged or a division by zero.")


def check_images(images: Tensor) -> Tensor:
    """Images (…, channels, H, W), uint8 or floating point in [0, 1]; returns them as floats."""
    if images.ndim < 3 or not (images.is_floating_point() or images.dtype == torch.uint8):
        raise DaplError(
            f"images must be (…, channels, height, width), uint8 or floating point, "
            f"but are {images.dtype} {shape_of(images)}."
        )
    return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images


def check_keypoints(keypoints: Tensor, visible: Tensor) -> Tensor:
    """Keypoints (…, K, 2), finite where visible; returns visible (…, K)."""
    if keypoints.ndim < 2 or keypoints.shape[-1] != 2:
        raise DaplError(f"keypoints must be (…, parts, 2), x and y in pixels, but are {shape_of(keypoints)}.")
    if keypoints.shape[-2] == 0:
        raise DaplError("keypoints are empty: there are no parts, and nothing about parts can be measured.")
    visible = which(visible, keypoints, keypoints.shape[:-1], "visible", "parts")
    if bool((~torch.isfinite(keypoints) & visible.unsqueeze(-1)).any()):
        raise DaplError("keypoints of visible parts hold NaN or infinite values: mark these parts invisible.")
    return visible


def check_integers(tensor: Tensor, shape: torch.Size, number: int, name: str, of: str) -> None:
    """Indices of the given shape, each from 0 to number − 1."""
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.shape != shape:
        wanted = "×".join(map(str, shape))
        raise DaplError(f"{name} must be integers of the shape {wanted}, but are {tensor.dtype} {shape_of(tensor)}.")
    if bool(((tensor < 0) | (tensor >= number)).any()):
        raise DaplError(f"{name} must lie between 0 and {number - 1}, the last of {number} {of}.")


def check_positive(value: float, name: str) -> None:
    if not 0 < value < float("inf"):
        raise DaplError(f"{name} must be above 0, but is {value:g}.")


def check_share(value: float, name: str) -> None:
    if not 0 < value <= 1:
        raise DaplError(f"{name} must be above 0 and at most 1, but is {value:g}.")


def check_same_shape(a: Tensor, b: Tensor, names: str) -> None:
    if a.shape != b.shape:
        raise DaplError(f"{names} must have the same shape, but have {shape_of(a)} and {shape_of(b)}.")


def drawn(
    shape: Sequence[int], generator: Generators, draw: Callable[[Sequence[int], torch.Generator], Tensor]
) -> Tensor:
    """Random numbers of a batch's shape, from one generator for all images or from one per image."""
    if isinstance(generator, torch.Generator):
        return draw(shape, generator)
    if not shape or len(generator) != shape[0]:
        images = shape[0] if shape else "no batch of"
        raise DaplError(f"there are {len(generator)} generators for {images} images: give one, or one per image.")
    return torch.stack([draw(shape[1:], each) for each in generator])
