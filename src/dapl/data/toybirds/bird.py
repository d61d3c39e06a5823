"""A bird, painted part after part from back to front: the shapes and patterns that its species names, in a pose.

In its own coordinates it styles right, its body is about one unit long, y points down and the perch is at `Pose.feet`.
The outlines of a part are in the coordinates of the part's own frame.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dapl.data.toybirds.drawing import (
    RGB,
    Canvas,
    Frame,
    Points,
    darker,
    ellipse,
    jitter,
    leaf,
    lighter,
    outline,
    smooth,
    stroke,
)
from dapl.data.toybirds.species import PARTS, PartStyle, Species

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
_BAR = outline("-0.05,-0.26 0.05,-0.1 0.06,0.05 0,0.26")
_FEATHER_EDGE = outline("-0.02,-0.05 0.04,0 -0.02,0.05")
_MARKS = {  # half width and half height of one mark, in steps of the grid they stand on
    "spots": (0.3, 0.24),
    "speckled": (0.2, 0.2),
    "streaks": (0.16, 0.42),
    "streaked": (0.5, 0.12),
}
_SCALE = outline("-0.5,-0.1 -0.3,0.25 0,0.4 0.3,0.25 0.5,-0.1")


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


def crest_outlines(style: PartStyle) -> Iterator[Layer]:
    """What rises above the head, behind it; in units of the head's radius."""
    if style.form == "pointed":
        crest = smooth([(0.7, -0.5), (0.2, -1.2), (-0.62, -1.8), (-0.62, -1.2), (-0.85, -0.5), (0, -0.3)])
        yield [leaf((0.0, -0.6), (-1.02, -1.42), 0.4), crest], style.colour
    elif style.form == "swept":
        yield [leaf((0.2, -0.7), (-1.75, -1.15), 0.3), leaf((0.3, -0.6), (-1.6, -0.75), 0.3)], style.colour
    elif style.form == "tuft":
        yield [leaf((-0.1, -0.7), tip, 0.32) for tip in ((-0.75, -1.45), (-0.35, -1.62), (0.02, -1.6))], style.colour
    elif style.form == "fan":
        tips = [(-1.35, -1.1), (-1.05, -1.55), (-0.6, -1.85), (-0.1, -1.95), (0.35, -1.75)]
        yield [leaf((-0.1, -0.5), tip, 0.34) for tip in tips], style.colour
        yield [ellipse((0.93 * x, 0.93 * y), (0.13, 0.13), points=10) for x, y in tips], style.accent


def tail_feathers(style: PartStyle) -> Iterator[Layer]:
    """From the rump at the origin along +x; the middle feathers lie on top."""
    length, spread, width, change = _TAILS[style.form]
    offsets = np.linspace(-1, 1, _TAIL_FEATHERS)
    for number in np.argsort(-np.abs(offsets), kind="stable"):
        offset = float(offsets[number])
        turn, reach = offset * spread / 2, length * (1 + change * abs(offset))
        path = np.linspace((-0.1, 0.07 * offset), (reach * np.cos(turn), reach * np.sin(turn)), 6)
        yield [stroke(path, np.array([0.6, 0.8, 0.95, 1.0, 0.95, 0.35]) * width)], lighter(style.colour, 0.16)
        vane = stroke(path[:-1], np.array([0.4, 0.6, 0.75, 0.8, 0.75]) * width)
        yield [vane], darker(style.colour, 0.2 if number % 2 else 0.06)
        for start, end in _FEATHER_MARKS.get(style.form, []):
            ends = path[0] + np.outer((start, end), path[-1] - path[0])
            yield [stroke(ends, (width, 0.5 * width if end == 1.0 else width))], style.accent


def wing_marks(style: PartStyle, breadth: float) -> list[Points]:
    """Outlines for the style's accent, in the wing's frame: the shoulder at the origin, x towards the tip."""
    if style.form in _WING_BARS:
        width, distances = _WING_BARS[style.form]
        return [stroke(np.add(_BAR, (distance, 0)) * (1, breadth), width) for distance in distances]
    if style.form == "patch":
        return [ellipse((0.24, 0.02), (0.16, 0.1 * breadth))]
    if style.form == "dots":
        places = [(0.1 + 0.11 * i, breadth * (-0.1 + 0.075 * j + 0.03 * (i % 2))) for i in range(4) for j in range(4)]
        return [ellipse(place, (0.02, 0.02), points=8) for place in places]
    if style.form == "edged":
        places = [(x, y) for x in (0.14, 0.27, 0.4) for y in (-0.1, 0.0, 0.1)]
        return [stroke(np.add(_FEATHER_EDGE, place) * (1, breadth), 0.022) for place in places]
    return []


def pattern(
    style: PartStyle, centre: tuple[float, float], reach: tuple[float, float], rng: np.random.Generator
) -> list[Points]:
    """Outlines for the style's accent over the box ``centre`` ± ``reach``; their grain follows the size of the box."""
    (x, y), (rx, ry) = centre, reach
    step = 0.36 * min(reach)
    if style.form == "bars":
        return [_wave((x, level), rx, step, rng) for level in np.arange(y - ry, y + ry, step)]
    if style.form == "band":
        return [stroke([(x - rx, y - 0.2), (x, y + 0.06), (x + rx, y - 0.02)], 0.11)]
    if style.form == "collar":
        return [stroke([(x - rx, y + 0.12), (x, y + 0.36), (x + rx, y + 0.1)], 0.24)]
    if style.form == "scales":
        return [stroke(place + step * _SCALE, 0.16 * step) for place in _staggered(centre, reach, step, rng)]
    if style.form in _MARKS:
        width, height = _MARKS[style.form]
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


NUMBER = {part: number for number, part in enumerate(PARTS, start=1)}
"""Part numbers on the canvas."""

_FEET = (0.03, 0.66)
_HEAD, _HEAD_RADIUS = (0.36, -0.42), 0.265
_WING_LENGTH = 1.02
_RUMP = (-0.46, 0.15)
_BODY = outline(
    "0.53,-0.28 0.56,-0.04 0.44,0.22 0.16,0.4 -0.2,0.38 -0.46,0.26 -0.52,0.13 -0.38,-0.06 -0.16,-0.24 0.06,-0.4 "
    "0.22,-0.56"
)
_SKULL = outline("1,0.08 0.88,-0.46 0.36,-0.92 -0.34,-0.94 -0.9,-0.45 -1,0.3 -0.62,0.86 0.2,0.98 0.82,0.62")
_COVERTS = outline("-0.03,0 0.04,-0.14 0.22,-0.18 0.48,-0.12 0.55,0 0.4,0.14 0.2,0.2 0.03,0.13")
_TOES = ((0.13, 0.025), (0.09, 0.05), (-0.09, 0.03))
_BODY_REGIONS = {
    "breast": outline("0.95,-0.6 0.2,-0.42 0.14,-0.1 0.1,0.14 0.28,0.26 0.6,0.34 0.95,0.2"),
    "belly": outline("-0.75,0.32 -0.3,0.22 0.1,0.12 0.32,0.18 0.7,0.16 0.8,0.6 0,0.7 -0.7,0.6"),
}
_HEAD_REGIONS = {  # in head radii
    "nape": outline("-0.3,-0.5 -0.42,0.2 -0.3,0.9 -0.5,1.55 -1.6,1.35 -1.6,-0.4 -0.9,-0.9"),
    "throat": outline("1.3,0.3 0.62,0.34 0.12,0.6 0.1,0.92 0.5,1.16 1.1,1.05 1.5,0.6"),
    "crown": outline("1.3,-0.3 0.7,-0.4 0.1,-0.42 -0.5,-0.3 -0.9,-0.1 -1.5,-0.4 -0.6,-1.5 1,-1.5"),
}
_FACE_MARKS = {
    "mask": ellipse((0.86, 0.08), (0.5, 0.42)),
    "line": smooth([(1.1, -0.02), (0.4, -0.3), (-0.7, -0.12), (-0.8, 0.12), (0.3, 0.14)]),
    "whisker": stroke([(0.86, 0.3), (0.4, 0.5), (-0.1, 0.78)], [0.1, 0.2, 0.24]),
    "cheek": ellipse((-0.14, 0.26), (0.32, 0.22), 0.2),
    "brow": smooth([(0.95, -0.26), (0.4, -0.46), (-0.5, -0.32), (-0.8, -0.05), (0.3, -0.22)]),
}
_EYE, _PUPIL, _DARK_IRIS, _GLINT = (0.4, -0.1), (16, 14, 18), (47, 34, 31), (246, 244, 238)


@dataclass(frozen=True)
class _Wing:
    """How a wing is held. The pairs run from the outermost feather to the innermost."""

    shoulder: tuple[float, float]
    lift: float
    breadth: float
    roots: tuple[float, float]
    turns: tuple[float, float]
    reach: tuple[float, float]
    feather: float


_FOLDED = _Wing((0.25, -0.07), -0.4, 1.0, (0.14, 0.14), (0.02, 0.32), (0.87, 0.42), 0.15)
_RAISED = _Wing((0.14, -0.08), 0.85, 1.15, (0.42, 0.06), (-0.1, 1.25), (0.72, 0.42), 0.17)


@dataclass(frozen=True)
class Pose:
    """How one bird holds itself; angles in radians."""

    root: Frame
    scale: float
    """Pixels per unit."""
    head_angle: float
    looks_back: bool
    tail_angle: float
    wing_angle: float
    wing_raised: bool
    leg_shift: float
    sits: bool
    """On its legs, so that they are hidden."""

    @property
    def feet(self) -> tuple[float, float]:
        """Where the perch is, in the coordinates of ``root``."""
        return (_FEET[0], 0.36) if self.sits else _FEET


def paint_bird(
    canvas: Canvas,
    species: Species,
    pose: Pose,
    rng: np.random.Generator,
    exchanged: Mapping[str, PartStyle] | None = None,
) -> None:
    """``exchanged``: parts that appear in another style than the species'; all others stay as they are."""
    painter = _BirdPainter(canvas, species, pose, rng, exchanged or {})
    if pose.wing_raised:
        painter.far_wing()
    painter.tail()
    if not pose.sits:
        painter.legs()
    painter.body()
    painter.head()
    painter.face()
    painter.wing()


class _BirdPainter:
    def __init__(
        self,
        canvas: Canvas,
        species: Species,
        pose: Pose,
        rng: np.random.Generator,
        exchanged: Mapping[str, PartStyle],
    ) -> None:
        self.canvas, self.species, self.pose, self.rng = canvas, species, pose, rng
        self.styles = {**species.styles, **exchanged}
        self.plumpness = species.plumpness
        self.root = pose.root
        self.head_radius = _HEAD_RADIUS * species.head_size
        facing = -self.head_radius if pose.looks_back else self.head_radius
        self.head_frame = self.root.child(_HEAD, pose.head_angle, (facing, self.head_radius))

    def fill(self, part: str, frame: Frame, outlines: list[Points], colour: RGB, within: tuple[str, ...] = ()) -> None:
        self.canvas.fill(frame, outlines, colour, NUMBER[part], [NUMBER[name] for name in within])

    def region(self, part: str, within: tuple[str, ...]) -> None:
        """What of the parts ``within`` belongs to this one, with a feathery edge."""
        on_head = part in _HEAD_REGIONS
        frame, unrest = (self.head_frame, 0.006 / self.head_radius) if on_head else (self.root, 0.006)
        corners = _HEAD_REGIONS[part] if on_head else _BODY_REGIONS[part]
        self.fill(part, frame, [jitter(smooth(corners), self.rng, unrest)], self.styles[part].colour, within)

    def pattern(self, part: str, frame: Frame, centre: tuple[float, float], reach: tuple[float, float]) -> None:
        """The part's pattern over the box ``centre`` ± ``reach`` of ``frame``, kept inside the part."""
        style, own, rng = self.styles[part], self.species.styles[part], self.rng
        if style != own:  # the own pattern takes its random numbers all the same, or all that follows would be another
            rng = copy.deepcopy(self.rng)
            pattern(own, centre, reach, self.rng)
        self.fill(part, frame, pattern(style, centre, reach, rng), style.accent, within=(part,))

    def tail(self) -> None:
        frame = self.root.child(_RUMP, np.pi - 0.42 + self.pose.tail_angle, (1.0, -1.0))
        for outlines, colour in tail_feathers(self.styles["tail"]):
            self.fill("tail", frame, outlines, colour)

    def legs(self) -> None:
        colour = self.styles["legs"].colour
        for side, shade in ((-1, darker(colour, 0.3)), (1, colour)):
            shift = side * (0.085 + self.pose.leg_shift)
            x, y = _FEET[0] + shift, _FEET[1]
            shank = stroke([(shift * 0.7, 0.34), (x - 0.05, 0.52), (x, y)], [0.075, 0.046, 0.04])
            toes = [stroke([(x, y), (x + dx, y + dy)], [0.042, 0.026]) for dx, dy in _TOES]
            self.fill("legs", self.root, [shank, *toes], shade)

    def body(self) -> None:
        middle = (0.0, 0.05)
        plump = np.subtract(_BODY, middle) * (0.5 + self.plumpness / 2, self.plumpness) + middle
        self.fill("back", self.root, [smooth(jitter(plump, self.rng, 0.009))], self.styles["back"].colour)
        self.pattern("back", self.root, (-0.15, -0.1), (0.5, 0.4))
        self.region("breast", within=("back",))
        self.pattern("breast", self.root, (0.38, 0.0), (0.28, 0.34))
        self.region("belly", within=("back", "breast"))
        self.pattern("belly", self.root, (0.05, 0.28), (0.55, 0.22))

    def head(self) -> None:
        for outlines, colour in crest_outlines(self.styles["crown"]):
            self.fill("crown", self.head_frame, outlines, colour)
        self.fill("face", self.head_frame, [smooth(jitter(_SKULL, self.rng, 0.02))], self.styles["face"].colour)
        self.region("nape", within=("face", "back", "breast"))
        self.region("throat", within=("face", "back", "breast", "nape"))
        self.pattern("throat", self.head_frame, (0.65, 0.8), (0.65, 0.5))
        self.region("crown", within=("face", "nape"))
        self.pattern("crown", self.head_frame, (0.0, -0.7), (0.9, 0.4))

    def face(self) -> None:
        style, frame = self.styles["face"], self.head_frame
        if style.form in _FACE_MARKS:
            self.fill("face", frame, [_FACE_MARKS[style.form]], style.accent, within=("face",))
        beak = self.styles["beak"]
        upper, lower = beak_outlines(beak.form)
        self.fill("beak", frame, [lower], darker(beak.colour, 0.32))
        self.fill("beak", frame, [upper], beak.colour)
        eye = self.styles["eye"]
        if eye.form == "ring":
            self.fill("eye", frame, [ellipse(_EYE, (0.29, 0.29))], eye.colour)
        self.fill("eye", frame, [ellipse(_EYE, (0.205, 0.205))], eye.colour if eye.form == "iris" else _DARK_IRIS)
        self.fill("eye", frame, [ellipse(_EYE, (0.13, 0.13))], _PUPIL)
        self.fill("eye", frame, [ellipse(np.add(_EYE, (0.07, -0.07)), (0.06, 0.06), points=8)], _GLINT)

    def far_wing(self) -> None:
        frame = self.root.child((0.2, -0.2), np.pi + 1.2 + self.pose.wing_angle, (_WING_LENGTH, -_WING_LENGTH))
        self.flight_feathers(frame, _RAISED, darker(self.styles["wing"].colour, 0.42))

    def wing(self) -> None:
        style, held = self.styles["wing"], _RAISED if self.pose.wing_raised else _FOLDED
        angle = np.pi + held.lift + self.pose.wing_angle
        frame = self.root.child(held.shoulder, angle, (_WING_LENGTH, -_WING_LENGTH))
        self.flight_feathers(frame, held, darker(style.colour, 0.3))
        self.fill("wing", frame, [jitter(smooth(_COVERTS * (1, held.breadth)), self.rng, 0.004)], style.colour)
        self.fill("wing", frame, wing_marks(style, held.breadth), style.accent, within=("wing",))

    def flight_feathers(self, frame: Frame, held: _Wing, colour: RGB) -> None:
        """Seven long feathers, the innermost on top; each with a paler edge so that one can count them."""
        shares = np.linspace(0, 1, 7)
        xs, turns, reaches = (np.interp(shares, (0, 1), pair) for pair in (held.roots, held.turns, held.reach))
        for share, x, turn, reach in zip(shares, xs, turns, reaches, strict=True):
            root = np.array([x, 0.1 * share - 0.03])
            path = root + np.outer(np.linspace(0, reach, 5), (np.cos(turn), np.sin(turn)))
            outline = stroke(path, np.array([0.6, 0.9, 1.0, 0.9, 0.15]) * held.feather)
            self.fill("wing", frame, [outline], lighter(colour, 0.22))
            self.fill("wing", frame, [outline - (0.012, 0.014)], colour, within=("wing",))
