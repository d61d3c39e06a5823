"""What bad input gets: one sentence that says what was wrong and what to do. Shapes are checked before any work."""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.errors import DaplError


def shape_of(tensor: Tensor) -> str:
    """``2×10×7×7``: a shape as the messages write it."""
    return "×".join(map(str, tensor.shape)) or "a single number"


def check_open_interval(value: float, low: float, high: float, name: str) -> None:
    if not low < value < high:  # also refuses NaN
        raise DaplError(f"{name} must lie strictly between {low:g} and {high:g}, but is {value:g}.")


def check_maps(maps: Tensor) -> None:
    """Activation maps: real numbers (…, P, H, W), all finite."""
    if not maps.is_floating_point() or maps.ndim < 3 or 0 in maps.shape[-3:]:
        raise DaplError(
            f"maps must be floating point (…, prototypes, height, width), but are {maps.dtype} {shape_of(maps)}."
        )
    if not bool(torch.isfinite(maps).all()):
        raise DaplError("maps hold NaN or infinite values: look for a model that diverged or a division by zero.")


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
