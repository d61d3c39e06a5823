"""The patches of the prototypes as small JPEGs that travel with a model."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dapl.errors import DaplError
from dapl.explain.patches import Patch, PatchSource
from dapl.training.records import PrototypeRecord

LARGEST = 160
"""Longer side in pixels; a patch that is smaller stays as it is."""
QUALITY = 88
MAX_BYTES = 1 << 20
"""A picture of an export that is larger was not made by us."""
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Picture:
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
    """Patches from the pictures of an export: a `dapl.explain.patches.PatchSource`."""

    def __init__(self, pictures: Mapping[int, Picture]) -> None:
        self.pictures = pictures
        self.problem: str | None = None

    def patch(self, record: PrototypeRecord) -> Patch | None:
        picture = self.pictures.get(record.index)
        if picture is None:
            return None
        try:
            return CloseUp(decoded(picture.jpeg, record.index), picture.box)
        except DaplError as error:
            self.problem = self.problem or str(error)
            return None

    def part(self, record: PrototypeRecord, grid: tuple[int, int]) -> str | None:
        picture = self.pictures.get(record.index)
        return None if picture is None else picture.part


def take_pictures(records: list[PrototypeRecord], patches: PatchSource, grid: tuple[int, int]) -> dict[int, Picture]:
    """Of every prototype whose source is at hand, by its index; ``grid`` is H and W of the feature grid."""
    found = {}
    for record in records:
        patch = patches.patch(record)
        if patch is not None:
            found[record.index] = _encoded(patch.close_up(), patches.part(record, grid))
    return found


def _encoded(patch: Patch, part: str | None) -> Picture:
    picture = Image.fromarray(patch.image.permute(1, 2, 0).contiguous().numpy())
    box, longer = patch.box, max(picture.size)
    if longer > LARGEST:
        scale = LARGEST / longer
        picture = picture.resize(
            (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), Image.Resampling.LANCZOS
        )
        if box is not None:
            left, top, right, bottom = (round(side * scale) for side in box)
            box = (left, top, right, bottom)
    stream = io.BytesIO()
    picture.save(stream, format="JPEG", quality=QUALITY, subsampling=0, optimize=True)
    return Picture(stream.getvalue(), box, part)


def decoded(jpeg: bytes, prototype: int) -> Tensor:
    """uint8 3×h×w. Nothing but a JPEG of a sane size is tried."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as picture:
            if max(picture.size) > 4 * LARGEST:
                raise DaplError(f"the picture of prototype {prototype} is too large; export the run anew.")
            pixels = np.array(picture.convert("RGB"))
    except DaplError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken data
        raise DaplError(f"the picture of prototype {prototype} is no JPEG ({error}); export the run anew.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
