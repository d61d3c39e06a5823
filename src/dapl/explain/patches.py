"""The training patch that a prototype is, and where it is had from: an export has its own images, a run its data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dapl.batches.pixels import base_rows, load_pixels, pixels_key
from dapl.common.errors import DaplError
from dapl.common.files import expand_path
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.sample import Splits
from dapl.data.transforms import fit
from dapl.runs.outlines import main_bounds, moved
from dapl.runs.schemas import PrototypeRecord

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels, the last two exclusive."""
_REMEMBERED = 256
"""Training images kept in memory: 40 MB of them at 224 pixels."""
_CONTEXT, _LEAST = 1.6, 0.45
"""What a close-up shows: this factor of the longer side of the box, and at least this share of the image."""


def close_up_of(box: Box | None, size: int) -> Box:
    """What a close-up shows of an image of size × size pixels: a square around a region and a little more.

    >>> close_up_of((0, 0, 10, 8), 100)
    (0, 0, 45, 45)
    >>> close_up_of(None, 100)
    (0, 0, 100, 100)
    """
    if box is None:
        return 0, 0, size, size
    left, top, right, bottom = box
    side = min(size, round(max(_CONTEXT * max(right - left, bottom - top), _LEAST * size)))
    x = min(max(0, (left + right - side) // 2), size - side)
    y = min(max(0, (top + bottom - side) // 2), size - side)
    return x, y, x + side, y + side


@dataclass(frozen=True)
class Patch:
    """The image that a prototype was projected on."""

    image: Tensor
    """uint8 3×h×w: the whole image as the model sees it, or a cut of it."""
    box: Box | None
    """Bounds of the prototype's region in it; None where the image is the patch, or where there is no region."""
    outline: str | None = None
    """Outline of the region in pixels of the image, as path data of SVG."""
    whole: bool = False
    """Whether the image is all that the model saw, so that a close-up shows more."""

    def cut(self) -> Patch:
        """What the box bounds, and no pixel more."""
        return self if self.box is None else self._cut(self.box)

    def close_up(self) -> Patch:
        """A square around the region, or the largest of its islands, with some of what is beside it."""
        if self.box is None or not self.whole:
            return self
        box = self.box if self.outline is None else main_bounds(self.outline)
        return self._cut(close_up_of(box, min(self.image.shape[-2:])))

    def _cut(self, view: Box) -> Patch:
        left, top, right, bottom = view
        outline = None if self.outline is None else moved(self.outline, left, top)
        return Patch(self.image[:, top:bottom, left:right], None, outline)


class PatchSource:
    """Where the patches of prototypes are had from; this one is for a model whose training images are not at hand."""

    problem: str | None = None
    """Why patches could not be had, for a person to read; None as long as nothing went wrong."""

    def __init__(self) -> None:
        self.shown: dict[int, Any] = {}
        """By prototype: patches as drawn on a page, kept by whoever makes pages."""

    def patch(self, record: PrototypeRecord) -> Patch | None:
        """None for a prototype that was not projected, or whose image is not at hand."""
        return None


class RunPatches(PatchSource):
    """From the training images of a run: those decoded already where the cache has them, else from their files.

    The data set is opened when the first patch is asked for. Where it is not at hand any more there are no patches, and
    ``problem`` says why: an explanation does without.
    """

    def __init__(self, config: Config, splits: Splits | None = None) -> None:
        """``splits``: the data of a run that was trained on data handed over in Python."""
        super().__init__()
        self.config, self._splits = config, splits
        self._remembered: dict[int, Tensor] = {}

    def patch(self, record: PrototypeRecord) -> Patch | None:
        source = self._source(record)
        if source is None:
            return None
        box = None if record.box is None else (record.box[0], record.box[1], record.box[2], record.box[3])
        return Patch(source, box, record.outline, whole=True)

    def _source(self, record: PrototypeRecord) -> Tensor | None:
        """The image; the last ones are remembered, for prototypes come again."""
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
            return _TrainingImages(self.config, self._splits)
        except DaplError as error:
            self.problem = f"without the training images of the prototypes: {error}"
            return None


class _TrainingImages:
    """All images that training and validation were taken from.

    The cache is only read: to decode all images for the sake of a few would take longer than those few.
    """

    def __init__(self, config: Config, splits: Splits | None) -> None:
        self.data = data = config.data
        self.dataset = dataset = base_rows((splits or build_splits(data)).train)[0]
        self.rows = {name: row for row, name in enumerate(dataset.names)}
        folder = expand_path(config.cache.folder, "cache.folder")
        key = pixels_key(dataset, data.image_size, data.fit)
        needed = ["images", "masks"] if dataset.has_masks else ["images"]
        decoded = all((folder / f"{key}-{kind}.npy").exists() for kind in needed)
        self._pixels = load_pixels(dataset, data.image_size, data.fit, folder) if decoded else None

    def read(self, row: int) -> Tensor:
        if self._pixels is not None:
            return torch.from_numpy(np.array(self._pixels.images[row]))
        return fit(self.dataset[row], self.data.image_size, self.data.fit).image.as_subclass(Tensor)
