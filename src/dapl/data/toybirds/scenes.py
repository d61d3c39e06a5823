"""Where a bird is: a kind of place and a season, both out of focus, and an emblem in focus.

Emblems are eye-catching small things behind the bird. A class may be tied to one; otherwise they are clutter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from dapl.data.toybirds.drawing import (
    RGB,
    Canvas,
    Frame,
    Points,
    blade,
    darker,
    ellipse,
    leaf,
    lighter,
    mix,
    outline,
    pick,
    smooth,
    stroke,
)

Emblem = Callable[[Canvas, Frame, np.random.Generator], None]
"""About one unit of its frame across, around the origin."""

_BARK, _STALK, _INK = (92, 72, 50), (80, 124, 60), (30, 24, 30)
_BELL = outline("-0.08,-0.2 0.08,-0.2 0.16,0.05 0.24,0.18 0.1,0.13 0,0.22 -0.1,0.13 -0.24,0.18 -0.16,0.05")


def _stem(canvas: Canvas, at: Frame, start: tuple[float, float], way: int, colour: RGB) -> None:
    """Up (-1) or down (+1) and out of the image, in a slight bend."""
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


@dataclass(frozen=True)
class Season:
    """A palette."""

    sky: tuple[RGB, RGB]
    """High and low."""
    leaves: tuple[RGB, RGB, RGB]
    ground: tuple[RGB, RGB]
    wood: RGB
    water: tuple[RGB, RGB]
    stone: RGB
    bloom: RGB


SPRING = Season(
    sky=((118, 178, 222), (222, 236, 236)),
    leaves=((92, 148, 60), (140, 184, 84), (56, 104, 52)),
    ground=((132, 168, 76), (92, 128, 56)),
    wood=(116, 88, 64),
    water=((74, 142, 168), (170, 212, 216)),
    stone=(158, 158, 146),
    bloom=(240, 172, 196),
)
AUTUMN = Season(
    sky=((222, 196, 148), (246, 230, 194)),
    leaves=((208, 122, 40), (168, 74, 38), (224, 174, 66)),
    ground=((176, 128, 64), (132, 90, 48)),
    wood=(90, 64, 46),
    water=((122, 112, 80), (214, 184, 122)),
    stone=(156, 130, 106),
    bloom=(200, 66, 50),
)
DUSK = Season(
    sky=((70, 62, 124), (236, 152, 140)),
    leaves=((58, 74, 100), (92, 76, 122), (40, 52, 76)),
    ground=((86, 74, 110), (58, 52, 80)),
    wood=(62, 48, 62),
    water=((66, 66, 126), (214, 142, 156)),
    stone=(112, 100, 132),
    bloom=(244, 196, 120),
)
WINTER = Season(
    sky=((182, 198, 214), (236, 240, 244)),
    leaves=((126, 148, 152), (176, 190, 192), (92, 114, 122)),
    ground=((238, 242, 246), (204, 216, 228)),
    wood=(92, 84, 84),
    water=((128, 156, 180), (208, 222, 232)),
    stone=(136, 144, 156),
    bloom=(206, 64, 76),
)
SEASONS = (SPRING, AUTUMN, DUSK, WINTER)


class Backdrop:
    """An image at half the size of the finished one.

    Lengths are shares of its shorter side; levels (``top``, ``bottom``, ``level``) are shares of its height.
    """

    def __init__(self, height: int, width: int, season: Season, rng: np.random.Generator) -> None:
        self.size = (-(-width // 2), -(-height // 2))
        self.side = min(self.size)
        self.right, self.bottom = self.size[0] / self.side, self.size[1] / self.side
        self.season, self.rng = season, rng
        self.image = Image.new("RGB", self.size)
        self.draw = ImageDraw.Draw(self.image)

    def fill(self, outline: Points, colour: RGB) -> None:
        self.draw.polygon((outline * self.side).ravel().tolist(), fill=colour)

    def gradient(self, high: RGB, low: RGB, top: float = 0.0) -> None:
        """From ``high`` at ``top`` to ``low`` at the foot of the image."""
        start = round(top * self.size[1])
        rows = np.linspace(0, 1, max(self.size[1] - start, 1))[:, None]
        column = (np.array(high) * (1 - rows) + np.array(low) * rows).astype(np.uint8)[:, None]
        self.image.paste(Image.fromarray(column).resize((self.size[0], len(rows))), (0, start))

    def soften(self, radius: float) -> None:
        """Put all that has been drawn so far out of focus."""
        self.image = self.image.filter(ImageFilter.GaussianBlur(radius * self.side))
        self.draw = ImageDraw.Draw(self.image)

    def places(self, count: int, top: float = 0.0, bottom: float = 1.0) -> Points:
        """``count`` for a square image, more for a longer one."""
        corners = (0, top * self.bottom), (self.right, bottom * self.bottom)
        return self.rng.uniform(*corners, (round(count * self.right * self.bottom), 2))

    def blobs(self, places: Points, sizes: tuple[float, float], colours: tuple[RGB, ...], flat: float = 1.0) -> None:
        for place in places:
            radius = self.rng.uniform(*sizes)
            self.fill(ellipse(place, (radius, radius * flat), self.rng.uniform(0, 0.6), 12), pick(self.rng, colours))

    def leaf_litter(self, places: Points, sizes: tuple[float, float], colours: tuple[RGB, ...]) -> None:
        for place in places:
            turn, length = self.rng.uniform(0, 2 * np.pi), self.rng.uniform(*sizes)
            tip = place + length * np.array([np.cos(turn), np.sin(turn)])
            self.fill(leaf(place, tip, 0.5), pick(self.rng, colours))

    def ridge(self, level: float, height: float, colour: RGB) -> None:
        """A rolling horizon; all below it is filled."""
        xs = np.linspace(-0.1, self.right + 0.1, 12)
        phase = self.rng.uniform(0, 6, 3)
        ys = level * self.bottom + height * sum(
            np.sin(xs * f + p) / f for f, p in zip((3.0, 7.0, 13.0), phase, strict=True)
        )
        corners = [(xs[-1], self.bottom + 0.1), (xs[0], self.bottom + 0.1)]
        self.fill(np.concatenate([np.stack([xs, ys], axis=1), corners]), colour)

    def finished(self, height: int, width: int) -> NDArray[np.float32]:
        return np.asarray(self.image.resize((width, height), Image.Resampling.BICUBIC), np.float32)


def _open_sky(b: Backdrop) -> None:
    b.gradient(*b.season.sky)
    cloud = lighter(b.season.sky[1], 0.55)
    for centre in b.places(5, bottom=0.7):
        b.blobs(centre + b.rng.normal(0, (0.13, 0.03), (9, 2)), (0.05, 0.11), (cloud, mix(cloud, b.season.sky[0], 0.2)))
    b.soften(0.028)
    b.ridge(0.86, 0.12, mix(b.season.leaves[2], b.season.sky[1], 0.5))
    b.ridge(0.94, 0.1, mix(b.season.leaves[0], b.season.sky[1], 0.15))
    b.soften(0.01)


def _foliage(b: Backdrop) -> None:
    light, mid, dark = b.season.leaves[1], b.season.leaves[0], b.season.leaves[2]
    b.gradient(mix(mid, light, 0.4), darker(dark, 0.15))
    b.blobs(b.places(34), (0.08, 0.2), (mid, dark, darker(dark, 0.25), light))
    b.soften(0.05)
    b.blobs(b.places(14), (0.02, 0.05), (lighter(light, 0.35), light))
    b.soften(0.012)
    b.leaf_litter(b.places(46), (0.1, 0.2), (light, mid, dark, darker(dark, 0.2)))
    b.soften(0.008)


def _forest(b: Backdrop) -> None:
    far = mix(b.season.leaves[0], b.season.sky[1], 0.45)
    b.gradient(lighter(far, 0.25), mix(b.season.ground[1], far, 0.3))
    for leaf_blur, blur, count, width, share in ((0.03, 0.02, 8, 0.05, 0.45), (0.015, 0.008, 4, 0.1, 0.05)):
        b.blobs(b.places(14, bottom=0.4), (0.06, 0.14), (mix(b.season.leaves[0], far, share), b.season.leaves[2]))
        b.soften(leaf_blur)
        for x in b.rng.uniform(0, b.right, round(count * b.right)):
            lean, thick = b.rng.normal(0, 0.03), width * b.rng.uniform(0.6, 1.3)
            colour = mix(darker(b.season.wood, 0.3), far, share)
            b.fill(stroke([(x, -0.1), (x + lean, b.bottom + 0.1)], [thick * 0.8, thick * 1.2]), colour)
            edge = [(x + thick * 0.22, -0.1), (x + lean + thick * 0.3, b.bottom + 0.1)]
            b.fill(stroke(edge, thick * 0.2), lighter(colour, 0.16))
        b.soften(blur)
    b.ridge(0.9, 0.06, b.season.ground[1])
    b.leaf_litter(b.places(40, top=0.86), (0.03, 0.07), (*b.season.ground, b.season.leaves[1]))
    b.soften(0.007)


def _meadow(b: Backdrop) -> None:
    b.gradient(*b.season.sky)
    b.ridge(0.3, 0.12, mix(b.season.leaves[2], b.season.sky[1], 0.45))
    b.soften(0.03)
    b.ridge(0.42, 0.05, mix(b.season.ground[0], b.season.sky[1], 0.2))
    b.soften(0.015)
    grass = (*b.season.ground, b.season.leaves[0], lighter(b.season.ground[0], 0.2))
    for x, y in sorted(b.places(150, top=0.5, bottom=1.2), key=lambda place: place[1]):
        b.fill(blade(x, y, b.rng.normal(0, 0.05), b.rng.uniform(0.12, 0.28), 0.022), pick(b.rng, grass))
    b.soften(0.006)
    b.blobs(b.places(12, top=0.48), (0.012, 0.022), (b.season.bloom, lighter(b.season.bloom, 0.4)))
    b.soften(0.005)


def _water(b: Backdrop) -> None:
    b.gradient(b.season.sky[0], b.season.sky[1])
    b.ridge(0.24, 0.06, mix(b.season.leaves[2], b.season.sky[1], 0.3))
    b.soften(0.02)
    b.gradient(b.season.water[1], darker(b.season.water[0], 0.12), top=0.34)
    glint, deep = lighter(b.season.water[1], 0.4), darker(b.season.water[0], 0.2)
    for x, y in b.places(110, top=0.36):
        depth = (y / b.bottom - 0.3) / 0.7
        colour = pick(b.rng, (glint, deep, b.season.water[0], mix(b.season.water[0], b.season.leaves[2], 0.35)))
        b.fill(ellipse((x, y), (0.03 + 0.13 * depth, 0.003 + 0.011 * depth), 0.0, 10), colour)
    b.soften(0.011)


def _rocks(b: Backdrop) -> None:
    stone = b.season.stone
    b.gradient(mix(b.season.sky[1], stone, 0.25), darker(stone, 0.35))
    for x, y in sorted(b.places(24, top=0.12, bottom=1.15), key=lambda place: place[1]):
        size, tint = b.rng.uniform(0.12, 0.26), pick(b.rng, (stone, darker(stone, 0.2), lighter(stone, 0.15)))
        turns = np.sort(b.rng.uniform(0, 2 * np.pi, 8))
        boulder = np.stack([np.cos(turns), 0.7 * np.sin(turns)], axis=1) * size + (x, y)
        b.fill(boulder, darker(tint, 0.3))
        b.fill((boulder - (x, y)) * 0.82 + (x - 0.02, y - 0.04), tint)
        b.fill((boulder - (x, y)) * (0.5, 0.4) + (x - 0.05, y - 0.08), lighter(tint, 0.2))
    b.soften(0.012)
    b.blobs(b.places(30), (0.01, 0.035), (b.season.leaves[0], darker(stone, 0.4), lighter(stone, 0.3)), flat=0.6)
    b.soften(0.008)


def _reeds(b: Backdrop) -> None:
    haze = mix(b.season.sky[1], b.season.ground[0], 0.35)
    b.gradient(b.season.sky[1], mix(haze, b.season.water[0], 0.5))
    shades = (b.season.ground[0], b.season.leaves[0], lighter(b.season.ground[0], 0.3), darker(b.season.ground[1], 0.2))
    for blur, count, share in ((0.018, 40, 0.5), (0.007, 26, 0.0)):
        for x in b.rng.uniform(-0.05, b.right + 0.05, round(count * b.right)):
            lean, top = b.rng.normal(0, 0.09), b.rng.uniform(-0.1, 0.35)
            path = [(x, b.bottom + 0.1), (x + lean * 0.4, b.bottom * 0.5), (x + lean, top)]
            b.fill(stroke(path, [0.022, 0.018, 0.004]), mix(pick(b.rng, shades), haze, share))
            if b.rng.random() < 0.3:
                head = ellipse((x + lean * 0.92, top + 0.06), (0.02, 0.075), 0.0, 12)
                b.fill(head, mix(darker(b.season.wood, 0.1), haze, share))
        b.soften(blur)


def _blossom(b: Backdrop) -> None:
    air = lighter(mix(b.season.sky[0], b.season.bloom, 0.3), 0.3)
    b.gradient(air, mix(air, b.season.bloom, 0.4))
    b.blobs(b.places(16), (0.06, 0.15), (lighter(b.season.bloom, 0.3), mix(b.season.bloom, air, 0.5)))
    b.soften(0.045)
    petals = (b.season.bloom, lighter(b.season.bloom, 0.45), lighter(b.season.bloom, 0.7))
    for start in b.places(5):
        turn = b.rng.uniform(-0.6, 0.6)
        steps = np.linspace(-0.6, 0.6, 7)[:, None]
        path = start + steps * (np.cos(turn), np.sin(turn)) + b.rng.normal(0, 0.02, (7, 2))
        b.fill(stroke(path, np.linspace(0.03, 0.01, 7)), b.season.wood)
        for knot in path:
            b.blobs(knot + b.rng.normal(0, 0.035, (6, 2)), (0.018, 0.034), petals)
    b.soften(0.009)


Place = Callable[[Backdrop], None]
KINDS: tuple[Place, ...] = (_open_sky, _foliage, _rocks, _water, _blossom, _forest, _reeds, _meadow)


def paint_backdrop(height: int, width: int, kind: int, season: Season, rng: np.random.Generator) -> NDArray[np.float32]:
    """H×W×3 in [0, 255]."""
    backdrop = Backdrop(height, width, season, rng)
    KINDS[kind](backdrop)
    return backdrop.finished(height, width)
