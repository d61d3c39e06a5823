"""Companions that take model passes of their own, and run only when they are asked for.

One pass over a split: maps become regions, regions meet parts and object, and a few numbers an image remain.

Scope ``projection``: each prototype on the image it was projected from, one row a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dapl.batches.run_data import RunData, Split
from dapl.batches.sources import Batch, features_of, in_order, run_model
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.common.seeds import generator
from dapl.evaluation.rows import (
    NEED_MASKS,
    NEED_POINTS,
    Answers,
    CompanionRows,
    Found,
    Looks,
    correspondence,
    scaled,
)
from dapl.evaluation.scenes import Scene, SplitScenes
from dapl.metrics import functional as F
from dapl.metrics.functional import background_bias, explanation_size, iou, overlap, region_background_share
from dapl.metrics.functional.purity import PurityTable
from dapl.metrics.functional.regions import model_regions
from dapl.models.contract import Output, PrototypeModel
from dapl.models.prototypes import class_table
from dapl.processes.sharing import own_batches, sum_tables
from dapl.runs.records import PrototypeRecord

PATCH, BLUR = 32, 10
"""Side of PIP-Net's patch and σ of the blur, in pixels of an image of 224."""


@dataclass(frozen=True)
class MorePasses:
    """Stability and faithfulness, batch by batch beside the pass that gave the maps."""

    model: PrototypeModel
    run_data: RunData
    split: Split
    seed: int

    def add_stability(self, rows: CompanionRows, batch: Batch, named: Tensor, scene: Scene) -> None:
        """One pass: the same images with noise. named: B×M."""
        if scene.points is None:
            return
        noise = [generator(self.seed, "noise", index) for index in batch.indices.tolist()]
        noisy = F.perturb(self._images(batch), self.model.backbone.std.flatten(), noise)  # type: ignore[union-attr,operator]
        with self.run_data.processes.autocast():
            embedding = self.model.embed(self.model.backbone(noisy)).float()
        again, _ = correspondence(self.model.maps(embedding, named), scene)
        unchanged = (again.cpu().byte() == rows.corresponding[batch.indices]).all(2)
        rows.stable[batch.indices] = unchanged.byte()

    def add_faithfulness(
        self, rows: CompanionRows, batch: Batch, output: Output, named: Tensor, kept: Tensor, regions: Tensor
    ) -> None:
        """Two passes: without the region of the prototype that contributes most, and without a random one."""
        labels = batch.labels.to(named.device)
        weights = self.model.class_weights()[named, labels.unsqueeze(1)]
        contributions = (output.scores.gather(1, named) * weights).where(kept, -torch.inf)
        most = contributions.argmax(1, keepdim=True)
        own = regions.gather(1, most[..., None, None].expand(-1, 1, *regions.shape[-2:])).squeeze(1)
        moved = F.random_regions(own, [generator(self.seed, "region", index) for index in batch.indices.tolist()])
        prototype, images = named.gather(1, most), self._images(batch)
        before, sigma = output.scores.gather(1, prototype), float(scaled(BLUR, images.shape[-1]))
        after = [self._scores(F.blur_out(images, region, sigma)).gather(1, prototype) for region in (own, moved)]
        lost = [before - score for score in after]
        measured = kept.gather(1, most)
        rows.similarity_lost[batch.indices] = torch.cat(lost, dim=1).where(measured, torch.nan).float().cpu()

    def _scores(self, images: Tensor) -> Tensor:
        with self.run_data.processes.autocast():
            return self.model(images).scores.float()

    def _images(self, batch: Batch) -> Tensor:
        """uint8 B×3×S×S, where the batch may be one of features."""
        if batch.images is not None:
            return batch.images.to(self.run_data.processes.device)
        source = self.run_data.images(self.split)
        images = [source[index, 0][0] for index in batch.indices.tolist()]
        return torch.stack(images).to(self.run_data.processes.device)


@torch.no_grad()
def purity_of_prototypes(model: PrototypeModel, run_data: RunData, scenes: SplitScenes, reporter: Reporter) -> Tensor:
    """Purity of each prototype on the training images it likes best, P; NaN where there is none. One pass.

    ``scenes`` are those of the training split.
    """
    processes, size = run_data.processes, run_data.config.data.image_size
    merged, groups = F.merge_left_right(list(run_data.dataset("train").parts))
    relevant = (model.class_weights() > 1e-5).any(1) & model.prototypes.kept
    table = PurityTable(len(model.prototypes), len(merged))
    best = table.empty().to(processes.device)
    source = run_data.source("train", model)
    order = in_order(len(source), run_data.config.runtime.evaluation_batch)
    with reporter.track("purity on train", len(source)) as advance:
        for batch in source.batches(own_batches(order, processes)):
            with processes.autocast():
                output = run_model(model, batch.to(processes.device))
            points = scenes.points(batch)
            keypoints, visible = points.keypoints.to(processes.device), points.visible.to(processes.device)
            visible = F.visible_keypoints(keypoints, visible, size)
            grid = (output.embedding.shape[-2], output.embedding.shape[-1])
            boxes = F.patches(output.locations, grid, size, float(scaled(PATCH, size)))
            present = F.merge_parts(F.parts_in_patches(boxes, keypoints, visible), groups)
            rows = table.rows(output.scores.float(), present, F.merge_parts(visible, groups), batch.indices, relevant)
            best = table.best(torch.cat((best, rows.to(best)), dim=1))
            advance(len(batch))
    if processes.world_size > 1:
        best = table.merge(processes.gather(best))
    return table.purity(best).cpu()


@dataclass(frozen=True)
class Wanted:
    """What a pass is to look for."""

    answers: bool = True
    parts: bool = True
    ious: bool = True
    bias: bool = True
    region_share: bool = True
    companions: frozenset[str] = frozenset()
    """By the names of `dapl.metrics.registry`."""

    @property
    def maps(self) -> bool:
        return self.regions or self.bias or bool(self.companions & (NEED_POINTS | NEED_MASKS))

    @property
    def regions(self) -> bool:
        with_regions = self.companions & {"object_overlap", "faithfulness"}
        return self.parts or self.ious or self.region_share or bool(with_regions)

    @property
    def masks(self) -> bool:
        return self.bias or self.region_share or bool(self.companions & NEED_MASKS)

    @property
    def points(self) -> bool:
        return self.parts or bool(self.companions & {"consistency", "stability"})


def tried_thresholds(tau: float) -> Tensor:
    """T ascending: 0.05, 0.10 … 0.95 and the protocol's own τ."""
    return torch.tensor(sorted({round(0.05 * step, 2) for step in range(1, 20)} | {tau}))


def look(maps: Tensor, regions: Tensor | None, kept: Tensor, scene: Scene, wanted: Wanted) -> Found:
    """maps B×M×H×W, regions bool B×M×S×S, kept bool B×M. What the scene does not have is left out."""
    found: dict[str, Tensor] = {}
    if regions is not None and wanted.parts and scene.parts is not None and scene.visible is not None:
        found |= {"overlap": overlap(regions, scene.parts), "visible": scene.visible}
    if regions is not None and wanted.ious:
        found["ious"] = iou(regions)
    if regions is not None and wanted.region_share and scene.masks is not None:
        found["region_share"] = region_background_share(regions, scene.masks.bool(), kept)
    if wanted.bias and scene.grid is not None and not bool((maps < 0).any()):
        found["bias"] = background_bias(maps, scene.grid, kept)
    return Found(kept, **found)


@dataclass(frozen=True)
class SplitRows:
    """All that a pass over a split leaves behind."""

    answers: Answers
    looks: Looks
    companions: CompanionRows


class SplitPass:
    """The model on a split, one batch at a time."""

    def __init__(
        self, model: PrototypeModel, run_data: RunData, split: Split, scenes: SplitScenes, wanted: Wanted
    ) -> None:
        self.model, self.run_data, self.split, self.scenes, self.wanted = model, run_data, split, scenes, wanted
        self.protocol, self.size = scenes.protocol, run_data.config.data.image_size
        self.table, self.counts = model.prototypes.by_class()
        self.thresholds = tried_thresholds(self.protocol.tau)
        self.weights = model.class_weights()
        self.more = MorePasses(model, run_data, split, self.protocol.seed)
        count, prototypes, parts = len(run_data.dataset(split)), self.table.shape[1], len(run_data.dataset(split).parts)
        self.rows = SplitRows(
            Answers.empty(count),
            Looks.empty(count, prototypes, parts, len(self.thresholds)),
            CompanionRows.empty(count, prototypes, parts),
        )

    def add(self, batch: Batch) -> None:
        moved = batch.to(self.run_data.processes.device)
        with self.run_data.processes.autocast():
            output = run_model(self.model, moved)
        self.rows.answers.add(batch.indices, output.logits, batch.labels)
        if "sparsity" in self.wanted.companions:
            terms = output.scores.float() * self.weights[:, output.logits.argmax(1)].T
            self.rows.companions.explanation_size[batch.indices] = explanation_size(terms).float().cpu()
        if self.wanted.maps:
            self._add_looks(batch, output, self.table[moved.labels], self.counts[moved.labels])

    def _add_looks(self, batch: Batch, output: Output, named: Tensor, kept: Tensor) -> None:
        """named, kept: B×M, the prototypes of each image's class."""
        wanted, rows = self.wanted, self.rows.companions
        maps = self.model.maps(output.embedding.float(), named)
        regions = model_regions(self.model, maps, self.size, self.protocol.percentile) if wanted.regions else None
        scene = self.scenes.of(batch, (maps.shape[-2], maps.shape[-1]), maps.device, wanted.masks)
        found = look(maps, regions, kept, scene, wanted)
        self.rows.looks.add(batch.indices, found, self.protocol.tau, self.thresholds)
        rows.add(batch.indices, maps, regions, kept, scene, wanted.companions)
        if "stability" in wanted.companions:
            self.more.add_stability(rows, batch, named, scene)
        if "faithfulness" in wanted.companions and regions is not None:
            self.more.add_faithfulness(rows, batch, output, named, kept, regions)


@torch.no_grad()
def measure_split(
    model: PrototypeModel, run_data: RunData, split: Split, scenes: SplitScenes, wanted: Wanted, reporter: Reporter
) -> SplitRows:
    """The rows of every image of the split, the same in every process.

    Whole batches are dealt out to the processes, so that an image is seen in the same company as in one process.
    """
    processes, source = run_data.processes, run_data.source(split, model)
    measuring = SplitPass(model, run_data, split, scenes, wanted)
    order = in_order(len(source), run_data.config.runtime.evaluation_batch)
    with reporter.track(f"evaluating {split}", len(source)) as advance:
        for batch in source.batches(own_batches(order, processes)):
            measuring.add(batch)
            advance(len(batch))
    rows = measuring.rows
    return SplitRows(
        sum_tables(rows.answers, processes), sum_tables(rows.looks, processes), sum_tables(rows.companions, processes)
    )


@torch.no_grad()
def measure_sources(
    model: PrototypeModel,
    records: Sequence[PrototypeRecord],
    run_data: RunData,
    scenes: SplitScenes,
    wanted: Wanted,
    reporter: Reporter,
) -> Looks:
    """One row a class; ``scenes`` are those of the training split, where projection looks for patches."""
    sources = _source_images(records, run_data).to(model.prototypes.kept.device)
    table, counts = class_table(model.prototypes.membership, model.prototypes.kept & (sources >= 0))
    thresholds = tried_thresholds(scenes.protocol.tau)
    looks = Looks.empty(len(table), table.shape[1], len(run_data.dataset("train").parts), len(thresholds))
    images = run_data.images("train")
    classes_at_once = max(1, run_data.config.runtime.evaluation_batch // table.shape[1])
    order = own_batches(list(torch.arange(len(table)).split(classes_at_once)), run_data.processes)
    with reporter.track("prototypes on their sources", sum(map(len, order))) as advance:
        for classes in order:
            named, kept = table[classes], counts[classes]
            needed, place = sources[named].clamp(min=0).unique(return_inverse=True)  # an image may serve several
            batch = next(iter(images.batches([needed.cpu()])))
            found = _look_at(model, batch, named, kept, place.view_as(named), scenes, wanted)
            looks.add(classes, found, scenes.protocol.tau, thresholds)
            advance(len(classes))
    return sum_tables(looks, run_data.processes)


def _look_at(
    model: PrototypeModel, batch: Batch, named: Tensor, kept: Tensor, place: Tensor, scenes: SplitScenes, wanted: Wanted
) -> Found:
    """Prototypes ``named`` (B×M) on images ``place`` (B×M) of the batch: every pair is a row of its own at first."""
    processes = scenes.run_data.processes
    with processes.autocast():
        embedding = model.embed(features_of(model, batch.to(processes.device))).float()
    pairs = place.flatten()
    maps = model.maps(embedding[pairs], named.flatten().unsqueeze(1))  # BM×1×H×W
    scene = _rows(scenes.of(batch, (maps.shape[-2], maps.shape[-1]), processes.device, wanted.masks), pairs)
    size = scenes.run_data.config.data.image_size
    regions = model_regions(model, maps, size, scenes.protocol.percentile) if wanted.regions else None  # BM×1×S×S
    found = look(maps, regions, kept.flatten().unsqueeze(1), scene, replace(wanted, ious=False))
    ious = None
    if wanted.ious and regions is not None:
        ious = iou(regions.view(*named.shape, size, size), batch.indices.to(place.device)[place])
    overlap = visible = None
    if found.overlap is not None and found.visible is not None:
        seen = found.visible.view(*named.shape, -1) & kept.unsqueeze(2)  # B×M×K, on each prototype's own image
        overlap, visible = found.overlap.view(*named.shape, -1) * seen, seen.any(1)
    bias, share = (None if t is None else t.view_as(named) for t in (found.bias, found.region_share))
    return Found(kept, overlap, visible, ious, bias, share)


def _rows(scene: Scene, rows: Tensor) -> Scene:
    parts, visible, masks, grid = (
        None if t is None else t[rows] for t in (scene.parts, scene.visible, scene.masks, scene.grid)
    )
    return Scene(parts, visible, masks, grid)


def _source_images(records: Sequence[PrototypeRecord], run_data: RunData) -> Tensor:
    """Index in the training split of each prototype's source image, P; −1 where it has none."""
    position = {name: index for index, name in enumerate(run_data.dataset("train").names)}
    if all(record.image is None for record in records):
        raise DaplError("scope: projection needs prototypes that were projected, and these were not; use image.")
    lost = [record.image for record in records if record.image is not None and record.image not in position]
    if lost:
        raise DaplError(
            f"scope: {lost[0]}, where a prototype comes from, is not among the training images of this data; "
            "evaluate with the data of the run."
        )
    return torch.tensor([-1 if record.image is None else position[record.image] for record in records])
