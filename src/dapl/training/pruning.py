"""Pruning: prototypes that look at background on the validation pictures of their class are removed (decision 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from lightning_fabric import Fabric
from torch import Tensor

from dapl.metrics.functional import background_bias, region_background_share
from dapl.metrics.regions import model_regions
from dapl.models.contract import PrototypeModel
from dapl.training.sources import Batch, features_of, grid_masks

MasksOf = Callable[[Tensor], Tensor]
"""Foreground masks in pixels of the pictures at some indices: uint8 B×S×S."""


@torch.no_grad()
def foreground_shares(
    model: PrototypeModel,
    batches: Iterable[Batch],
    masks_of: MasksOf,
    fabric: Fabric,
    bias_of: str = "region",
    percentile: float = 95.0,
) -> Tensor:
    """1 − B̄ of each prototype over the pictures of its class: P, nan where the class has no picture.

    ``region``: share of the activation region's pixels; ``map``: of the raw map, the literal B of equation 5.
    """
    model.eval()
    sums = torch.zeros(len(model.prototypes), dtype=torch.double, device=fabric.device)
    counts = torch.zeros_like(sums)
    for batch in batches:
        masks = masks_of(batch.indices).to(fabric.device)
        batch = batch.to(fabric.device)
        with fabric.autocast():
            embedding = model.embed(features_of(model, batch)).float()
        named, counted = model.prototypes_of(batch.labels)  # B×M
        maps = model.maps(embedding, named)
        if bias_of == "map":
            bias = background_bias(maps, grid_masks(masks, maps.shape[-2:]))
        else:
            bias = region_background_share(model_regions(model, maps, masks.shape[-1], percentile), masks.bool())
        sums.index_add_(0, named[counted], 1 - bias[counted].double())
        counts.index_add_(0, named[counted], torch.ones_like(bias[counted], dtype=torch.double))
    sums, counts = (fabric.all_reduce(values, reduce_op="sum") for values in (sums, counts))  # type: ignore[assignment]
    return (sums / counts).float()  # 0/0 is nan: no evidence


@torch.no_grad()
def own_among_nearest(distances: Tensor, labels: Tensor, membership: Tensor, nearest: int) -> Tensor:
    """How many of the k training pictures nearest to a prototype are of its classes, long P.

    Shapes: distances n×P to the nearest patch of each picture, labels n, membership bool P×C.
    """
    pictures = distances.topk(min(nearest, len(distances)), dim=0, largest=False).indices  # k×P
    return membership.T[labels[pictures], torch.arange(len(membership))].sum(0)


@torch.no_grad()
def prune(model: PrototypeModel, shares: Tensor, threshold: float) -> Tensor:
    """Remove what has a share below the threshold; returns bool P, what was removed now.

    A prototype without evidence (nan) stays, and a class never loses its last prototype: its best one stays.
    """
    prototypes = model.prototypes
    before = prototypes.kept.clone()
    kept = before & ~(shares < threshold)
    shares = torch.where(before, shares.nan_to_num(nan=1.0), -torch.inf)
    for column in prototypes.membership.T:
        if not (kept & column).any():
            kept[torch.where(column, shares, -torch.inf).argmax()] = True
    prototypes.kept.copy_(kept)
    return before & ~kept
