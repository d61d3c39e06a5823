"""What the annotations say of the images of a batch: where the parts are, and where the object is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from dapl.batches.pixels import AnnotationReader, Annotations, base_rows, load_annotations
from dapl.batches.run_data import RunData, Split
from dapl.batches.sources import Batch, grid_masks
from dapl.common.errors import DaplError, WriteError
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.metrics.functional.controls import Control
from dapl.metrics.functional.coverage import visible_parts
from dapl.metrics.functional.parts import RADIUS, part_masks


class GroundTruth:
    """B images of S×S pixels, K parts. Each piece is made when it is first asked for; None where the data is silent."""

    def __init__(
        self,
        protocol: EvaluationProtocol,
        mode: str | None,
        device: torch.device,
        points: Callable[[], Annotations],
        masks: Callable[[], Tensor | None],
        cell_masks: Tensor | None = None,
    ) -> None:
        """``mode``: how parts are made, None for no parts. ``cell_masks``: the masks on a grid, where they are kept."""
        self._protocol, self._mode, self._device = protocol, mode, device
        self._read_points, self._read_masks, self._cell_masks = points, masks, cell_masks

    @cached_property
    def points(self) -> Annotations | None:
        """Keypoints as annotated, on the CPU."""
        return None if self._mode is None else self._read_points()

    @cached_property
    def masks(self) -> Tensor | None:
        """B×S×S in {0, 1}: the object."""
        masks = self._read_masks()
        return None if masks is None else masks.to(self._device)

    @property
    def parts(self) -> Tensor | None:
        """bool B×K×S×S."""
        return self._parts[0]

    @property
    def visible(self) -> Tensor | None:
        """bool B×K: the parts that count."""
        return self._parts[1]

    def foreground(self, grid: Sequence[int]) -> Tensor | None:
        """float B×H×W: the share of the object in each cell of a grid of this size."""
        masks = self.masks if self._cell_masks is None else self._cell_masks.to(self._device)
        return None if masks is None else grid_masks(masks, grid)

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        if self.points is None:
            return None, None
        points, protocol, device = self.points, self._protocol, self._device
        if self._mode == "exact":
            exact = points.part_masks()
            assert exact is not None
            return exact.to(device), visible_parts(exact.to(device))
        boxes = points.boxes.to(device)
        unknown = bool((boxes[:, 2:] <= boxes[:, :2]).any())
        needs_masks = self._mode != "point" and (unknown or self._mode in ("clipped", "voronoi"))
        parts = part_masks(
            points.keypoints.to(device),
            points.visible.to(device),
            points.size,
            self._mode,  # type: ignore[arg-type]
            protocol.radius,
            protocol.radius_of,  # type: ignore[arg-type]
            boxes,
            self.masks if needs_masks else None,
        )
        return parts, visible_parts(parts, points.visible.to(device))


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


def part_facts(protocol: EvaluationProtocol, mode: str | None) -> dict[str, str | float | None]:
    """How parts were made, as the protocol of an evaluation writes it down."""
    radius = None
    if mode in ("disc", "clipped"):
        radius = protocol.radius if protocol.radius is not None else RADIUS[protocol.radius_of]  # type: ignore[index]
    return {"part_mode": mode, "radius": radius}


def control_of(protocol: EvaluationProtocol, masks: bool) -> Control:
    """The control region that ``auto`` stands for, or an error where the data does not have what a control needs."""
    control = protocol.control
    if control == "auto":
        return "object" if masks else "anywhere"
    if control != "anywhere" and not masks:
        raise DaplError(f"control: {control} needs foreground masks, which the data does not have; use anywhere.")
    return control  # type: ignore[return-value]


class SplitGroundTruth:
    """The ground truth of a split of a run's data, annotations from the cache where there is one."""

    def __init__(self, run_data: RunData, split: Split, protocol: EvaluationProtocol, with_parts: bool = True) -> None:
        self.run_data, self.split, self.protocol = run_data, split, protocol
        dataset = run_data.dataset(split)
        base, rows = base_rows(dataset)
        self.has_masks = dataset.has_masks
        self.rows = torch.tensor(list(rows))
        self.mode: str | None = None
        if with_parts and len(dataset.parts):
            data = run_data.config.data
            self.reader = AnnotationReader(base, data.image_size, data.fit)
            self.cached = self._load() if run_data.config.cache.pixels else None
            self.mode = part_mode(protocol, self.reader.exact, self.has_masks)

    def of(self, batch: Batch, device: torch.device) -> GroundTruth:
        def masks() -> Tensor | None:
            if not self.has_masks:
                return None
            return batch.masks if batch.images is not None else self.run_data.pixel_masks(self.split, batch.indices)

        on_cells = batch.masks if batch.features is not None else None
        return GroundTruth(self.protocol, self.mode, device, lambda: self.points(batch), masks, on_cells)

    def points(self, batch: Batch) -> Annotations:
        """The keypoints of data with parts."""
        rows = self.rows[batch.indices]
        return self.reader.read(rows.tolist()) if self.cached is None else self.cached.rows(rows)

    def _load(self) -> Annotations | None:
        """One process per machine makes the files, the others find them; None where they cannot be kept."""
        self.run_data.images(self.split)  # whoever decodes the images for the pixel cache writes annotations as well
        processes = self.run_data.processes
        found = self._open() if processes.local_rank == 0 else None
        processes.barrier()
        return self._open() if found is None else found

    def _open(self) -> Annotations | None:
        data = self.run_data.config.data
        base, _ = base_rows(self.run_data.dataset(self.split))
        try:
            return load_annotations(base, data.image_size, data.fit, self.run_data.folder)
        except WriteError as error:
            self.run_data.say_why_without(error)
            return None
