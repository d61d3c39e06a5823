"""One pass over a split: maps become regions, regions meet parts and object, and a few numbers a picture remain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.evaluation.companions import NEED_MASKS, NEED_POINTS, CompanionRows
from dapl.evaluation.more_passes import MorePasses
from dapl.evaluation.rows import Answers, Found, Looks, merged
from dapl.evaluation.scenes import Scene, SplitScenes
from dapl.metrics.companions import explanation_size
from dapl.metrics.functional import background_bias, iou, overlap, region_background_share
from dapl.metrics.regions import model_regions
from dapl.models.contract import Output, PrototypeModel
from dapl.progress import Reporter
from dapl.training.lanes import Lanes, Split
from dapl.training.sources import Batch, in_order, run_model
from dapl.training.stages import deal


@dataclass(frozen=True)
class Wanted:
    """What a pass is to look for."""

    answers: bool = True
    parts: bool = True
    ious: bool = True
    bias: bool = True
    region_share: bool = True
    companions: frozenset[str] = frozenset()
    """By the names of `dapl.evaluation.selection`."""

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

    def __init__(self, model: PrototypeModel, lanes: Lanes, split: Split, scenes: SplitScenes, wanted: Wanted) -> None:
        self.model, self.lanes, self.split, self.scenes, self.wanted = model, lanes, split, scenes, wanted
        self.protocol, self.size = scenes.protocol, lanes.config.data.image_size
        self.table, self.counts = model.prototypes.by_class()
        self.thresholds = tried_thresholds(self.protocol.tau)
        self.weights = model.class_weights()
        self.more = MorePasses(model, lanes, split, self.protocol.seed)
        count, prototypes, parts = len(lanes.dataset(split)), self.table.shape[1], len(lanes.dataset(split).parts)
        self.rows = SplitRows(
            Answers.empty(count),
            Looks.empty(count, prototypes, parts, len(self.thresholds)),
            CompanionRows.empty(count, prototypes, parts),
        )

    def add(self, batch: Batch) -> None:
        moved = batch.to(self.lanes.fabric.device)
        with self.lanes.fabric.autocast():
            output = run_model(self.model, moved)
        self.rows.answers.add(batch.indices, output.logits, batch.labels)
        if "sparsity" in self.wanted.companions:
            terms = output.scores.float() * self.weights[:, output.logits.argmax(1)].T
            self.rows.companions.explanation_size[batch.indices] = explanation_size(terms).float().cpu()
        if self.wanted.maps:
            self._add_looks(batch, output, self.table[moved.labels], self.counts[moved.labels])

    def _add_looks(self, batch: Batch, output: Output, named: Tensor, kept: Tensor) -> None:
        """named, kept: B×M, the prototypes of each picture's class."""
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
    model: PrototypeModel, lanes: Lanes, split: Split, scenes: SplitScenes, wanted: Wanted, reporter: Reporter
) -> SplitRows:
    """The rows of every picture of the split, the same in every process.

    Whole batches are dealt out to the processes, so that a picture is seen in the same company as in one process.
    """
    fabric, source = lanes.fabric, lanes.source(split, model)
    measuring = SplitPass(model, lanes, split, scenes, wanted)
    order = in_order(len(source), lanes.config.runtime.evaluation_batch)
    with reporter.track(f"evaluating {split}", len(source)) as advance:
        for batch in source.batches(deal(order, fabric)):
            measuring.add(batch)
            advance(len(batch))
    rows = measuring.rows
    return SplitRows(merged(rows.answers, fabric), merged(rows.looks, fabric), merged(rows.companions, fabric))
