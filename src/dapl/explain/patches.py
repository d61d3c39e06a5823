"""The training patch that a prototype is, and where it is had from: an export has its own images, a run its data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dapl.batches.cache import (
    AnnotationReader,
    Annotations,
    base_rows,
    load_pixels,
    open_annotations,
    pixels_key,
    stacked,
)
from dapl.common.errors import DaplError
from dapl.common.files import expand_path
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.transforms import fit
from dapl.explain.parts import nearest_part
from dapl.runs.records import PrototypeRecord

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels, the last two exclusive."""
_REGION_SIDE = 0.05**0.5
"""Side of a square that holds the pixels above the 95th percentile, as a share of the image's."""
_REMEMBERED = 256
"""Training images kept in memory: 40 MB of them at 224 pixels."""
_CONTEXT, _LEAST = 1.6, 0.45
"""What a close-up shows: this factor of the longer side of the box, and at least this share of the image."""


@dataclass(frozen=True)
class Patch:
    """The image that a prototype was projected on."""

    image: Tensor
    """uint8 3×h×w: the whole image as the model sees it, or the patch alone."""
    box: Box | None
    """The prototype's region in it; None where the image is the patch, or where there is no region."""
    whole: bool = False
    """Whether the image is all that the model saw, so that a close-up shows more."""

    def cut(self) -> Patch:
        """The box alone."""
        if self.box is None:
            return self
        left, top, right, bottom = self.box
        return Patch(self.image[:, top:bottom, left:right], None)

    def close_up(self) -> Patch:
        """A square around the box with some of what is beside it, and the box in that."""
        if self.box is None or not self.whole:
            return self
        height, width = self.image.shape[-2:]
        left, top, right, bottom = self.box
        side = min(height, width, round(max(_CONTEXT * max(right - left, bottom - top), _LEAST * min(height, width))))
        x = min(max(0, (left + right - side) // 2), width - side)
        y = min(max(0, (top + bottom - side) // 2), height - side)
        cut = self.image[:, y : y + side, x : x + side]
        return Patch(cut, (max(0, left - x), max(0, top - y), min(side, right - x), min(side, bottom - y)))


class PatchSource:
    """Where the patches of prototypes are had from; this one is for a model whose training images are not at hand."""

    problem: str | None = None
    """Why patches could not be had, for a person to read; None as long as nothing went wrong."""

    def patch(self, record: PrototypeRecord) -> Patch | None:
        """None for a prototype that was not projected, or whose image is not at hand."""
        return None

    def part(self, record: PrototypeRecord, grid: tuple[int, int]) -> str | None:
        """The annotated part that the patch shows; None where none is known. ``grid``: H and W of the feature grid."""
        return None


class RunPatches(PatchSource):
    """From the training images of a run: those decoded already where the cache has them, else from their files.

    The data set is opened when the first patch is asked for. Where it is not at hand any more there are no patches, and
    ``problem`` says why: an explanation does without.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._remembered: dict[int, tuple[Tensor, Annotations]] = {}

    def patch(self, record: PrototypeRecord) -> Patch | None:
        source = self._source(record)
        if source is None:
            return None
        if record.box is None:  # its map is flat there
            return Patch(source[0], None, whole=True)
        left, top, right, bottom = record.box
        return Patch(source[0], (left, top, right, bottom), whole=True)

    def part(self, record: PrototypeRecord, grid: tuple[int, int]) -> str | None:
        """The part nearest to the patch, within a square as large as a region is: that itself takes a model pass."""
        source = self._source(record)
        if source is None or record.location is None or self._training is None:
            return None
        size = self.config.data.image_size
        y, x = ((cell + 0.5) * size / cells for cell, cells in zip(record.location, grid, strict=True))
        return nearest_part(source[1], (x, y), _REGION_SIDE * size / 2, self._training.dataset.parts)

    def _source(self, record: PrototypeRecord) -> tuple[Tensor, Annotations] | None:
        """Image and annotations; the last ones are remembered, for both are asked for and prototypes come again."""
        if record.image is None or self._training is None or record.image not in self._training.rows:
            return None
        row = self._training.rows[record.image]
        if row not in self._remembered:
            try:
                self._remembered[row] = self._training.read(row)
            except DaplError as error:
                self.problem = self.problem or str(error)
                return None
            if len(self._remembered) > _REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        return self._remembered[row]

    @cached_property
    def _training(self) -> _TrainingImages | None:
        try:
            return _TrainingImages(self.config)
        except DaplError as error:
            self.problem = f"without the training images of the prototypes: {error}"
            return None


class _TrainingImages:
    """All images that training and validation were taken from, with their annotations.

    The cache is only read: to decode all images for the sake of a few would take longer than those few.
    """

    def __init__(self, config: Config) -> None:
        self.data = data = config.data
        self.dataset = dataset = base_rows(build_splits(data).train)[0]
        self.rows = {name: row for row, name in enumerate(dataset.names)}
        folder = expand_path(config.cache.folder, "cache.folder")
        key = pixels_key(dataset, data.image_size, data.fit)
        needed = ["images", "masks"] if dataset.has_masks else ["images"]
        decoded = all((folder / f"{key}-{kind}.npy").exists() for kind in needed)
        self._pixels = load_pixels(dataset, data.image_size, data.fit, folder) if decoded else None
        self._annotations = open_annotations(folder, key, data.image_size)

    def read(self, row: int) -> tuple[Tensor, Annotations]:
        if self._pixels is not None and self._annotations is not None:
            return torch.from_numpy(np.array(self._pixels.images[row])), self._annotations.rows([row])
        sample = fit(self.dataset[row], self.data.image_size, self.data.fit)
        return sample.image.as_subclass(Tensor), stacked([self._reader.arrays(sample)], self.data.image_size)

    @cached_property
    def _reader(self) -> AnnotationReader:
        return AnnotationReader(self.dataset, self.data.image_size, self.data.fit)
