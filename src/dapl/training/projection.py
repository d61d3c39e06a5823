"""Projection: each prototype becomes the nearest patch of its class, on the foreground (τ_FG). One pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dapl.batches.sources import Batch, features_of, grid_masks
from dapl.data.sample import Dataset
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.runs.records import PrototypeRecord, bounding_boxes


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
    embedding: Tensor
    """P×D×H×W: the group's embedding of that whole image, for its map afterwards."""

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
    chosen = best.embedding.flatten(2).gather(2, best.location[:, None, None].expand(-1, best.embedding.shape[1], 1))
    vectors = model.prototypes.vectors
    vectors.copy_(torch.where(found.unsqueeze(1), chosen.squeeze(2), vectors))
    squares = (best.embedding - model.prototypes.points()[:, :, None, None]).square().sum(1)
    grounded = found & (best.rank >= 1)
    maps = model.prototypes.similarity(squares)
    return Projection(best.image, best.location, best.distance, best.share, grounded, maps)


def _consider(
    model: PrototypeModel, batch: Batch, embedding: Tensor, threshold: float | None, best: BestPatches | None
) -> BestPatches:
    """Let the patches of one batch compete with the best so far."""
    prototypes = model.prototypes
    shares = None if batch.masks is None else grid_masks(batch.masks, embedding.shape[-2:])
    allowed, image_rank = _allowed(shares, threshold, embedding)
    distances, locations = _nearest_of_class(model, embedding, batch.labels, allowed)
    # Only images of the prototype's own classes compete; one that was removed stays as it is.
    competes = prototypes.membership[:, batch.labels].T & prototypes.kept
    rank = torch.where(competes, image_rank.unsqueeze(1), -1.0)
    # The best of the batch: highest rank, then smallest distance, then the first image.
    top = rank.amax(0)
    distance = distances.masked_fill(rank < top, torch.inf)
    indices = batch.indices.to(embedding.device)
    row = _first_minimum(distance, indices)
    everyone = torch.arange(len(prototypes), device=row.device)
    location = locations[row, everyone]
    share = torch.full_like(top, torch.nan) if shares is None else shares.flatten(1)[row, location]
    if best is None:
        best = _nothing(len(prototypes), embedding)
    found = {"rank": top, "distance": distance[row, everyone], "image": indices[row]}
    better = best.take(found | {"location": location, "share": share})
    best.embedding[better] = embedding[row[better], prototypes.group_of[better]]
    return best


def _nearest_of_class(
    model: PrototypeModel, embedding: Tensor, labels: Tensor, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Distance and location of the nearest allowed patch, B×P; infinity for prototypes of other classes.

    An image meets the prototypes of its own class alone, so the work is that of M prototypes, not of P.
    """
    named, counts = model.prototypes_of(labels)
    squares = model.prototypes.distances(embedding, named).flatten(2)
    if allowed is not None:
        squares = squares.masked_fill(~allowed.flatten(1).unsqueeze(1), torch.inf)
    nearest = squares.min(2)
    shape = len(labels), len(model.prototypes) + 1  # the last column takes what does not count
    place = torch.where(counts, named, len(model.prototypes))
    distances = squares.new_full(shape, torch.inf).scatter_(1, place, nearest.values)
    locations = torch.zeros(shape, dtype=torch.long, device=squares.device).scatter_(1, place, nearest.indices)
    return distances[:, :-1], locations[:, :-1]


def _allowed(shares: Tensor | None, threshold: float | None, like: Tensor) -> tuple[Tensor | None, Tensor]:
    """Which patches of each image may be taken (bool B×H×W), and the rank they give it (B).

    An image with patches above the threshold offers those, rank 1. One without offers its best share as rank, so
    that it is taken only where the class has nothing better (decision 6).
    """
    ones = like.new_ones(len(like))
    if shares is None or threshold is None:
        return None, ones
    highest = shares.flatten(1).amax(1)
    enough = highest > threshold
    floor = torch.where(enough, like.new_tensor(threshold), highest)[:, None, None]
    allowed = torch.where(enough[:, None, None], shares > floor, shares == floor)
    return allowed, torch.where(enough, ones, highest.clamp(max=0.999))


def _first_minimum(distance: Tensor, indices: Tensor) -> Tensor:
    """Row of the smallest distance in each column, ties to the smallest image index: B×P → P."""
    ties = distance == distance.amin(0)
    return torch.where(ties, indices.unsqueeze(1), torch.iinfo(torch.long).max).argmin(0)


def _nothing(count: int, embedding: Tensor) -> BestPatches:
    return BestPatches(
        rank=embedding.new_full((count,), -1.0),
        distance=embedding.new_full((count,), torch.inf),
        image=torch.full((count,), -1, device=embedding.device),
        location=torch.zeros(count, dtype=torch.long, device=embedding.device),
        share=embedding.new_full((count,), torch.nan),
        embedding=embedding.new_zeros(count, *embedding.shape[2:]),
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
    mine = (winner == processes.global_rank)[:, None, None, None]
    merged.embedding = processes.sum(torch.where(mine, best.embedding, 0))
    return merged


def record_projection(
    records: list[PrototypeRecord], found: Projection, dataset: Dataset, regions: Tensor
) -> list[PrototypeRecord]:
    """``regions``: bool P×S×S, where each prototype is active on its own source image."""
    boxes = bounding_boxes(regions).tolist()
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
                distance=float(found.distance[j]),
                foreground_share=None if share != share else share,
                grounded=bool(found.grounded[j]),
            )
        updated.append(record)
    return updated
