"""Scope ``projection``: each prototype on the picture it was projected from, one row a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dapl.errors import DaplError
from dapl.evaluation.one_pass import Wanted, look, tried_thresholds
from dapl.evaluation.rows import Found, Looks, merged
from dapl.evaluation.scenes import Scene, SplitScenes
from dapl.metrics.functional import iou
from dapl.metrics.regions import model_regions
from dapl.models.contract import PrototypeModel
from dapl.models.prototypes import class_table
from dapl.progress import Reporter
from dapl.training.lanes import Lanes
from dapl.training.records import PrototypeRecord
from dapl.training.sources import Batch, features_of
from dapl.training.stages import deal


@torch.no_grad()
def measure_sources(
    model: PrototypeModel,
    records: Sequence[PrototypeRecord],
    lanes: Lanes,
    scenes: SplitScenes,
    wanted: Wanted,
    reporter: Reporter,
) -> Looks:
    """One row a class; ``scenes`` are those of the training split, where projection looks for patches."""
    sources = _source_pictures(records, lanes).to(model.prototypes.kept.device)
    table, counts = class_table(model.prototypes.membership, model.prototypes.kept & (sources >= 0))
    thresholds = tried_thresholds(scenes.protocol.tau)
    looks = Looks.empty(len(table), table.shape[1], len(lanes.dataset("train").parts), len(thresholds))
    pictures = lanes.pictures("train")
    classes_at_once = max(1, lanes.config.runtime.evaluation_batch // table.shape[1])
    order = deal(list(torch.arange(len(table)).split(classes_at_once)), lanes.fabric)
    with reporter.track("prototypes on their sources", sum(map(len, order))) as advance:
        for classes in order:
            named, kept = table[classes], counts[classes]
            needed, place = sources[named].clamp(min=0).unique(return_inverse=True)  # a picture may serve several
            batch = next(iter(pictures.batches([needed.cpu()])))
            found = _look_at(model, batch, named, kept, place.view_as(named), scenes, wanted)
            looks.add(classes, found, scenes.protocol.tau, thresholds)
            advance(len(classes))
    return merged(looks, lanes.fabric)


def _look_at(
    model: PrototypeModel, batch: Batch, named: Tensor, kept: Tensor, place: Tensor, scenes: SplitScenes, wanted: Wanted
) -> Found:
    """Prototypes ``named`` (B×M) on pictures ``place`` (B×M) of the batch: every pair is a row of its own at first."""
    fabric = scenes.lanes.fabric
    with fabric.autocast():
        embedding = model.embed(features_of(model, batch.to(fabric.device))).float()
    pairs = place.flatten()
    maps = model.maps(embedding[pairs], named.flatten().unsqueeze(1))  # BM×1×H×W
    scene = _rows(scenes.of(batch, (maps.shape[-2], maps.shape[-1]), fabric.device, wanted.masks), pairs)
    size = scenes.lanes.config.data.image_size
    regions = model_regions(model, maps, size, scenes.protocol.percentile) if wanted.regions else None  # BM×1×S×S
    found = look(maps, regions, kept.flatten().unsqueeze(1), scene, replace(wanted, ious=False))
    ious = None
    if wanted.ious and regions is not None:
        ious = iou(regions.view(*named.shape, size, size), batch.indices.to(place.device)[place])
    overlap = visible = None
    if found.overlap is not None and found.visible is not None:
        seen = found.visible.view(*named.shape, -1) & kept.unsqueeze(2)  # B×M×K, on each prototype's own picture
        overlap, visible = found.overlap.view(*named.shape, -1) * seen, seen.any(1)
    bias, share = (None if t is None else t.view_as(named) for t in (found.bias, found.region_share))
    return Found(kept, overlap, visible, ious, bias, share)


def _rows(scene: Scene, rows: Tensor) -> Scene:
    parts, visible, masks, grid = (
        None if t is None else t[rows] for t in (scene.parts, scene.visible, scene.masks, scene.grid)
    )
    return Scene(parts, visible, masks, grid)


def _source_pictures(records: Sequence[PrototypeRecord], lanes: Lanes) -> Tensor:
    """Index in the training split of each prototype's source picture, P; −1 where it has none."""
    position = {name: index for index, name in enumerate(lanes.dataset("train").names)}
    if all(record.image is None for record in records):
        raise DaplError("scope: projection needs prototypes that were projected, and these were not; use image.")
    lost = [record.image for record in records if record.image is not None and record.image not in position]
    if lost:
        raise DaplError(
            f"scope: {lost[0]}, where a prototype comes from, is not among the training pictures of this data; "
            "evaluate with the data of the run."
        )
    return torch.tensor([-1 if record.image is None else position[record.image] for record in records])
