"""What bad input gets, beside `dapl.metrics.functional._checks`: one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dapl.errors import DaplError
from dapl.metrics.functional._checks import shape_of, which

Generators = torch.Generator | Sequence[torch.Generator]
"""One for the whole batch, or one an image: then the draw of an image depends on neither batch nor process."""


def check_flags(tensor: Tensor, name: str, axes: str) -> None:
    """Booleans with at least the axes named, none of which is empty."""
    wanted = axes.count(",") + 1
    if tensor.dtype != torch.bool or tensor.ndim < wanted or 0 in tensor.shape[tensor.ndim - wanted :]:
        raise DaplError(f"{name} must be boolean (…, {axes}), but is {tensor.dtype} {shape_of(tensor)}.")


def check_numbers(tensor: Tensor, name: str, axes: str, finite: bool = True) -> None:
    """Floating point numbers with at least the axes named, none of which is empty."""
    wanted = axes.count(",") + 1
    if not tensor.is_floating_point() or tensor.ndim < wanted or 0 in tensor.shape[tensor.ndim - wanted :]:
        raise DaplError(f"{name} must be floating point (…, {axes}), but is {tensor.dtype} {shape_of(tensor)}.")
    if finite and not bool(torch.isfinite(tensor).all()):
        raise DaplError(f"{name} holds NaN or infinite values: look for a model that diverged.")


def check_keypoints(keypoints: Tensor, visible: Tensor) -> Tensor:
    """Keypoints (…, K, 2), finite where visible; returns visible (…, K)."""
    if keypoints.ndim < 2 or keypoints.shape[-1] != 2 or keypoints.shape[-2] == 0:
        raise DaplError(f"keypoints must be (…, parts, 2), x and y in pixels, but are {shape_of(keypoints)}.")
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
    """Random numbers of a batch's shape, from one generator for all images or from one an image."""
    if isinstance(generator, torch.Generator):
        return draw(shape, generator)
    if not shape or len(generator) != shape[0]:
        images = shape[0] if shape else "no batch of"
        raise DaplError(f"there are {len(generator)} generators for {images} images: give one, or one an image.")
    return torch.stack([draw(shape[1:], each) for each in generator])
