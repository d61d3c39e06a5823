"""Many small pictures as two files a class: a sheet of photographs and a sheet of heat maps to lay over them.

A file for each would be thousands; and heat maps laid over a photograph share it with all prototypes of the class.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from dapl.explain.draw import HEAT, palette

_COLUMNS = 8
_GUARD = 1
"""Cells around a heat map that repeat its edge, so that a browser that smooths does not mix in the neighbour."""
_LEVELS = 48
"""Shades of a heat map: nobody sees more, and a third of the bytes is saved."""
_QUALITY = 80


def tile_side(prototypes: int) -> int:
    """Pixels a side of a photograph: the more there are, the smaller. Multiples of 16, JPEG's blocks, so that tiles
    do not run into each other."""
    return 176 if prototypes <= 400 else 160 if prototypes <= 2400 else 96


def photo_sheet(images: Sequence[Tensor]) -> tuple[bytes, dict[str, Any]]:
    """uint8 3×T×T each → JPEG, and where its tiles are."""
    sheet = _Sheet(len(images), images[0].shape[-1], 0)
    canvas = np.zeros((sheet.height, sheet.width, 3), np.uint8)
    for number, image in enumerate(images):
        canvas[sheet.place(number)] = image.permute(1, 2, 0).numpy()
    stream = io.BytesIO()
    Image.fromarray(canvas).save(stream, "JPEG", quality=_QUALITY, optimize=True)
    return stream.getvalue(), sheet.layout()


def heat_sheet(heats: Sequence[Tensor]) -> tuple[bytes, dict[str, Any]]:
    """uint8 h×h each → PNG to lay over photographs, and where its tiles are."""
    sheet = _Sheet(len(heats), heats[0].shape[-1], _GUARD)
    canvas = np.zeros((sheet.height, sheet.width), np.uint8)
    for number, heat in enumerate(heats):
        canvas[sheet.place(number)] = np.pad(heat.numpy(), _GUARD, mode="edge")
    shades = np.rint(np.linspace(0, 255, _LEVELS)).astype(int)
    picture = Image.fromarray(np.rint(canvas * ((_LEVELS - 1) / 255)).astype(np.uint8), mode="P")
    colours = palette(HEAT)[shades]
    picture.putpalette(colours[:, :3].tobytes())
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True, transparency=colours[:, 3].tobytes())
    return stream.getvalue(), sheet.layout()


class _Sheet:
    """Tiles in rows."""

    def __init__(self, count: int, side: int, guard: int) -> None:
        self.side, self.guard, self.pitch = side, guard, side + 2 * guard
        self.columns = max(1, min(_COLUMNS, count))
        self.width, self.height = self.columns * self.pitch, -(-max(1, count) // self.columns) * self.pitch

    def place(self, number: int) -> tuple[slice, slice]:
        row, column = divmod(number, self.columns)
        return (slice(row * self.pitch, (row + 1) * self.pitch), slice(column * self.pitch, (column + 1) * self.pitch))

    def layout(self) -> dict[str, Any]:
        return {"columns": self.columns, "side": self.side, "guard": self.guard, "width": self.width,
                "height": self.height}  # fmt: skip
