"""Outlines and the frames they are placed in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    """Where a shape's own coordinates (x forward, y down) lie in the picture."""

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
