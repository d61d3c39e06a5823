"""The shapes and patterns that looks.py names. All outlines are in the coordinates of the part's own frame."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dapl.data.toybirds.looks import Look
from dapl.data.toybirds.shapes import RGB, Points, darker, ellipse, leaf, lighter, smooth, stroke

Layer = tuple[list[Points], RGB]
"""Outlines that are filled with one colour."""

_BEAKS = {  # length, depth at the base, how far the tip hangs down
    "cone": (0.72, 0.3, 0.06),
    "stub": (0.5, 0.22, 0.02),
    "thin": (0.72, 0.13, 0.0),
    "dagger": (0.95, 0.19, 0.0),
    "spear": (1.55, 0.2, -0.02),
    "hook": (0.6, 0.3, 0.34),
    "sickle": (1.45, 0.14, 0.5),
}
_TAILS = {  # length, angle between the outer feathers, width of a feather, change of length from middle to edge
    "long": (0.95, 0.16, 0.12, 0.0),
    "banded": (0.8, 0.26, 0.13, 0.0),
    "fork": (0.45, 0.34, 0.1, 0.6),
    "square": (0.6, 0.2, 0.13, 0.0),
    "short": (0.36, 0.26, 0.12, 0.0),
    "tipped": (0.66, 0.26, 0.13, 0.0),
    "wedge": (0.92, 0.26, 0.12, -0.45),
    "fan": (0.62, 0.62, 0.15, -0.1),
}
_TAIL_FEATHERS = 6
_FEATHER_MARKS = {  # where the accent lies, in shares of a feather's length
    "tipped": [(0.84, 1.0)],
    "banded": [(0.52, 0.6), (0.7, 0.78), (0.9, 1.0)],
    "fan": [(0.8, 0.92)],
    "wedge": [(0.7, 1.0)],
}
_WING_BARS = {  # width, places along the wing
    "bar": (0.09, [0.46]),
    "bars": (0.055, [0.26, 0.46]),
    "ladder": (0.05, [0.14, 0.28, 0.42, 0.56, 0.7]),
}
_BAR = np.array([(-0.05, -0.26), (0.05, -0.1), (0.06, 0.05), (0.0, 0.26)])
_FEATHER_EDGE = np.array([(-0.02, -0.05), (0.04, 0.0), (-0.02, 0.05)])
_MARKS = {  # half width and half height of one mark, in steps of the grid they stand on
    "spots": (0.3, 0.24),
    "speckled": (0.2, 0.2),
    "streaks": (0.16, 0.42),
    "streaked": (0.5, 0.12),
}
_SCALE = np.array([(-0.5, -0.1), (-0.3, 0.25), (0.0, 0.4), (0.3, 0.25), (0.5, -0.1)])


def beak_outlines(form: str) -> tuple[Points, Points]:
    """Upper and lower mandible, in units of the head's radius, the head's centre at the origin."""
    length, depth, droop = _BEAKS[form]
    base, middle, y = 0.8, 0.8 + 0.55 * length, 0.12
    tip = (base + length, y + droop)
    bend = y + droop * (0.1 if form == "hook" else 0.3)
    upper = [(base - 0.05, y - depth), (middle, bend - 0.66 * depth), tip, (middle, bend + 0.05), (base, y + 0.05)]
    end = (base + 0.56 * length, y + 0.18) if form == "hook" else (tip[0] - 0.06, tip[1])
    lower = [(base, y - 0.02), (middle, bend), end, (middle - 0.1, bend + 0.5 * depth), (base, y + 0.75 * depth)]
    return smooth(upper), smooth(lower)


def crest_outlines(look: Look) -> Iterator[Layer]:
    """What rises above the head, behind it; in units of the head's radius."""
    if look.form == "pointed":
        crest = smooth([(0.7, -0.5), (0.2, -1.2), (-0.62, -1.8), (-0.62, -1.2), (-0.85, -0.5), (0, -0.3)])
        yield [leaf((0.0, -0.6), (-1.02, -1.42), 0.4), crest], look.colour
    elif look.form == "swept":
        yield [leaf((0.2, -0.7), (-1.75, -1.15), 0.3), leaf((0.3, -0.6), (-1.6, -0.75), 0.3)], look.colour
    elif look.form == "tuft":
        yield [leaf((-0.1, -0.7), tip, 0.32) for tip in ((-0.75, -1.45), (-0.35, -1.62), (0.02, -1.6))], look.colour
    elif look.form == "fan":
        tips = [(-1.35, -1.1), (-1.05, -1.55), (-0.6, -1.85), (-0.1, -1.95), (0.35, -1.75)]
        yield [leaf((-0.1, -0.5), tip, 0.34) for tip in tips], look.colour
        yield [ellipse((0.93 * x, 0.93 * y), (0.13, 0.13), points=10) for x, y in tips], look.accent


def tail_feathers(look: Look) -> Iterator[Layer]:
    """From the rump at the origin along +x; the middle feathers lie on top."""
    length, spread, width, change = _TAILS[look.form]
    offsets = np.linspace(-1, 1, _TAIL_FEATHERS)
    for number in np.argsort(-np.abs(offsets), kind="stable"):
        offset = float(offsets[number])
        turn, reach = offset * spread / 2, length * (1 + change * abs(offset))
        path = np.linspace((-0.1, 0.07 * offset), (reach * np.cos(turn), reach * np.sin(turn)), 6)
        yield [stroke(path, np.array([0.6, 0.8, 0.95, 1.0, 0.95, 0.35]) * width)], lighter(look.colour, 0.16)
        vane = stroke(path[:-1], np.array([0.4, 0.6, 0.75, 0.8, 0.75]) * width)
        yield [vane], darker(look.colour, 0.2 if number % 2 else 0.06)
        for start, end in _FEATHER_MARKS.get(look.form, []):
            ends = path[0] + np.outer((start, end), path[-1] - path[0])
            yield [stroke(ends, (width, 0.5 * width if end == 1.0 else width))], look.accent


def wing_marks(look: Look, breadth: float) -> list[Points]:
    """Outlines for the look's accent, in the wing's frame: the shoulder at the origin, x towards the tip."""
    if look.form in _WING_BARS:
        width, distances = _WING_BARS[look.form]
        return [stroke(np.add(_BAR, (distance, 0)) * (1, breadth), width) for distance in distances]
    if look.form == "patch":
        return [ellipse((0.24, 0.02), (0.16, 0.1 * breadth))]
    if look.form == "dots":
        places = [(0.1 + 0.11 * i, breadth * (-0.1 + 0.075 * j + 0.03 * (i % 2))) for i in range(4) for j in range(4)]
        return [ellipse(place, (0.02, 0.02), points=8) for place in places]
    if look.form == "edged":
        places = [(x, y) for x in (0.14, 0.27, 0.4) for y in (-0.1, 0.0, 0.1)]
        return [stroke(np.add(_FEATHER_EDGE, place) * (1, breadth), 0.022) for place in places]
    return []


def pattern(
    look: Look, centre: tuple[float, float], reach: tuple[float, float], rng: np.random.Generator
) -> list[Points]:
    """Outlines, for the look's accent, over the box ``centre`` ± ``reach``; their grain follows the size of the box."""
    (x, y), (rx, ry) = centre, reach
    step = 0.36 * min(reach)
    if look.form == "bars":
        return [_wave((x, level), rx, step, rng) for level in np.arange(y - ry, y + ry, step)]
    if look.form == "band":
        return [stroke([(x - rx, y - 0.2), (x, y + 0.06), (x + rx, y - 0.02)], 0.11)]
    if look.form == "collar":
        return [stroke([(x - rx, y + 0.12), (x, y + 0.36), (x + rx, y + 0.1)], 0.24)]
    if look.form == "scales":
        return [stroke(place + step * _SCALE, 0.16 * step) for place in _staggered(centre, reach, step, rng)]
    if look.form in _MARKS:
        width, height = _MARKS[look.form]
        size = (width * step, height * step)
        return [ellipse(place, size, points=8) for place in _staggered(centre, reach, step, rng)]
    return []


def _staggered(
    centre: tuple[float, float], reach: tuple[float, float], step: float, rng: np.random.Generator
) -> Points:
    """A grid with every second row shifted by half a step, and some unrest."""
    (x, y), (rx, ry) = centre, reach
    columns, rows = np.meshgrid(np.arange(x - rx, x + rx, step), np.arange(y - ry, y + ry, step))
    columns[1::2] += step / 2
    places = np.stack([columns.ravel(), rows.ravel()], axis=1)
    return places + rng.normal(0, 0.1 * step, places.shape)


def _wave(centre: tuple[float, float], reach: float, step: float, rng: np.random.Generator) -> Points:
    xs = np.linspace(-reach, reach, 9)
    ys = 0.12 * step * np.sin(np.arange(9) * 2.2 + rng.uniform(0, 6)) + 0.15 * xs
    return stroke(np.stack([xs, ys], axis=1) + centre, 0.34 * step)
