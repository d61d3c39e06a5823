"""Outlines, the frames they are placed in, and the canvas they are painted on.

The canvas is a map of paints: every sample holds one paint number, and a paint is a colour and the piece (a part of the
bird, or a thing around it) that it shows. Image and masks are both read off this one map, so they cannot disagree.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageChops, ImageDraw

RGB = tuple[int, int, int]
Points = NDArray[np.float64]
"""P×2, (x, y)."""

_STEPS = 6  # points a curve segment gets
_T = np.arange(_STEPS)[:, None] / _STEPS
_CATMULL_ROM = 0.5 * np.hstack(
    [-_T + 2 * _T**2 - _T**3, 2 - 5 * _T**2 + 3 * _T**3, _T + 4 * _T**2 - 3 * _T**3, -(_T**2) + _T**3]
)


@dataclass(frozen=True)
class Frame:
    """Where a shape's own coordinates (x forward, y down) lie in the image."""

    matrix: NDArray[np.float64]
    origin: NDArray[np.float64]

    def __call__(self, points: ArrayLike) -> Points:
        return np.asarray(points, np.float64) @ self.matrix.T + self.origin

    def child(self, origin: ArrayLike, angle: float = 0.0, scale: tuple[float, float] = (1.0, 1.0)) -> Frame:
        """A frame whose origin, turn (radians) and scale are given in this one's coordinates."""
        cos, sin = math.cos(angle), math.sin(angle)
        turn = np.array([[cos, -sin], [sin, cos]]) * np.asarray(scale)
        return Frame(self.matrix @ turn, self(origin))


def root_frame(origin: ArrayLike, angle: float, scale: float, flip: bool) -> Frame:
    """The frame of a whole bird: ``origin`` and ``scale`` in pixels; unflipped, it looks to the right."""
    still = Frame(np.eye(2), np.zeros(2))
    return still.child(origin, angle, (-scale if flip else scale, scale))


def outline(corners: str) -> Points:
    """Corners as SVG writes them: ``x,y x,y …``.

    >>> outline("0,1 -0.5,2").tolist()
    [[0.0, 1.0], [-0.5, 2.0]]
    """
    return np.array([corner.split(",") for corner in corners.split()], np.float64)


def smooth(corners: ArrayLike) -> Points:
    """The closed Catmull-Rom curve through ``corners``."""
    p = np.asarray(corners, np.float64)
    neighbours = np.stack([np.roll(p, 1, 0), p, np.roll(p, -1, 0), np.roll(p, -2, 0)], axis=1)
    return (_CATMULL_ROM @ neighbours).reshape(-1, 2)


def ellipse(centre: ArrayLike, radii: tuple[float, float], angle: float = 0.0, points: int = 16) -> Points:
    cos, sin = math.cos(angle), math.sin(angle)
    rx, ry = radii
    return _circle(points) @ np.array([[rx * cos, rx * sin], [-ry * sin, ry * cos]]) + centre


@lru_cache
def _circle(points: int) -> Points:
    turns = np.linspace(0, 2 * np.pi, points, endpoint=False)
    return np.stack([np.cos(turns), np.sin(turns)], axis=1)


def stroke(path: ArrayLike, widths: ArrayLike) -> Points:
    """The outline of a line along ``path`` whose width at each of its points (or everywhere) is ``widths``."""
    p = np.asarray(path, np.float64)
    along = np.empty_like(p)
    along[1:-1] = p[2:] - p[:-2]
    along[0], along[-1] = p[1] - p[0], p[-1] - p[-2]
    half = np.asarray(widths) / 2 / np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-9)
    side = along[:, ::-1] * half[:, None] * (-1, 1)
    return np.concatenate([p + side, (p - side)[::-1]])


def leaf(base: ArrayLike, tip: ArrayLike, width: float) -> Points:
    """A pointed leaf; ``width`` is a share of its length."""
    start, end = np.asarray(base, np.float64), np.asarray(tip, np.float64)
    along = end - start
    side = np.array([-along[1], along[0]]) * width / 2
    ts = np.array([0.0, 0.15, 0.4, 0.7, 1.0, 0.7, 0.4, 0.15])
    bulge = np.array([0.0, 0.62, 1.0, 0.66, 0.0, -0.66, -1.0, -0.62])
    return start + ts[:, None] * along + bulge[:, None] * side


def blade(x: float, y: float, bend: float, tall: float, width: float) -> Points:
    """A blade of grass that grows up from (x, y)."""
    return stroke([(x, y), (x + bend * 0.4, y - tall * 0.6), (x + bend, y - tall)], [width, 0.7 * width, 0.1 * width])


def jitter(points: ArrayLike, rng: np.random.Generator, amount: float) -> Points:
    p = np.asarray(points, np.float64)
    return p + rng.normal(0.0, amount, p.shape)


@lru_cache(maxsize=4096)
def mix(first: RGB, second: RGB, share: float) -> RGB:
    """``share`` of the second colour, the rest of the first."""
    r, g, b = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return r, g, b


def darker(colour: RGB, share: float) -> RGB:
    return mix(colour, (18, 14, 20), share)


def lighter(colour: RGB, share: float) -> RGB:
    return mix(colour, (255, 252, 240), share)


def pick(rng: np.random.Generator, colours: Sequence[RGB]) -> RGB:
    return colours[int(rng.integers(len(colours)))]


OVERSAMPLING = 3  # odd, so that each pixel has a sample at its centre
SCENERY = 0  # the number of all that is no piece of its own
_MOST_PAINTS = 256


@dataclass(frozen=True)
class _Layer:
    """What one call of `Canvas.fill` painted: polygons, or the samples ``where`` inside a box."""

    piece: int
    paint: int
    polygons: Sequence[Points] = ()
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    where: Image.Image | None = None

    def paint_on(self, samples: Image.Image) -> None:
        if self.where is not None:
            samples.paste(self.paint, self.box, self.where)
            return
        draw = ImageDraw.Draw(samples)
        for polygon in self.polygons:
            draw.polygon(polygon.ravel().tolist(), fill=self.paint)


class Canvas:
    """Polygons painted one over the other, at `OVERSAMPLING` times the size of the finished image."""

    def __init__(self, height: int, width: int) -> None:
        self._map = Image.new("L", (width * OVERSAMPLING, height * OVERSAMPLING))
        self._layers: list[_Layer] = []
        self._paints: dict[tuple[RGB, int], int] = {((0, 0, 0), SCENERY): 0}  # paint 0: nothing painted yet
        self._piece = SCENERY

    def of_piece(self, piece: int) -> Canvas:
        """The same canvas, on which all that is painted without the name of a piece is this one."""
        view = copy.copy(self)
        view._piece = piece
        return view

    def without(self, pieces: Collection[int]) -> Canvas:
        """A canvas on which these pieces were never painted: what lies behind them shows, all else is as it is here.

        Paint that was to stay within another piece (`fill`) lies where it lies here, also if that piece is left out.
        """
        bare = copy.copy(self)
        bare._map = Image.new("L", self._map.size)
        bare._layers = [layer for layer in self._layers if layer.piece not in pieces]
        for layer in bare._layers:
            layer.paint_on(bare._map)
        return bare

    def fill(
        self,
        frame: Frame,
        outlines: Sequence[Points],
        colour: RGB,
        part: int | None = None,
        within: Sequence[int] = (),
    ) -> None:
        """Fill closed outlines given in ``frame``; with ``within``, only where one of these parts is what shows now."""
        piece = self._piece if part is None else part
        paint = self._paint(colour, piece)
        to_samples = Frame(frame.matrix * OVERSAMPLING, frame.origin * OVERSAMPLING)
        polygons = [to_samples(outline) for outline in outlines]
        layer = self._within(polygons, piece, paint, within) if within else _Layer(piece, paint, polygons)
        if polygons and layer is not None:
            layer.paint_on(self._map)
            self._layers.append(layer)

    def _paint(self, colour: RGB, part: int) -> int:
        key = (colour, part)
        if key not in self._paints:
            if len(self._paints) == _MOST_PAINTS:
                raise ValueError(f"a canvas holds at most {_MOST_PAINTS} paints")
            self._paints[key] = len(self._paints)
        return self._paints[key]

    def _within(self, polygons: Sequence[Points], piece: int, paint: int, within: Sequence[int]) -> _Layer | None:
        if not polygons:
            return None
        corners = np.concatenate(polygons)
        left, top = (int(side) for side in np.maximum(np.floor(corners.min(axis=0)), 0))
        right, bottom = (int(side) for side in np.minimum(np.ceil(corners.max(axis=0)) + 1, self._map.size))
        if left >= right or top >= bottom:
            return None
        box, stencil = (left, top, right, bottom), Image.new("L", (right - left, bottom - top))
        draw = ImageDraw.Draw(stencil)
        for polygon in polygons:
            draw.polygon((polygon - (left, top)).ravel().tolist(), fill=255)
        allowed = [255 * (part in within) for _, part in self._paints]
        allowed += [0] * (_MOST_PAINTS - len(allowed))
        showing = self._map.crop(box).point(allowed)
        return _Layer(piece, paint, box=box, where=ImageChops.darker(stencil, showing))

    def colours(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """H×W×3 colour in [0, 255], already multiplied by the H×W×1 coverage in [0, 1] that comes with it."""
        indexed = self._map.copy()
        indexed.putpalette([level for colour, _ in self._paints for level in colour])
        image = indexed.convert("RGB").reduce(OVERSAMPLING)
        coverage = self._map.point([0] + [255] * (_MOST_PAINTS - 1)).reduce(OVERSAMPLING)
        return np.asarray(image, np.float32), np.asarray(coverage, np.float32)[..., None] / np.float32(255)

    def differs(self, other: Canvas) -> NDArray[np.bool_]:
        """H×W: the pixels of which some sample shows another colour or another piece than on ``other``."""
        return _any_sample(self._shown() != other._shown())

    def shows(self, pieces: Collection[int]) -> NDArray[np.bool_]:
        """H×W: the pixels of which some sample shows one of these pieces."""
        wanted = np.array([piece in pieces for _, piece in self._paints])
        return _any_sample(wanted[np.asarray(self._map)])

    def _shown(self) -> NDArray[np.uint32]:
        """Colour and piece of every sample, as one number."""
        codes = [(red << 24) + (green << 16) + (blue << 8) + piece for (red, green, blue), piece in self._paints]
        return np.array(codes, np.uint32)[np.asarray(self._map)]

    def parts(self) -> NDArray[np.uint8]:
        """H×W, the number of the piece seen at the centre of each pixel, `SCENERY` where there is none."""
        centre = OVERSAMPLING // 2
        part_of_paint = np.array([part for _, part in self._paints], np.uint8)
        return part_of_paint[np.asarray(self._map)[centre::OVERSAMPLING, centre::OVERSAMPLING]]


def _any_sample(samples: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels that have any such sample."""
    height, width = (side // OVERSAMPLING for side in samples.shape)
    return np.logical_or.reduce(samples.reshape(height, OVERSAMPLING, width, OVERSAMPLING), axis=(1, 3))
