"""The patches of the prototypes as small JPEGs that travel with a model."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.explain.patches import Patch, PatchSource
from dapl.runs.records import PrototypeRecord

LARGEST = 160
"""Longer side in pixels; a patch that is smaller stays as it is."""
QUALITY = 88
MAX_BYTES = 1 << 20
"""An image of an export that is larger was not made by us."""
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class ExportedImage:
    """What a prototype was projected on, with some of its surroundings."""

    jpeg: bytes
    box: Box | None
    """Left, top, right, bottom of the prototype's region in it."""
    part: str | None = None
    """The annotated part that it shows."""


class CloseUp(Patch):
    """A patch that was cut out already."""

    def close_up(self) -> Patch:
        return self


class ExportedPatches:
    """Patches from the images of an export: a `dapl.explain.patches.PatchSource`."""

    def __init__(self, images: Mapping[int, ExportedImage]) -> None:
        self.images = images
        self.problem: str | None = None

    def patch(self, record: PrototypeRecord) -> Patch | None:
        image = self.images.get(record.index)
        if image is None:
            return None
        try:
            return CloseUp(decoded(image.jpeg, record.index), image.box)
        except DaplError as error:
            self.problem = self.problem or str(error)
            return None

    def part(self, record: PrototypeRecord, grid: tuple[int, int]) -> str | None:
        image = self.images.get(record.index)
        return None if image is None else image.part


def take_images(
    records: list[PrototypeRecord], patches: PatchSource, grid: tuple[int, int]
) -> dict[int, ExportedImage]:
    """Of every prototype whose source is at hand, by its index; ``grid`` is H and W of the feature grid."""
    found = {}
    for record in records:
        patch = patches.patch(record)
        if patch is not None:
            found[record.index] = _encoded(patch.close_up(), patches.part(record, grid))
    return found


def _encoded(patch: Patch, part: str | None) -> ExportedImage:
    image = Image.fromarray(patch.image.permute(1, 2, 0).contiguous().numpy())
    box, longer = patch.box, max(image.size)
    if longer > LARGEST:
        scale = LARGEST / longer
        image = image.resize(
            (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.LANCZOS
        )
        if box is not None:
            left, top, right, bottom = (round(side * scale) for side in box)
            box = (left, top, right, bottom)
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=QUALITY, subsampling=0, optimize=True)
    return ExportedImage(stream.getvalue(), box, part)


def decoded(jpeg: bytes, prototype: int) -> Tensor:
    """uint8 3×h×w. Nothing but a JPEG of a sane size is tried."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
            if max(image.size) > 4 * LARGEST:
                raise DaplError(f"the image of prototype {prototype} is too large; export the run anew.")
            pixels = np.array(image.convert("RGB"))
    except DaplError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken data
        raise DaplError(f"the image of prototype {prototype} is no JPEG ({error}); export the run anew.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
