"""The passes of an evaluation: over the images of a split, over the sources of prototypes, over training images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from dapl.batches.run_data import RunData
from dapl.batches.sources import Batch, company, features_of, filled, in_order, run_model
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.evaluation.ground_truth import GroundTruth, SplitGroundTruth
from dapl.evaluation.measurements import Rows
from dapl.evaluation.measures import MEASURES
from dapl.evaluation.views import PATCH, BatchView, ModelView, scaled
from dapl.metrics import functional as F
from dapl.metrics.functional.purity import PurityTable
from dapl.metrics.functional.regions import map_pixels
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import own_batches
from dapl.runs.schemas import PrototypeRecord


def keep(rows: Rows, view: BatchView, names: Iterable[str]) -> None:
    """Fill the rows of a batch with what these metrics keep, and which of the maps that they looked at are constant."""
    for name in sorted(names):
        rows.add(view.indices, MEASURES[name].keep(view))
    if "maps" in vars(view):  # a cached property: some metric asked for it
        flat = F.flat_maps(view.maps) & view.kept
        rows.add(view.indices, {"flat": flat.sum(1), "mapped": view.kept.sum(1)})


@torch.no_grad()
def measure_split(
    model: PrototypeModel, truth: SplitGroundTruth, names: Iterable[str], reporter: Reporter, doing: str = "evaluating"
) -> Rows:
    """What these metrics keep of every image of the split, the same in every process.

    Every pass has the same number of images, so that a map has the same bits in any batch and in any process.
    """
    run_data, split, names = truth.run_data, truth.split, frozenset(names)
    processes, source = run_data.processes, run_data.source(split, model)
    rows = Rows(len(source))
    size = company(run_data.config.runtime.evaluation_batch, processes.device)
    order = filled(own_batches(in_order(len(source), size), processes), size)
    with reporter.track(f"{doing} {split}", len(source)) as advance:
        for batch in source.batches(order):
            known = truth.of(batch, processes.device)
            keep(rows, ModelView(model, run_data, split, batch, known, truth.protocol), names)
            advance(len(batch.indices.unique()))
    return rows.merged(processes)


class _SourceView(BatchView):
    """Prototypes on the images that they come from: row b is a class, its prototype m lies on image place[b, m].

    Every pair of a prototype and its image is a row of its own where parts and object are looked up.
    """

    def __init__(
        self,
        model: PrototypeModel,
        batch: Batch,
        classes: Tensor,
        named: Tensor,
        kept: Tensor,
        place: Tensor,
        truth: SplitGroundTruth,
    ) -> None:
        processes = truth.run_data.processes
        known: GroundTruth = truth.of(batch, processes.device)
        size = truth.run_data.config.data.image_size
        super().__init__(classes, classes, kept, known, truth.protocol, size)
        self.model, self.batch, self.named, self.place, self.processes = model, batch, named, place, processes

    @cached_property
    def maps(self) -> Tensor:
        with self.processes.autocast():
            embedding = self.model.embed(features_of(self.model, self.batch.to(self.processes.device))).float()
        maps = self.model.maps(embedding[self.place.flatten()], self.named.flatten().unsqueeze(1))
        return maps.view(*self.named.shape, *maps.shape[-2:])

    @cached_property
    def drawn_maps(self) -> tuple[Tensor, int | None]:
        return map_pixels(self.model, self.maps, self.size)

    @property
    def _object_areas(self) -> Tensor:
        return super()._object_areas.squeeze(1)[self.place]

    @cached_property
    def _seen(self) -> Tensor | None:
        """bool B×M×K: the parts that count, on each prototype's own image."""
        visible = self.truth.visible
        return None if visible is None else visible[self.place] & self.kept.unsqueeze(2)

    @property
    def part_areas(self) -> None:  # type: ignore[override]
        """None: the prototypes of a row have images of their own, so that it has no areas."""

    @cached_property
    def visible(self) -> Tensor | None:
        return None if self._seen is None else self._seen.any(1)

    def _overlap_of(self, regions: F.PixelSets) -> Tensor | None:
        if self.truth.parts is None or self._seen is None:
            return None
        shares = F.overlap(regions.sets.flatten(0, 1).unsqueeze(1), self.truth.parts[self.place.flatten()])
        return shares.view(self._seen.shape) * self._seen

    def _ious_of(self, regions: F.PixelSets) -> Tensor:
        return F.iou(regions, self.batch.indices.to(self.place.device)[self.place])

    @cached_property
    def bias(self) -> Tensor | None:
        if self.foreground is None or self.has_negative:
            return None if self.foreground is None else torch.full(self.kept.shape, torch.nan)
        maps, kept = self.maps.flatten(0, 1).unsqueeze(1), self.kept.flatten().unsqueeze(1)
        return F.background_bias(maps, self.foreground[self.place.flatten()], kept).view_as(self.kept)

    @cached_property
    def region_share(self) -> Tensor | None:
        if self.truth.masks is None:
            return None
        regions, kept = self.regions.flatten(0, 1).unsqueeze(1), self.kept.flatten().unsqueeze(1)
        masks = self.truth.masks.bool()[self.place.flatten()]
        return F.region_background_share(regions, masks, kept).view_as(self.kept)


@torch.no_grad()
def measure_sources(
    model: PrototypeModel,
    records: Sequence[PrototypeRecord],
    truth: SplitGroundTruth,
    names: Iterable[str],
    reporter: Reporter,
) -> Rows:
    """Scope projection: each prototype on the image that it was projected from, one row per class.

    ``truth`` is that of the training split, where projection looks for patches.
    """
    run_data = truth.run_data
    sources = _source_images(records, run_data).to(model.prototypes.kept.device)
    table, counts = model.prototypes.counted(model.prototypes.kept & (sources >= 0))
    rows, images = Rows(len(table)), run_data.images("train")
    classes_at_once = max(1, run_data.config.runtime.evaluation_batch // table.shape[1])
    order = own_batches(list(torch.arange(len(table)).split(classes_at_once)), run_data.processes)
    with reporter.track("prototypes on their sources", sum(map(len, order))) as advance:
        for classes in order:
            named, kept = table[classes], counts[classes]
            needed, place = sources[named].clamp(min=0).unique(return_inverse=True)  # an image may serve several
            batch = next(iter(images.batches([needed.cpu()])))
            keep(rows, _SourceView(model, batch, classes, named, kept, place.view_as(named), truth), names)
            advance(len(classes))
    return rows.merged(run_data.processes)


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


@torch.no_grad()
def purity_of_prototypes(model: PrototypeModel, truth: SplitGroundTruth, reporter: Reporter) -> Tensor:
    """Purity of each prototype on the training images it likes best, P; NaN where there is none. One pass.

    ``truth`` is that of the training split.
    """
    run_data, size = truth.run_data, truth.run_data.config.data.image_size
    processes = run_data.processes
    merged_parts, groups = F.merge_left_right(list(run_data.dataset("train").parts))
    relevant = torch.zeros_like(model.prototypes.kept)
    for classes in _some_classes(model):
        relevant |= (model.weights_of_classes(classes) > 1e-5).any(1)
    relevant &= model.prototypes.kept
    table = PurityTable(len(model.prototypes), len(merged_parts))
    best = table.empty().to(processes.device)
    source = run_data.source("train", model)
    order = in_order(len(source), run_data.config.runtime.evaluation_batch)
    with reporter.track("purity on train", len(source)) as advance:
        for batch in source.batches(own_batches(order, processes)):
            with processes.autocast():
                output = run_model(model, batch.to(processes.device))
            points = truth.points(batch)
            keypoints, visible = points.keypoints.to(processes.device), points.visible.to(processes.device)
            visible = F.visible_keypoints(keypoints, visible, size)
            grid = output.embedding.grid
            boxes = F.patches(output.locations, grid, size, float(scaled(PATCH, size)))
            present = F.merge_parts(F.parts_in_patches(boxes, keypoints, visible), groups)
            rows = table.rows(output.scores.float(), present, F.merge_parts(visible, groups), batch.indices, relevant)
            best = table.best(torch.cat((best, rows.to(best)), dim=1))
            advance(len(batch))
    if processes.world_size > 1:
        best = table.merge(processes.gather(best))
    return table.purity(best).cpu()


def read_off(model: PrototypeModel) -> dict[str, Tensor]:
    """Numbers of the model that no image decides."""
    prototypes = model.prototypes
    return {
        "sparsity": F.sparsity(prototypes.vectors, model.classes, prototypes.kept, prototypes.group_of),
        "class_size": torch.cat([F.class_sizes(model.weights_of_classes(classes)) for classes in _some_classes(model)])
        .double()
        .mean(),
    }


def _some_classes(model: PrototypeModel) -> Iterable[Tensor]:
    """All classes, some at a time: the weights of all prototypes to 10,000 classes would take gigabytes."""
    return torch.arange(model.classes, device=model.prototypes.kept.device).split(64)
