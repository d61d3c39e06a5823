"""What is known of the images of a batch: where the parts are, and where the object is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.batches.cache import AnnotationReader, Annotations, base_rows, load_annotations
from dapl.batches.run_data import RunData, Split
from dapl.batches.sources import Batch, grid_masks
from dapl.common.errors import DaplError
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.metrics.functional import visible_parts
from dapl.metrics.functional.parts import RADIUS, part_masks


@dataclass(frozen=True)
class Scene:
    """B images of S×S pixels, K parts; None where it is not known or not asked for."""

    parts: Tensor | None
    """bool B×K×S×S."""
    visible: Tensor | None
    """bool B×K: the parts that count."""
    masks: Tensor | None
    """B×S×S in {0, 1}: the object."""
    grid: Tensor | None
    """float B×H×W: the share of the object in each cell of the feature grid."""
    points: Annotations | None = None
    """Keypoints as annotated, on the CPU."""


def part_mode(protocol: EvaluationProtocol, exact: bool, masks: bool) -> str:
    """The mode that ``auto`` stands for, or an error where the data does not have what a mode needs."""
    mode = protocol.part_mode
    if mode == "auto":
        return "exact" if exact else "disc"
    if mode == "exact" and not exact:
        raise DaplError("part_mode: the data has no part masks of its own, which exact takes; use disc.")
    if mode in ("clipped", "voronoi") and not masks:
        raise DaplError(f"part_mode: {mode} needs foreground masks, which the data does not have; use disc or point.")
    return mode


def part_radius(protocol: EvaluationProtocol, mode: str) -> float | None:
    """The radius of the discs, None where the mode has none."""
    if mode not in ("disc", "clipped"):
        return None
    return protocol.radius if protocol.radius is not None else RADIUS[protocol.radius_of]  # type: ignore[index]


def parts_of(
    annotations: Annotations, masks: Tensor | None, mode: str, protocol: EvaluationProtocol, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Part masks bool B×K×S×S of a batch, and the parts that count, bool B×K. masks: B×S×S or None."""
    if mode == "exact":
        parts = annotations.part_masks()
        assert parts is not None
        parts = parts.to(device)
        return parts, visible_parts(parts)
    boxes = annotations.boxes.to(device)
    unknown = bool((boxes[:, 2:] <= boxes[:, :2]).any())
    parts = part_masks(
        annotations.keypoints.to(device),
        annotations.visible.to(device),
        annotations.size,
        mode,  # type: ignore[arg-type]
        protocol.radius,
        protocol.radius_of,  # type: ignore[arg-type]
        boxes,
        masks if unknown or mode in ("clipped", "voronoi") else None,
    )
    return parts, visible_parts(parts, annotations.visible.to(device))


class SplitScenes:
    """The scenes of a split of a run's data, annotations from the cache where there is one."""

    def __init__(self, run_data: RunData, split: Split, protocol: EvaluationProtocol, with_parts: bool) -> None:
        self.run_data, self.split, self.protocol = run_data, split, protocol
        dataset = run_data.dataset(split)
        base, rows = base_rows(dataset)
        self.has_masks, self.has_parts = dataset.has_masks, len(dataset.parts) > 0
        self.rows = torch.tensor(rows)
        self.mode: str | None = None
        if with_parts and self.has_parts:
            data = run_data.config.data
            self.reader = AnnotationReader(base, data.image_size, data.fit)
            self.cached = self._load() if run_data.config.cache.pixels else None
            self.mode = part_mode(protocol, self.reader.exact, self.has_masks)

    def of(self, batch: Batch, grid: tuple[int, int], device: torch.device, with_masks: bool) -> Scene:
        """``grid``: size of the maps. ``with_masks``: is the object wanted beside the parts?"""
        masks = None
        if self.has_masks and (with_masks or self._parts_need_masks()):
            masks = batch.masks if batch.images is not None else self.run_data.pixel_masks(self.split, batch.indices)
            masks = None if masks is None else masks.to(device)
        shares = None
        if masks is not None and with_masks:
            cached = batch.features is not None and batch.masks is not None
            shares = grid_masks(batch.masks.to(device) if cached else masks, grid)  # type: ignore[union-attr]
        if self.mode is None:
            return Scene(None, None, masks, shares)
        points = self.points(batch)
        parts, visible = parts_of(points, masks, self.mode, self.protocol, device)
        return Scene(parts, visible, masks, shares, points)

    def points(self, batch: Batch) -> Annotations:
        """Of data with parts."""
        rows = self.rows[batch.indices]
        return self.reader.read(rows.tolist()) if self.cached is None else self.cached.rows(rows)

    def _parts_need_masks(self) -> bool:
        return self.mode not in (None, "exact", "point")

    def _load(self) -> Annotations:
        """One process a machine makes the files, the others find them."""
        self.run_data.images(self.split)  # whoever decodes the images for the pixel cache writes annotations as well
        processes = self.run_data.processes
        found = self._open() if processes.local_rank == 0 else None
        processes.barrier()
        return self._open() if found is None else found

    def _open(self) -> Annotations:
        data = self.run_data.config.data
        base, _ = base_rows(self.run_data.dataset(self.split))
        return load_annotations(base, data.image_size, data.fit, self.run_data.folder)
