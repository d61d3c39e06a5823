"""Companions that take model passes of their own, and run only when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.evaluation.companions import CompanionRows, correspondence, scaled
from dapl.evaluation.scenes import Scene, SplitScenes
from dapl.metrics import companions as F
from dapl.metrics.companions._purity_table import PurityTable
from dapl.models.contract import Output, PrototypeModel
from dapl.progress import Reporter
from dapl.seeds import generator
from dapl.training.lanes import Lanes, Split
from dapl.training.sources import Batch, in_order, run_model
from dapl.training.stages import deal

PATCH, BLUR = 32, 10
"""Side of PIP-Net's patch and σ of the blur, in pixels of a picture of 224."""


@dataclass(frozen=True)
class MorePasses:
    """Stability and faithfulness, batch by batch beside the pass that gave the maps."""

    model: PrototypeModel
    lanes: Lanes
    split: Split
    seed: int

    def add_stability(self, rows: CompanionRows, batch: Batch, named: Tensor, scene: Scene) -> None:
        """One pass: the same pictures with noise. named: B×M."""
        if scene.points is None:
            return
        noise = [generator(self.seed, "noise", index) for index in batch.indices.tolist()]
        noisy = F.perturb(self._images(batch), self.model.backbone.std.flatten(), noise)  # type: ignore[union-attr,operator]
        with self.lanes.fabric.autocast():
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
        with self.lanes.fabric.autocast():
            return self.model(images).scores.float()

    def _images(self, batch: Batch) -> Tensor:
        """uint8 B×3×S×S, where the batch may be one of features."""
        if batch.images is not None:
            return batch.images.to(self.lanes.fabric.device)
        pictures = self.lanes.pictures(self.split)
        images = [pictures[index, 0][0] for index in batch.indices.tolist()]
        return torch.stack(images).to(self.lanes.fabric.device)


@torch.no_grad()
def purity_of_prototypes(model: PrototypeModel, lanes: Lanes, scenes: SplitScenes, reporter: Reporter) -> Tensor:
    """Purity of each prototype on the training pictures it likes best, P; NaN where there is none. One pass.

    ``scenes`` are those of the training split.
    """
    fabric, size = lanes.fabric, lanes.config.data.image_size
    merged, groups = F.merge_left_right(list(lanes.dataset("train").parts))
    relevant = (model.class_weights() > 1e-5).any(1) & model.prototypes.kept
    table = PurityTable(len(model.prototypes), len(merged))
    best = table.empty().to(fabric.device)
    source = lanes.source("train", model)
    order = in_order(len(source), lanes.config.runtime.evaluation_batch)
    with reporter.track("purity on train", len(source)) as advance:
        for batch in source.batches(deal(order, fabric)):
            with fabric.autocast():
                output = run_model(model, batch.to(fabric.device))
            points = scenes.points(batch)
            keypoints, visible = points.keypoints.to(fabric.device), points.visible.to(fabric.device)
            visible = F.visible_keypoints(keypoints, visible, size)
            grid = (output.embedding.shape[-2], output.embedding.shape[-1])
            boxes = F.patches(output.locations, grid, size, float(scaled(PATCH, size)))
            present = F.merge_parts(F.parts_in_patches(boxes, keypoints, visible), groups)
            rows = table.rows(output.scores.float(), present, F.merge_parts(visible, groups), batch.indices, relevant)
            best = table.best(torch.cat((best, rows.to(best)), dim=1))
            advance(len(batch))
    if fabric.world_size > 1:
        best = table.merge(fabric.all_gather(best))  # type: ignore[arg-type]
    return table.purity(best).cpu()
