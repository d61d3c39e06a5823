"""Eye-catching small things in focus behind the bird. A class may be tied to one; otherwise they are clutter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dapl.data.toybirds.canvas import Canvas
from dapl.data.toybirds.shapes import RGB, Frame, Points, ellipse, leaf, smooth, stroke

Emblem = Callable[[Canvas, Frame, np.random.Generator], None]
"""About one unit of its frame across, around the origin."""

_BARK, _STALK, _INK = (92, 72, 50), (80, 124, 60), (30, 24, 30)
_BELL = np.array([
    (-0.08, -0.2), (0.08, -0.2), (0.16, 0.05), (0.24, 0.18), (0.1, 0.13),
    (0, 0.22), (-0.1, 0.13), (-0.24, 0.18), (-0.16, 0.05),
])  # fmt: skip


def _stem(canvas: Canvas, at: Frame, start: tuple[float, float], way: int, colour: RGB) -> None:
    """Up (-1) or down (+1) and out of the picture, in a slight bend."""
    path = np.array([(0, 0), (0.12, 1.2), (0.1, 4), (1.0, 40)]) * (1, way) + start
    canvas.fill(at, [stroke(path, [0.06, 0.08, 0.09, 0.2])], colour)


def _petals(count: int, radius: float, size: tuple[float, float]) -> list[Points]:
    turns = np.linspace(0, 2 * np.pi, count, endpoint=False) + 3 * radius
    return [ellipse((radius * np.cos(turn), radius * np.sin(turn)), size, turn, 10) for turn in turns]


def _berries(canvas: Canvas, at: Frame, rng: np.random.Generator) -> None:
    centres = rng.normal(0, 0.28, (8, 2))
    _stem(canvas, at, (0, -0.9), -1, _BARK)
    canvas.fill(at, [stroke([(0, -0.9), centre], 0.05) for centre in centres], _BARK)
    for centre in centres:
        canvas.fill(at, [ellipse(centre, (0.17, 0.17))], (188, 24, 40))
        canvas.fill(at, [ellipse(centre - 0.05, (0.06, 0.06), points=8)], (246, 150, 140))


def _daisy(canvas: Canvas, at: Frame, rng: np.random.Generator) -> None:
    _stem(canvas, at, (0, 0), 1, _STALK)
    canvas.fill(at, _petals(10, 0.34, (0.24, 0.1)), (250, 248, 244))
    canvas.fill(at, [ellipse((0, 0), (0.17, 0.17))], (244, 190, 40))


def _marigold(canvas: Canvas, at: Frame, rng: np.random.Generator) -> None:
    _stem(canvas, at, (0, 0), 1, _STALK)
    for radius, colour in ((0.42, (226, 104, 24)), (0.28, (244, 140, 36)), (0.14, (252, 178, 60))):
        canvas.fill(at, [ellipse((0, 0), (radius, radius)), *_petals(11, radius, (0.14, 0.12))], colour)


def _butterfly(canvas: Canvas, at: Frame, rng: np.random.Generator) -> None:
    for side in (at, at.child((0, 0), scale=(-1, 1))):
        upper = smooth([(0, -0.05), (0.25, -0.5), (0.62, -0.52), (0.55, -0.1), (0.2, 0.05)])
        lower = smooth([(0, 0.0), (0.45, 0.08), (0.42, 0.42), (0.12, 0.4)])
        canvas.fill(side, [upper, lower], (36, 30, 44))
        canvas.fill(side, [upper * 0.72 + (0.09, -0.07)], (58, 110, 220))
        canvas.fill(side, [ellipse((0.26, 0.22), (0.12, 0.1))], (104, 170, 240))
    canvas.fill(at, [ellipse((0, 0.02), (0.05, 0.34))], _INK)


def _cone(canvas: Canvas, at: Frame, rng: np.random.Generator) -> None:
    _stem(canvas, at, (0, -0.5), -1, _BARK)
    canvas.fill(at, [ellipse((0, 0), (0.34, 0.56))], (92, 58, 36))
    for row in range(6):
        y, half = -0.42 + 0.17 * row, 0.32 * np.sqrt(1 - ((row - 2.5) / 3.4) ** 2)
        scales = [ellipse((x, y), (0.1, 0.07), points=10) for x in np.linspace(-half, half, 4)]
        canvas.fill(at, scales, (164, 112, 68) if row % 2 else (138, 90, 54))


def _bellflower(canvas: Canvas, at: Frame, rng: np.random.Generator) -> None:
    _stem(canvas, at, (0, -0.6), 1, _STALK)
    for place in ((-0.24, -0.2), (0.3, -0.1), (0.02, -0.6), (0.24, 0.45), (-0.36, 0.4)):
        bell = at.child(place)
        canvas.fill(bell, [_BELL], (122, 72, 190))
        canvas.fill(bell, [_BELL * (0.4, 0.8)], (164, 122, 224))


def _ladybird(canvas: Canvas, at: Frame, rng: np.random.Generator) -> None:
    _stem(canvas, at, (-0.88, 0.34), 1, _STALK)
    canvas.fill(at, [leaf((-0.9, 0.35), (0.9, 0.1), 0.6)], (96, 158, 66))
    canvas.fill(at, [stroke([(-0.9, 0.35), (0.9, 0.1)], 0.03)], (156, 200, 110))
    canvas.fill(at, [ellipse((0.3, -0.02), (0.13, 0.13))], _INK)
    canvas.fill(at, [ellipse((0, 0), (0.34, 0.27))], (220, 52, 30))
    spots = ((-0.15, -0.1), (0.1, -0.12), (-0.12, 0.12), (0.12, 0.1))
    canvas.fill(at, [ellipse(spot, (0.055, 0.055), points=10) for spot in spots], _INK)


EMBLEMS: tuple[Emblem, ...] = (_berries, _daisy, _butterfly, _marigold, _cone, _bellflower, _ladybird)
