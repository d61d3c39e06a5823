"""A map of paints: every sample holds one paint number, and a paint is a colour and the part of the bird it shows.

Picture and part masks are both read off this one map, so they cannot disagree: what is painted over is gone from both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from dapl.data.toybirds.shapes import RGB, Frame, Points

OVERSAMPLING = 3  # odd, so that each pixel has a sample at its centre
SCENERY = 0  # the part number of all that is not bird
_MOST_PAINTS = 256


class Canvas:
    """Polygons painted one over the other, at `OVERSAMPLING` times the size of the finished picture."""

    def __init__(self, height: int, width: int) -> None:
        self._map = Image.new("L", (width * OVERSAMPLING, height * OVERSAMPLING))
        self._draw = ImageDraw.Draw(self._map)
        self._paints: dict[tuple[RGB, int], int] = {((0, 0, 0), SCENERY): 0}  # paint 0: nothing painted yet

    def fill(
        self,
        frame: Frame,
        outlines: Sequence[Points],
        colour: RGB,
        part: int = SCENERY,
        within: Sequence[int] = (),
    ) -> None:
        """Fill closed outlines given in ``frame``; with ``within``, only where one of these parts is what shows now."""
        paint = self._paint(colour, part)
        to_samples = Frame(frame.matrix * OVERSAMPLING, frame.origin * OVERSAMPLING)
        polygons = [to_samples(outline) for outline in outlines]
        if not within:
            for polygon in polygons:
                self._draw.polygon(polygon.ravel().tolist(), fill=paint)
        elif polygons:
            self._fill_within(polygons, paint, within)

    def _paint(self, colour: RGB, part: int) -> int:
        key = (colour, part)
        if key not in self._paints:
            if len(self._paints) == _MOST_PAINTS:
                raise ValueError(f"a canvas holds at most {_MOST_PAINTS} paints")
            self._paints[key] = len(self._paints)
        return self._paints[key]

    def _fill_within(self, polygons: Sequence[Points], paint: int, within: Sequence[int]) -> None:
        corners = np.concatenate(polygons)
        left, top = np.maximum(np.floor(corners.min(axis=0)).astype(int), 0)
        right, bottom = np.minimum(np.ceil(corners.max(axis=0)).astype(int) + 1, self._map.size)
        if left >= right or top >= bottom:
            return
        stencil = Image.new("L", (int(right - left), int(bottom - top)))
        draw = ImageDraw.Draw(stencil)
        for polygon in polygons:
            draw.polygon((polygon - (left, top)).ravel().tolist(), fill=255)
        allowed = [255 * (part in within) for _, part in self._paints]
        allowed += [0] * (_MOST_PAINTS - len(allowed))
        showing = self._map.crop((left, top, right, bottom)).point(allowed)
        self._map.paste(paint, (left, top, right, bottom), ImageChops.darker(stencil, showing))

    def colours(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """H×W×3 colour in [0, 255], already multiplied by the H×W×1 coverage in [0, 1] that comes with it."""
        indexed = self._map.copy()
        indexed.putpalette([level for colour, _ in self._paints for level in colour])
        picture = indexed.convert("RGB").reduce(OVERSAMPLING)
        coverage = self._map.point([0] + [255] * (_MOST_PAINTS - 1)).reduce(OVERSAMPLING)
        return np.asarray(picture, np.float32), np.asarray(coverage, np.float32)[..., None] / np.float32(255)

    def parts(self) -> NDArray[np.uint8]:
        """H×W, the number of the part seen at the centre of each pixel, `SCENERY` where it is not bird."""
        centre = OVERSAMPLING // 2
        part_of_paint = np.array([part for _, part in self._paints], np.uint8)
        return part_of_paint[np.asarray(self._map)[centre::OVERSAMPLING, centre::OVERSAMPLING]]
