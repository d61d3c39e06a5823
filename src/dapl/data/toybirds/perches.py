"""What the bird stands on, and the sprig that now and then hides some of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dapl.data.toybirds.canvas import Canvas
from dapl.data.toybirds.scenes import Season
from dapl.data.toybirds.shapes import RGB, Frame, Points, blade, darker, ellipse, leaf, lighter, pick, stroke

Perch = Callable[[Canvas, Season, Frame, np.random.Generator], None]
"""Its frame has the bird's unit, the origin between the feet and x along the perch."""


def _branch(canvas: Canvas, season: Season, feet: Frame, rng: np.random.Generator) -> None:
    for x in rng.uniform(-2.2, 2.2, 4):
        _twig(canvas, season, feet, np.array([x, 0.08]), rng)
    sag = rng.normal(0, 0.025, 17)
    sag[7:10] = 0.0  # level under the feet
    middle = np.stack([np.linspace(-4, 4, 17), 0.08 + sag], axis=1)
    width = np.linspace(0.17, 0.13, 17)
    canvas.fill(feet, [stroke(middle, width)], darker(season.wood, 0.25))
    canvas.fill(feet, [stroke(middle - (0, 0.02), width * 0.74)], season.wood)
    canvas.fill(feet, [stroke(middle - (0, 0.045), width * 0.26)], lighter(season.wood, 0.25))
    knots = [ellipse((x, 0.09), (0.06, 0.018), points=8) for x in rng.uniform(-2.5, 2.5, 6)]
    canvas.fill(feet, knots, darker(season.wood, 0.4))


def _twig(canvas: Canvas, season: Season, feet: Frame, base: Points, rng: np.random.Generator) -> None:
    turn = rng.uniform(0.5, 1.2) + np.pi / 2 * rng.integers(4)
    tip = base + rng.uniform(0.4, 0.8) * np.array([np.cos(turn), np.sin(turn)])
    canvas.fill(feet, [stroke([base, tip], [0.05, 0.02])], darker(season.wood, 0.1))
    for share in (0.45, 0.7, 1.0):
        length, turn = rng.uniform((0.2, 0), (0.34, 2 * np.pi))
        _veined_leaf(canvas, feet, base + share * (tip - base), turn, length, pick(rng, season.leaves))


def _veined_leaf(canvas: Canvas, frame: Frame, base: Points, turn: float, length: float, colour: RGB) -> None:
    tip = base + length * np.array([np.cos(turn), np.sin(turn)])
    outline = leaf(base, tip, 0.55)
    canvas.fill(frame, [outline], colour)
    canvas.fill(frame, [outline[: len(outline) // 2 + 1]], darker(colour, 0.14))
    canvas.fill(frame, [stroke([base, tip], [0.016, 0.006])], lighter(colour, 0.3))


def _rock(canvas: Canvas, season: Season, feet: Frame, rng: np.random.Generator) -> None:
    left, right, front, corner = rng.normal((0.32, 0.26, 0.42, 0.34), 0.03)
    ledge = [(-0.95, left), (-0.4, -0.03), (0.4, -0.04), (0.9, right)]
    flank = [(-0.95, left), (-0.3, corner), (-0.5, 1.2), (-0.9, 3.5), (-2.0, 3.5), (-1.3, 0.9)]
    foot = [(1.4, 0.9), (2.0, 3.5), (-2.0, 3.5), (-1.3, 0.9)]
    canvas.fill(feet, [np.array([*ledge, *foot])], darker(season.stone, 0.22))
    canvas.fill(feet, [np.array([*ledge, (0.5, front), (-0.3, corner)])], lighter(season.stone, 0.16))
    canvas.fill(feet, [np.array(flank)], season.stone)
    specks = rng.uniform((-0.9, 0.3), (0.9, 1.2), (14, 2))
    canvas.fill(feet, [ellipse(place, (0.05, 0.03), points=8) for place in specks], darker(season.stone, 0.36))
    moss = rng.uniform((-0.8, 0.3), (0.8, 0.5), (5, 2))
    canvas.fill(feet, [ellipse(place, (0.12, 0.05), points=10) for place in moss], season.leaves[0])


def _post(canvas: Canvas, season: Season, feet: Frame, rng: np.random.Generator) -> None:
    half, wood = rng.uniform(0.28, 0.4), season.wood
    sides = np.array([(-1, 0.04), (1, 0.04), (1.1, 4), (-1.1, 4)]) * (half, 1)
    canvas.fill(feet, [sides], wood)
    shade = np.array([(0.3, 0.04), (1, 0.04), (1.1, 4), (0.4, 4)]) * (half, 1)
    canvas.fill(feet, [shade], darker(wood, 0.25))
    canvas.fill(feet, [ellipse((0, 0.04), (half, 0.09))], lighter(wood, 0.3))
    canvas.fill(feet, [ellipse((0, 0.04), (half * 0.6, 0.05))], lighter(wood, 0.16))
    grain = rng.uniform((-half, 0.2, 0.8), (half, 0.6, 2.0), (5, 3))
    canvas.fill(feet, [stroke([(x, top), (x, bottom)], 0.02) for x, top, bottom in grain], darker(wood, 0.4))


def _ground(canvas: Canvas, season: Season, feet: Frame, rng: np.random.Generator) -> None:
    surface = np.stack([np.linspace(-5, 5, 15), rng.normal(-0.03, 0.02, 15)], axis=1)
    canvas.fill(feet, [np.concatenate([surface, [(5, 5), (-5, 5)]])], season.ground[1])
    for colour in (season.ground[0], season.leaves[0], darker(season.ground[1], 0.2)):
        blades = rng.uniform((-3, 0.05, -0.14, 0.12), (3, 0.7, 0.14, 0.26), (36, 4))
        canvas.fill(feet, [blade(x, y, bend, tall, 0.04) for x, y, bend, tall in blades], colour)


PERCHES: tuple[Perch, ...] = (_branch, _branch, _rock, _post, _branch, _branch, _post, _ground)
"""One for each of scenes.KINDS."""


def paint_sprig(canvas: Canvas, season: Season, place: Frame, rng: np.random.Generator) -> None:
    """A leafy twig whose end lies over the origin of ``place`` (a frame of the bird's unit)."""
    turn = rng.uniform(0, 2 * np.pi)
    along = np.array([np.cos(turn), np.sin(turn)])
    canvas.fill(place, [stroke([-0.12 * along, 3 * along], [0.02, 0.07])], darker(season.wood, 0.15))
    for share, side in ((-0.1, 0.0), (0.12, 0.8), (0.2, -0.8), (0.5, 0.7), (0.6, -0.7), (0.95, 0.6), (1.05, -0.7)):
        length, colour = rng.uniform(0.3, 0.44), pick(rng, season.leaves)
        _veined_leaf(canvas, place, share * along, turn + np.pi + side, length, colour)
