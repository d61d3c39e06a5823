"""How far patches are from vectors: ‖z_l − p‖² and its minima, with gradients that keep little in memory."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK_ELEMENTS, _CHUNK_ELEMENTS_OF_DEVICES = 1 << 19, 1 << 24
"""Numbers held at once while looking for minima, whatever the batch and the prototypes: on a processor 2 MB of float32,
which its cache holds, so that nothing waits for memory; on other devices 64 MB, as there each piece is a call."""


class NearestDistance(torch.autograd.Function):
    """‖z_l − p‖² at given locations l. Keeps z, p and l (O(B·P)), never a B×P×HW or B×P×D tensor.

    A prototype meets one patch of each image, so that the way back sums whole rows of D numbers that lie side by side:
    2·Σ_b g·(p − z) for a prototype, 2·Σ_q g·(z − p) over the prototypes that met a patch.
    Shapes: patches B×G×D×L, vectors G×D×Q, locations B×G×Q → distances B×G×Q.
    """

    @staticmethod
    def forward(ctx, patches: Tensor, vectors: Tensor, locations: Tensor) -> Tensor:  # type: ignore[override]
        batch, groups, width, places = patches.shape
        table, points = patches.mT.reshape(-1, width), vectors.mT.contiguous()  # (B·G·L)×D, G×Q×D
        rows = locations + places * torch.arange(batch * groups, device=patches.device).view(batch, groups, 1)
        ctx.places = places
        ctx.save_for_backward(table, points, rows)
        found = [
            table.index_select(0, rows[few].flatten()).view(*rows[few].shape, width).sub_(points).square_().sum(3)
            for few in _in_chunks(batch, points.numel(), points.device)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        table, points, rows = ctx.saved_tensors
        weights = 2 * grad
        to_patches = to_vectors = None
        if ctx.needs_input_grad[0]:
            flow = _pulled(table, points, rows, weights)
            to_patches = flow.view(*grad.shape[:2], ctx.places, points.shape[2]).mT
        if ctx.needs_input_grad[1]:
            met, pull = (each.flatten(1).T.flatten() for each in (rows, weights))  # by prototype, then by image
            first = len(grad) * torch.arange(points[..., 0].numel(), device=met.device)
            sums = F.embedding_bag(met, table, first, mode="sum", per_sample_weights=pull).view_as(points)
            to_vectors = (points * weights.sum(0).unsqueeze(2)).sub_(sums).mT
        return to_patches, to_vectors, None


def _pulled(table: Tensor, points: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Σ w·(z − p) over the prototypes p that met the row z: (B·G·L)×D, G×Q×D, B×G×Q, B×G×Q → (B·G·L)×D."""
    rows, order = rows.sort(2)
    weights = weights.gather(2, order).flatten()
    number = points.shape[1] * torch.arange(len(points), device=order.device).unsqueeze(1)  # of each group's first
    counts = rows.flatten().bincount(minlength=len(table))
    met = (order + number).flatten()
    sums = F.embedding_bag(met, points.flatten(0, 1), counts.cumsum(0) - counts, mode="sum", per_sample_weights=weights)
    total = weights.new_zeros(len(table)).index_add_(0, rows.flatten(), weights)
    return (table * total.unsqueeze(1)).sub_(sums)


class ShareBeside(torch.autograd.Function):
    """B of equation 5, Σ_l (1 − m_l)·a_l / Σ_l a_l with a = activation(‖z_l − p‖²), of all prototypes at once.

    Keeps z, p and what it answers (O(B·P)): the maps are made a few images at a time, and made again on the way back,
    which costs less than to write them to memory. ∂B/∂a_l = ((1 − m_l) − B)/Σa, ∂a/∂d² is ``slope``, and what d² passes
    on are two matrix products. Shapes: patches B×G×D×L, vectors G×D×Q, beside B×L (1 − m) → B×G×Q.
    """

    @staticmethod
    def forward(ctx, patches: Tensor, vectors: Tensor, beside: Tensor, activation, slope) -> Tensor:  # type: ignore[override]
        totals, shares = [], []
        for few in _in_chunks(len(patches), vectors[:, 0].numel() * patches.shape[3], patches.device):
            maps = activation(squared_distances(patches[few], vectors))
            total = maps.sum(3)
            share = torch.matmul(maps, beside[few, None, :, None]).squeeze(3)
            shares.append((share / total.clamp_min(torch.finfo(maps.dtype).tiny)).where(total > 0, 0.0))
            totals.append(total)
        ctx.slope = slope
        ctx.save_for_backward(patches, vectors, beside, torch.cat(totals), torch.cat(shares))
        return torch.cat(shares)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        patches, vectors, beside, total, shares = ctx.saved_tensors
        weights = (grad / total.clamp_min(torch.finfo(total.dtype).tiny)).where(total > 0, 0.0)
        to_patches = torch.empty_like(patches) if ctx.needs_input_grad[0] else None
        to_vectors = torch.zeros_like(vectors) if ctx.needs_input_grad[1] else None
        for few in _in_chunks(len(patches), vectors[:, 0].numel() * patches.shape[3], patches.device):
            some = patches[few]
            flow = ctx.slope(squared_distances(some, vectors)).mul_(2 * weights[few].unsqueeze(3))
            flow.mul_(beside[few, None, None] - shares[few].unsqueeze(3))  # …×G×Q×L
            if to_patches is not None:
                to_patches[few] = (some * flow.sum(2).unsqueeze(2)).sub_(torch.matmul(vectors, flow))
            if to_vectors is not None:
                met = torch.matmul(some, flow.mT).sum(0)  # G×D×Q
                to_vectors += (vectors * flow.sum((0, 3)).unsqueeze(1)).sub_(met)
        return to_patches, to_vectors, None, None, None


def squared_distances(patches: Tensor, vectors: Tensor) -> Tensor:
    """‖z_l − p‖² of all: B×G×D×L, G×D×Q → B×G×Q×L."""
    ends = patches.square().sum(2).unsqueeze(2) + vectors.square().sum(1).unsqueeze(2)
    return torch.matmul(vectors.transpose(1, 2) * -2, patches).add_(ends).clamp_min_(0)


def _in_chunks(images: int, each: int, device: torch.device) -> list[slice]:
    """The images in pieces, where each image holds so many numbers and a piece no more than `_CHUNK_ELEMENTS`."""
    most = _CHUNK_ELEMENTS if device.type == "cpu" else _CHUNK_ELEMENTS_OF_DEVICES
    step = max(1, most // max(1, each))
    return [slice(start, start + step) for start in range(0, max(images, 1), step)]


def nearest_locations(patches: Tensor, vectors: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Index of the patch nearest to each vector, among the allowed ones; no gradient.

    Shapes: patches B×G×D×L, vectors G×D×Q, allowed bool B×L (every image has at least one) → B×G×Q.
    """
    patches, vectors = precise(patches.detach()), precise(vectors.detach())
    batch, groups, _, places = patches.shape
    found = []
    for rows in _in_chunks(batch, groups * places * vectors.shape[2], patches.device):
        chunk = patches[rows]
        # d² = ‖z‖² − 2z·p + ‖p‖²; the last term is the same everywhere, so the minimum does not need it.
        partial = torch.matmul(chunk.transpose(2, 3), vectors * -2).add_(chunk.square().sum(2).unsqueeze(3))  # …×L×Q
        if allowed is not None:
            partial.masked_fill_(~allowed[rows, None, :, None], torch.inf)
        found.append(_first_of_least(partial))
    return torch.cat(found)


def _first_of_least(values: Tensor) -> Tensor:
    """Along the third axis (L) the index of the least value, of equal ones the first: B×G×L×Q → B×G×Q.

    >>> _first_of_least(torch.tensor([3.0, 1.0, 1.0]).view(1, 1, 3, 1)).item()
    1
    """
    places = values.shape[2]
    if values.device.type != "cpu" or places > _MOST_COUNTED:
        return values.min(2).indices  # a third of the time of argmin
    # A fifth of that: to find the least value is fast, and so is the highest of numbers that count the places down.
    least = np.equal(values.numpy(), values.amin(2, keepdim=True).numpy()).view(np.uint8)
    least *= np.arange(places, 0, -1, dtype=np.uint8)[:, None]
    # Nothing equals what is not a number: then the last one.
    return torch.from_numpy(np.minimum(places - least.max(2).astype(np.int64), places - 1))


_MOST_COUNTED = 255
"""Places that a byte can count."""


def precise(values: Tensor) -> Tensor:
    """In double precision where nothing is learned: the expanded square cancels, most of all at a projected patch.

    There it decides which place is the nearest, and the log similarity is steep. While training, single precision is
    enough, and faster.
    """
    return values if torch.is_grad_enabled() or values.device.type == "mps" else values.double()
