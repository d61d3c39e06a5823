"""How far patches are from vectors: ‖z_l − p‖² and its minima, with gradients that keep little in memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK_ELEMENTS = 1 << 24
"""Distances held at once while looking for minima: 64 MB of float32, whatever the batch and the prototypes."""


class NearestDistance(torch.autograd.Function):
    """‖z_l − p‖² at given locations l. Keeps z, p and l (O(B·P)), never a B×P×HW or B×P×D tensor.

    Shapes: patches B×G×D×L, vectors G×D×Q, locations B×G×Q → distances B×G×Q.
    """

    @staticmethod
    def forward(ctx, patches: Tensor, vectors: Tensor, locations: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(patches, vectors, locations)
        found = [
            (_at(patches[rows], locations[rows]) - vectors).square_().sum(2)
            for rows in _in_chunks(len(patches), vectors.numel())
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        patches, vectors, locations = ctx.saved_tensors
        to_patches = torch.zeros_like(patches) if ctx.needs_input_grad[0] else None
        to_vectors = torch.zeros_like(vectors) if ctx.needs_input_grad[1] else None
        for rows in _in_chunks(len(patches), vectors.numel()):
            flow = (_at(patches[rows], locations[rows]) - vectors).mul_(2 * grad[rows].unsqueeze(2))  # …×G×D×Q
            if to_patches is not None:
                index = locations[rows].unsqueeze(2).expand_as(flow)
                to_patches[rows].scatter_add_(3, index, flow)
            if to_vectors is not None:
                to_vectors.sub_(flow.sum(0))
        return to_patches, to_vectors, None


class ShareBeside(torch.autograd.Function):
    """B of equation 5, Σ_l (1 − m_l)·a_l / Σ_l a_l with a = activation(‖z_l − p‖²), of all prototypes at once.

    Keeps d² alone, B×G×Q×L, and goes back in one pass: ∂B/∂a_l = ((1 − m_l) − B)/Σa, ∂a/∂d² is ``slope``, and what d²
    passes on are two matrix products. Shapes: patches B×G×D×L, vectors G×D×Q, beside B×L (1 − m) → B×G×Q.
    """

    @staticmethod
    def forward(ctx, patches: Tensor, vectors: Tensor, beside: Tensor, activation, slope) -> Tensor:  # type: ignore[override]
        squares = torch.matmul(vectors.transpose(1, 2) * -2, patches)  # as `squared_distances`, in one tensor
        squares.add_(patches.square().sum(2).unsqueeze(2)).add_(vectors.square().sum(1).unsqueeze(2)).clamp_min_(0)
        maps = activation(squares)
        total = maps.sum(3)
        shares = torch.matmul(maps, beside[:, None, :, None]).squeeze(3)
        shares = (shares / total.clamp_min(torch.finfo(maps.dtype).tiny)).where(total > 0, 0.0)
        ctx.slope = slope
        ctx.save_for_backward(patches, vectors, beside, squares, total, shares)
        return shares

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        patches, vectors, beside, squares, total, shares = ctx.saved_tensors
        weight = (grad / total.clamp_min(torch.finfo(total.dtype).tiny)).where(total > 0, 0.0)
        flow = ctx.slope(squares).mul_(weight.unsqueeze(3))
        flow.mul_(beside[:, None, None] - shares.unsqueeze(3))
        to_patches = to_vectors = None
        if ctx.needs_input_grad[0]:
            to_patches = (patches * flow.sum(2).unsqueeze(2)).sub_(torch.matmul(vectors, flow)).mul_(2)
        if ctx.needs_input_grad[1]:
            met = torch.matmul(patches, flow.transpose(2, 3)).sum(0)  # G×D×Q
            to_vectors = (vectors * flow.sum((0, 3)).unsqueeze(1)).sub_(met).mul_(2)
        return to_patches, to_vectors, None, None, None


def squared_distances(patches: Tensor, vectors: Tensor) -> Tensor:
    """‖z_l − p‖² of all: B×G×D×L, G×D×Q → B×G×Q×L."""
    ends = patches.square().sum(2).unsqueeze(2) + vectors.square().sum(1).unsqueeze(2)
    return torch.matmul(vectors.transpose(1, 2) * -2, patches).add_(ends).clamp_min_(0)


def _in_chunks(images: int, each: int) -> list[slice]:
    """The images in pieces of which each holds so many numbers that a piece stays within `_CHUNK_ELEMENTS`."""
    step = max(1, _CHUNK_ELEMENTS // max(1, each))
    return [slice(start, start + step) for start in range(0, max(images, 1), step)]


def _at(patches: Tensor, locations: Tensor) -> Tensor:
    """Patches at locations: B×G×D×L, B×G×Q → B×G×D×Q."""
    return patches.gather(3, locations.unsqueeze(2).expand(-1, -1, patches.shape[2], -1))


def nearest_locations(patches: Tensor, vectors: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Index of the patch nearest to each vector, among the allowed ones; no gradient.

    Shapes: patches B×G×D×L, vectors G×D×Q, allowed bool B×L (every image has at least one) → B×G×Q.
    """
    patches, vectors = precise(patches.detach()), precise(vectors.detach())
    batch, groups, _, places = patches.shape
    found = []
    for rows in _in_chunks(batch, groups * places * vectors.shape[2]):
        chunk = patches[rows]
        # d² = ‖z‖² − 2z·p + ‖p‖²; the last term is the same everywhere, so the minimum does not need it.
        partial = torch.matmul(chunk.transpose(2, 3), vectors * -2).add_(chunk.square().sum(2).unsqueeze(3))  # …×L×Q
        if allowed is not None:
            partial.masked_fill_(~allowed[rows, None, :, None], torch.inf)
        found.append(partial.min(2).indices)  # a third of the time of argmin
    return torch.cat(found)


def precise(values: Tensor) -> Tensor:
    """In double precision where nothing is learned: the expanded square cancels, most of all at a projected patch.

    There it decides which place is the nearest, and the log similarity is steep. While training, single precision is
    enough, and faster.
    """
    return values if torch.is_grad_enabled() or values.device.type == "mps" else values.double()
