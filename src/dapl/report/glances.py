"""The pictures of the page: some of the evaluated split for each class, and those that prototypes came from.

Every picture goes through the model once, with all prototypes that are to be shown on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.evaluation.protocol import Protocol
from dapl.evaluation.scenes import Scene, SplitScenes
from dapl.explain.draw import levels_of
from dapl.explain.evidence import on_pixels
from dapl.explain.parts import PictureFacts, foreground_shares, name_parts
from dapl.models.contract import PrototypeModel
from dapl.progress import Reporter
from dapl.training.lanes import Lanes, Split
from dapl.training.records import PrototypeRecord, bounding_boxes
from dapl.training.sources import Batch, run_model

HEAT_SIDE = 28
"""Cells a side of a heat map on the page; the browser smooths them, as the model's own grid is coarser still."""


@dataclass(frozen=True)
class Glance:
    """One prototype on one picture."""

    score: float
    heat: Tensor
    """uint8 HEAT_SIDE×HEAT_SIDE: the map on the picture, scaled to its own range."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of its region, as shares of the picture's side."""
    part: str | None
    foreground: float | None


@dataclass(frozen=True)
class Seen:
    """One picture and what the prototypes see in it."""

    name: str
    image: Tensor
    """uint8 3×T×T."""
    predicted: int
    probability: float
    glances: dict[int, Glance]
    """By the number of the prototype."""


def spread_pictures(labels: Sequence[int], classes: int, count: int) -> list[list[int]]:
    """For each class up to ``count`` pictures, spread evenly over those there are: not the best, not the worst."""
    own: list[list[int]] = [[] for _ in range(classes)]
    for index, label in enumerate(labels):
        own[label].append(index)
    return [[rows[(2 * n + 1) * len(rows) // (2 * count)] for n in range(count)] if len(rows) > count else rows
            for rows in own]  # fmt: skip


def source_rows(records: Sequence[PrototypeRecord], names: Sequence[str]) -> dict[int, list[int]]:
    """Index of each training picture that prototypes came from, with these; pictures not at hand are left out."""
    position = {name: index for index, name in enumerate(names)}
    found: dict[int, list[int]] = {}
    for record in records:
        if record.image in position:
            found.setdefault(position[record.image], []).append(record.index)
    return dict(sorted(found.items()))


@torch.no_grad()
def glance_over(
    model: PrototypeModel,
    lanes: Lanes,
    split: Split,
    wanted: Mapping[int, Sequence[int]],
    protocol: Protocol,
    side: int,
    reporter: Reporter,
) -> dict[int, Seen]:
    """Pictures of the split by index, each with the prototypes ``wanted`` on it. ``side``: T."""
    pictures = lanes.pictures(split)
    scenes = SplitScenes(lanes, split, protocol, with_parts=True)
    rows = list(wanted)
    order = list(torch.tensor(rows, dtype=torch.long).split(lanes.config.runtime.evaluation_batch))
    seen: dict[int, Seen] = {}
    with reporter.track(f"pictures of {split}", len(rows)) as advance:
        for batch in pictures.batches(order if rows else []):
            seen |= _glance(model, lanes, batch, wanted, scenes, side)
            advance(len(batch))
    return seen


def _glance(
    model: PrototypeModel,
    lanes: Lanes,
    batch: Batch,
    wanted: Mapping[int, Sequence[int]],
    scenes: SplitScenes,
    side: int,
) -> dict[int, Seen]:
    moved = batch.to(lanes.fabric.device)
    with lanes.fabric.autocast():
        output = run_model(model, moved)
    embedding = output.embedding.float()
    grid = (embedding.shape[-2], embedding.shape[-1])
    scene = scenes.of(batch, grid, torch.device("cpu"), with_masks=True)
    dataset = lanes.dataset(scenes.split)
    assert batch.images is not None
    small = F.interpolate(batch.images.float(), size=(side, side), mode="bilinear", antialias=True)
    small = small.round().clamp(0, 255).byte()
    confidence, predicted = output.logits.float().softmax(1).cpu().max(1)
    found = {}
    for row, index in enumerate(batch.indices.tolist()):
        named = list(wanted[index])
        facts = _facts(scene, row, dataset.parts)
        scores = output.scores[row].float().cpu()
        glances = _glances(model, embedding[row : row + 1], named, scores, facts, int(batch.images.shape[-1]))
        found[index] = Seen(
            dataset.names[index], small[row], int(predicted[row]), float(confidence[row]), glances
        )  # fmt: skip
    return found


def _glances(
    model: PrototypeModel, embedding: Tensor, named: list[int], scores: Tensor, facts: PictureFacts, size: int
) -> dict[int, Glance]:
    """embedding: 1×G×D×H×W, of one picture of size×size pixels."""
    if not named:
        return {}
    maps = model.maps(embedding, torch.tensor([named], device=embedding.device))[0]
    heat, regions = on_pixels(model, maps, size)
    small = F.adaptive_avg_pool2d(heat.unsqueeze(1), HEAT_SIDE).squeeze(1)
    boxes = (bounding_boxes(regions.view(torch.uint8)).double() / size).tolist()
    parts, shares = name_parts(regions, facts), foreground_shares(regions, facts)
    return {
        j: Glance(float(scores[j]), torch.from_numpy(levels_of(small[m])), tuple(boxes[m]), parts[m], shares[m])
        for m, j in enumerate(named)
    }


def _facts(scene: Scene, row: int, names: Sequence[str]) -> PictureFacts:
    parts, visible, masks = (None if t is None else t[row] for t in (scene.parts, scene.visible, scene.masks))
    return PictureFacts(None if masks is None else masks.bool(), parts, visible, names)
