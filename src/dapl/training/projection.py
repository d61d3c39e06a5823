"""Projection: each prototype becomes the nearest patch of its class, on the foreground (τ_FG). One pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dapl.batches.sources import Batch, features_of, grid_masks
from dapl.common.errors import DaplError
from dapl.data.sample import Dataset
from dapl.metrics.functional.background import share_beside
from dapl.models.contract import Embedding, PrototypeModel, square_pixels
from dapl.processes.interface import Processes
from dapl.runs.checkpoint import bounding_boxes
from dapl.runs.outlines import outlines_of
from dapl.runs.schemas import PrototypeRecord


@dataclass
class BestPatches:
    """The best patch so far for each of P prototypes; memory is O(P), whatever the number of images."""

    rank: Tensor
    """P: 1 for a patch with enough foreground, else its foreground share; −1 while there is none (decision 6)."""
    distance: Tensor
    """P: squared distance to the prototype before projection."""
    image: Tensor
    """long P: index of the image in the training split."""
    location: Tensor
    """long P: row·W + column."""
    share: Tensor
    """P: foreground share of the patch; nan without masks."""
    embedding: Embedding
    """The embedding of that whole image for the prototype's group, without the axis of groups: for its map."""

    def take(self, found: dict[str, Tensor]) -> Tensor:
        """Take over what wins, bool P: by rank, then distance, then index, so the order of batches is nothing."""
        rank, distance, image = found["rank"], found["distance"], found["image"]
        nearer = (distance < self.distance) | ((distance == self.distance) & (image < self.image))
        better = ((rank > self.rank) | ((rank == self.rank) & nearer)) & (rank >= 0)
        for name, value in found.items():
            getattr(self, name)[better] = value[better]
        return better


@dataclass(frozen=True)
class Projection:
    """What `project` found. All tensors have P rows; `grounded` is False where no patch had enough foreground."""

    image: Tensor
    location: Tensor
    distance: Tensor
    share: Tensor
    grounded: Tensor
    maps: Tensor
    """P×H×W: activation of each projected prototype on its own source image."""
    squares: Tensor | None = None
    """P×3: the square that was seen there, of a system that sees no more (see `Embedding`)."""


@torch.no_grad()
def project(
    model: PrototypeModel, batches: Iterable[Batch], threshold: float | None, processes: Processes
) -> Projection:
    """Replace every prototype by its nearest training patch; batches are this process's share of the images."""
    model.eval()
    best: BestPatches | None = None
    for batch in batches:
        batch = batch.to(processes.device)
        with processes.autocast():
            embedding = model.embed(features_of(model, batch)).float()
        best = _consider(model, batch, embedding, threshold, best)
    if best is None:
        raise ValueError("Projection needs at least one image in every process.")
    best = _merge(best, processes)
    found = best.rank >= 0
    values, where = best.embedding.values, best.embedding.where
    cell = best.location if where is None else torch.zeros_like(best.location)
    chosen = values.flatten(2).gather(2, cell[:, None, None].expand(-1, values.shape[1], 1))
    vectors = model.prototypes.vectors
    vectors.copy_(torch.where(found.unsqueeze(1), chosen.squeeze(2), vectors))
    if best.embedding.seen is not None:
        model.point_at(best.embedding.seen, found)
    maps = model.prototypes.activation((values - model.prototypes.points()[:, :, None, None]).square().sum(1))
    maps = maps if where is None else maps * where
    grounded = found & (best.rank >= 1)
    return Projection(best.image, best.location, best.distance, best.share, grounded, maps, best.embedding.squares)


@torch.no_grad()
def set_to_class_means(model: PrototypeModel, batches: Iterable[Batch], processes: Processes) -> None:
    """Make each prototype the mean of what its head sees in the images of its class; for heads that see one region."""
    model.eval()
    vectors = model.prototypes.vectors
    sums = torch.zeros_like(vectors)
    for batch in batches:
        batch = batch.to(processes.device)
        with processes.autocast():
            embedding = model.embed(features_of(model, batch)).float()
        if embedding.where is None:
            raise DaplError(
                "schedule: project to the class_mean is for parts, whose heads see one region per image; "
                "leave out nearest_to."
            )
        named, counts = model.prototypes_of(batch.labels)
        rows = torch.arange(len(named), device=named.device).unsqueeze(1)
        seen = embedding.values[rows, model.prototypes.group_of[named], :, 0, 0]
        sums.index_add_(0, named[counts], seen[counts])
    vectors.copy_(processes.sum(sums))


def _consider(
    model: PrototypeModel, batch: Batch, embedding: Embedding, threshold: float | None, best: BestPatches | None
) -> BestPatches:
    """Let the patches of one batch compete with the best so far."""
    prototypes, groups = model.prototypes, model.prototypes.group_of
    shares = None if batch.masks is None else _patch_shares(embedding, grid_masks(batch.masks, embedding.grid))
    allowed, image_rank = _allowed(shares, threshold, embedding.values)
    distances, cells = _nearest_of_class(model, embedding.values, batch.labels, allowed)
    # Only images of the prototype's own classes compete; one that was removed stays as it is.
    competes = prototypes.of_images(batch.labels) & prototypes.kept
    rank = torch.where(competes, image_rank[:, groups], -1.0)
    # The best of the batch: highest rank, then smallest distance, then the first image.
    top = rank.amax(0)
    distance = distances.masked_fill(rank < top, torch.inf)
    indices = batch.indices.to(rank.device)
    row = _first_minimum(distance, indices)
    everyone = torch.arange(len(prototypes), device=row.device)
    cell = cells[row, everyone]
    share = torch.full_like(top, torch.nan) if shares is None else shares.flatten(2)[row, groups, cell]
    location = cell if embedding.where is None else embedding.where.flatten(2).argmax(2)[row, groups]
    if best is None:
        best = _nothing(len(prototypes), embedding)
    found = {"rank": top, "distance": distance[row, everyone], "image": indices[row]}
    better = best.take(found | {"location": location, "share": share})
    won = embedding.each(lambda one: one[row[better], groups[better]])
    for name, value in vars(won).items():
        if value is not None:
            getattr(best.embedding, name)[better] = value
    return best


def _nearest_of_class(
    model: PrototypeModel, values: Tensor, labels: Tensor, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Distance and cell of the nearest allowed patch, B×P; infinity for prototypes of other classes.

    An image meets the prototypes of its own class alone, so the work is that of M prototypes, not of P.
    Shapes: values B×G×D×h×w, allowed bool B×G×h×w.
    """
    named, counts = model.prototypes_of(labels)
    squares = model.prototypes.distances(values, named).flatten(2)
    if allowed is not None:
        rows = torch.arange(len(labels), device=named.device).unsqueeze(1)
        squares = squares.masked_fill(~allowed.flatten(2)[rows, model.prototypes.group_of[named]], torch.inf)
    nearest = squares.min(2)
    shape = len(labels), len(model.prototypes) + 1  # the last column takes what does not count
    place = torch.where(counts, named, len(model.prototypes))
    distances = squares.new_full(shape, torch.inf).scatter_(1, place, nearest.values)
    cells = torch.zeros(shape, dtype=torch.long, device=squares.device).scatter_(1, place, nearest.indices)
    return distances[:, :-1], cells[:, :-1]


def _patch_shares(embedding: Embedding, masks: Tensor) -> Tensor:
    """The foreground share of every patch, B×G×h×w: of a cell, or of the region that a head looks at (one cell).

    Shapes: masks B×H×W in [0, 1].
    """
    groups = embedding.values.shape[1]
    if embedding.where is None:
        return masks.unsqueeze(1).expand(-1, groups, -1, -1)
    return (1 - share_beside(embedding.where, masks, empty=1.0))[..., None, None]


def _allowed(shares: Tensor | None, threshold: float | None, like: Tensor) -> tuple[Tensor | None, Tensor]:
    """Which patches of each image and group may be taken (bool B×G×h×w), and the rank they give it (B×G).

    An image with patches above the threshold offers those, rank 1. One without offers its best share as rank, so
    that it is taken only where the class has nothing better (decision 6).
    """
    ones = like.new_ones(like.shape[:2])
    if shares is None or threshold is None:
        return None, ones
    highest = shares.flatten(2).amax(2)
    enough = highest > threshold
    floor = torch.where(enough, like.new_tensor(threshold), highest)[..., None, None]
    allowed = torch.where(enough[..., None, None], shares > floor, shares == floor)
    return allowed, torch.where(enough, ones, highest.clamp(max=0.999))


def _first_minimum(distance: Tensor, indices: Tensor) -> Tensor:
    """Row of the smallest distance in each column, ties to the smallest image index: B×P → P."""
    ties = distance == distance.amin(0)
    return torch.where(ties, indices.unsqueeze(1), torch.iinfo(torch.long).max).argmin(0)


def _nothing(count: int, embedding: Embedding) -> BestPatches:
    values = embedding.values
    return BestPatches(
        rank=values.new_full((count,), -1.0),
        distance=values.new_full((count,), torch.inf),
        image=torch.full((count,), -1, device=values.device),
        location=torch.zeros(count, dtype=torch.long, device=values.device),
        share=values.new_full((count,), torch.nan),
        embedding=embedding.each(lambda one: one.new_zeros(count, *one.shape[2:])),
    )


def _merge(best: BestPatches, processes: Processes) -> BestPatches:
    """The best over all processes; every process ends with the same."""
    if processes.world_size == 1:
        return best
    gathered = {name: processes.gather(value) for name, value in vars(best).items() if name != "embedding"}
    winner = torch.zeros_like(best.image)
    merged = BestPatches(**{name: value[0].clone() for name, value in gathered.items()}, embedding=best.embedding)
    for process in range(1, processes.world_size):
        winner[merged.take({name: value[process] for name, value in gathered.items()})] = process
    mine = winner == processes.global_rank
    merged.embedding = best.embedding.each(
        lambda one: processes.sum(torch.where(mine.view(-1, *[1] * (one.dim() - 1)), one, 0))
    )
    return merged


def record_projection(
    records: list[PrototypeRecord], found: Projection, dataset: Dataset, regions: Tensor
) -> list[PrototypeRecord]:
    """``regions``: bool P×S×S, where each prototype is active on its own source image."""
    boxes = bounding_boxes(regions)
    outlines = [None if found is None else found.path for found in outlines_of(regions.cpu().numpy(), boxes)]
    if found.squares is not None:
        boxes = square_pixels(found.squares, regions.shape[-1]).tolist()
    width = found.maps.shape[-1]
    updated = []
    for record in records:
        j = record.index
        share, image = float(found.share[j]), int(found.image[j])
        if image >= 0:
            record = replace(
                record,
                image=dataset.names[image],
                location=list(divmod(int(found.location[j]), width)),
                box=boxes[j],
                outline=outlines[j],
                distance=float(found.distance[j]),
                foreground_share=None if share != share else share,
                grounded=bool(found.grounded[j]),
            )
        updated.append(record)
    return updated
