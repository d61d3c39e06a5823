"""One finished image: scene, perch, bird, the sprig that now and then hides some of it, and light put together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dapl.data.toybirds.bird import NUMBER, Pose, paint_bird
from dapl.data.toybirds.drawing import (
    RGB,
    SCENERY,
    Canvas,
    Frame,
    Points,
    blade,
    darker,
    ellipse,
    leaf,
    lighter,
    pick,
    root_frame,
    stroke,
)
from dapl.data.toybirds.scenes import EMBLEMS, KINDS, SEASONS, Season, paint_backdrop
from dapl.data.toybirds.species import PartStyle, Species

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


# shares of images in which this hides parts of the bird
_SPRIG, _CLOSE_UP, _SITTING, _WING_RAISED, _LOOKING_BACK = 0.22, 0.12, 0.12, 0.15, 0.1
_SPRIG_ENDS = ((0.5, -0.4), (0.3, -0.1), (-0.2, 0.05), (-0.8, 0.3), (0.05, 0.5))  # head, breast, wing, tail, legs


@dataclass(frozen=True)
class ToyScene:
    """Indices into scenes.KINDS, scenes.SEASONS and scenes.EMBLEMS."""

    kind: int
    season: int
    emblem: int


def scene_of_class(label: int) -> ToyScene:
    """The scene that betrays a class: no two of the first 224 classes have the same."""
    rounds = label // (len(KINDS) * len(SEASONS))
    return ToyScene(label % len(KINDS), label // len(KINDS) % len(SEASONS), (label + rounds) % len(EMBLEMS))


def random_scene(rng: np.random.Generator) -> ToyScene:
    return ToyScene(*(int(rng.integers(count)) for count in (len(KINDS), len(SEASONS), len(EMBLEMS))))


def another_scene(scene: ToyScene, rng: np.random.Generator) -> ToyScene:
    """At random, but another kind of place."""
    other = random_scene(rng)
    kind = (scene.kind + int(rng.integers(1, len(KINDS)))) % len(KINDS)
    return ToyScene(kind, other.season, other.emblem)


THINGS = ("emblem 1", "emblem 2", "emblem 3", "perch", "sprig")
"""What stands around a bird and can be left out as its parts can; all else is the backdrop."""

THING_NUMBER = {thing: number for number, thing in enumerate(THINGS, start=len(NUMBER) + 1)}
"""Numbers on the canvas, behind those of the parts."""


@dataclass(frozen=True)
class Drawing:
    """A finished image and what is seen in it."""

    image: NDArray[np.uint8]
    """H×W×3, RGB."""
    parts: NDArray[np.uint8]
    """H×W, `bird.NUMBER` of the part that is seen, 0 off the bird."""
    things: NDArray[np.uint8]
    """H×W, 1 + the index in `THINGS`, 0 on bird and backdrop."""


@dataclass(frozen=True)
class Change:
    """What is to be other than usual in a drawing; all the rest stays equal, pixel by pixel."""

    without: frozenset[str] = frozenset()
    """Parts and `THINGS` that are left out."""
    styles: Mapping[str, PartStyle] = field(default_factory=dict)
    """Parts that appear in this style instead of the species' own."""
    scene: ToyScene | None = None
    """Another background, with ``scenery_rng`` of its own."""
    scenery_rng: np.random.Generator | None = None


class Painting:
    """A bird in a scene, painted once, and drawn with or without changes as often as one likes."""

    def __init__(
        self,
        species: Species,
        scene: ToyScene,
        scenery_rng: np.random.Generator,
        bird_rng: np.random.Generator,
        height: int,
        width: int,
    ) -> None:
        """Two generators, so that another scene leaves the bird, its pose and what hides it as they are."""
        self.scene = scene
        self._species, self._size = species, (height, width)
        self._rngs = copy.deepcopy((scenery_rng, bird_rng))
        self._usual = _paint(species, {}, scene, scenery_rng, bird_rng, self._size)
        slant = float(bird_rng.uniform(-0.5, 0.5))
        streaks = _streaks(self._usual.parts[::2, ::2].shape, self._usual.scale / 2, bird_rng)
        self._light = partial(_light, scale=self._usual.scale, slant=slant, streaks=streaks)
        self._usual_light = self._light(self._usual.parts)
        self._film = _Film.random(bird_rng, height, width)

    def draw(self, change: Change | None = None) -> Drawing:
        """A change leaves a pixel of bird or backdrop as it is where it shows no other paint: the light on the bird
        stays that of the unchanged image. Only the shadow of the bird on the things beside it follows the change, or it
        would tell of what is gone.
        """
        usual, light = self._usual, self._usual_light
        painted = usual
        if change is not None:
            painted = self._changed(change)
            follows = painted.canvas.differs(usual.canvas) | ~painted.canvas.shows(NUMBER.values())
            light = np.where(follows, self._light(painted.parts), light)
        colours, coverage = painted.canvas.colours()
        image = colours * light[..., None] + painted.backdrop * (1 - coverage)
        return Drawing(self._film.photographed(image), painted.parts, painted.things)

    def _changed(self, change: Change) -> _Painted:
        painted = self._usual
        if change.styles or change.scene is not None:
            scenery_rng, bird_rng = copy.deepcopy((change.scenery_rng or self._rngs[0], self._rngs[1]))
            scene = change.scene or self.scene
            painted = _paint(self._species, change.styles, scene, scenery_rng, bird_rng, self._size)
        numbers = NUMBER | THING_NUMBER
        return replace(painted, canvas=painted.canvas.without([numbers[piece] for piece in change.without]))


@dataclass(frozen=True)
class _Painted:
    canvas: Canvas
    backdrop: NDArray[np.float32]
    scale: float
    """Pixels per unit of the bird."""

    @cached_property
    def parts(self) -> NDArray[np.uint8]:
        pieces = self.canvas.parts()
        return np.where(pieces <= len(NUMBER), pieces, SCENERY).astype(np.uint8)

    @cached_property
    def things(self) -> NDArray[np.uint8]:
        pieces = self.canvas.parts()
        return np.where(pieces > len(NUMBER), pieces - len(NUMBER), SCENERY).astype(np.uint8)


def _paint(
    species: Species,
    exchanged: Mapping[str, PartStyle],
    scene: ToyScene,
    scenery_rng: np.random.Generator,
    bird_rng: np.random.Generator,
    size: tuple[int, int],
) -> _Painted:
    """All paint, from back to front."""
    (height, width), season, side = size, SEASONS[scene.season], min(size)
    backdrop = paint_backdrop(height, width, scene.kind, season, scenery_rng)
    pose = random_pose(bird_rng, height, width)
    canvas = Canvas(height, width)
    for thing, place in zip(THINGS, scenery_rng.uniform((0, 0), (width, height), (3, 2)), strict=False):
        at = root_frame(place, scenery_rng.normal(0, 0.2), side * scenery_rng.uniform(0.07, 0.11), flip=False)
        EMBLEMS[scene.emblem](canvas.of_piece(THING_NUMBER[thing]), at, scenery_rng)
    feet = pose.root.child(pose.feet, scenery_rng.normal(0, 0.1))
    PERCHES[scene.kind](canvas.of_piece(THING_NUMBER["perch"]), season, feet, scenery_rng)
    paint_bird(canvas, species, pose, bird_rng, exchanged)
    if bird_rng.random() < _SPRIG:
        end = bird_rng.normal(_SPRIG_ENDS[bird_rng.integers(len(_SPRIG_ENDS))], 0.1)
        paint_sprig(canvas.of_piece(THING_NUMBER["sprig"]), season, pose.root.child(end), bird_rng)
    return _Painted(canvas, backdrop, pose.scale)


def random_pose(rng: np.random.Generator, height: int, width: int) -> Pose:
    side, flip = min(height, width), bool(rng.random() < 0.5)
    scale = side * float(rng.uniform(0.33, 0.45)) * (1.4 if rng.random() < _CLOSE_UP else 1.0)
    middle = np.array([0.1 if flip else -0.1, 0.02]) * scale  # of the bird's own box, in pixels
    centre = np.array([width, height]) / 2 - middle + rng.normal(0, 0.045, 2) * side
    return Pose(
        root=root_frame(centre, _swing(rng, 0.13), scale, flip),
        scale=scale,
        head_angle=_swing(rng, 0.16) - 0.03,
        looks_back=bool(rng.random() < _LOOKING_BACK),
        tail_angle=_swing(rng, 0.16),
        wing_angle=_swing(rng, 0.06),
        wing_raised=bool(rng.random() < _WING_RAISED),
        leg_shift=float(rng.uniform(-0.02, 0.04)),
        sits=bool(rng.random() < _SITTING),
    )


def _swing(rng: np.random.Generator, spread: float) -> float:
    """An angle around 0, never beyond what looks possible."""
    return float(np.clip(rng.normal(0, spread), -2.3 * spread, 2.3 * spread))


def _light(parts: NDArray[np.uint8], scale: float, slant: float, streaks: NDArray[np.float32]) -> NDArray[np.float32]:
    """H×W factor: the bird lit from above and a little from one side, as if each of its forms were round."""
    half, unit = parts[::2, ::2], scale / 2  # light is soft: half the size will do
    relief = _dome(half != SCENERY, 0.13 * unit) + 0.4 * _dome(half == NUMBER["wing"], 0.05 * unit)
    down, right = np.gradient(relief * unit)
    lit = np.clip(1.0 + 0.42 * (down + slant * right), 0.62, 1.22) + streaks
    shade = _resized(lit.astype(np.float32), parts.shape[::-1])
    return np.where(parts != SCENERY, shade, 0.7 + 0.3 * shade)  # beside the bird, a breath of its shadow


def _dome(region: NDArray[np.bool_], radius: float) -> NDArray[np.float32]:
    """The region as a soft hill. In floats on a coarse grid: eight bits would show as terraces."""
    height, width = region.shape
    hill = _resized(region.astype(np.float32), (round(2 * width / radius), round(2 * height / radius)))
    for _ in range(2):
        hill = np.pad(hill, 1, mode="edge")
        hill = hill[:-2] + 2 * hill[1:-1] + hill[2:]
        hill = (hill[:, :-2] + 2 * hill[:, 1:-1] + hill[:, 2:]) / np.float32(16)
    return _resized(hill, (width, height), Image.Resampling.BICUBIC)


def _streaks(shape: tuple[int, int], unit: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """H×W around 0: the fine streaks of plumage."""
    height, width = shape
    grid = (round(height / unit * 45), round(width / unit * 18))
    return _resized(0.035 * rng.standard_normal(grid, dtype=np.float32), (width, height), Image.Resampling.BICUBIC)


def _resized(
    values: NDArray[np.float32], size: tuple[int, int], resampling: Image.Resampling = Image.Resampling.BILINEAR
) -> NDArray[np.float32]:
    """``size`` is (width, height)."""
    return np.asarray(Image.fromarray(values).resize(size, resampling))


@dataclass(frozen=True)
class _Film:
    """Exposure, white balance, contrast and the grain of the film."""

    gain: NDArray[np.float32]
    contrast: np.float32
    grain: NDArray[np.float32]
    """H×W×1."""

    @classmethod
    def random(cls, rng: np.random.Generator, height: int, width: int) -> _Film:
        gain = rng.uniform(0.88, 1.1) * rng.normal(1.0, 0.025, 3)
        contrast = np.float32(rng.uniform(0.92, 1.1))
        return cls(gain.astype(np.float32), contrast, rng.standard_normal((height, width, 1), dtype=np.float32))

    def photographed(self, image: NDArray[np.float32]) -> NDArray[np.uint8]:
        exposed = (image * self.gain - 118) * self.contrast + 118 + 3.0 * self.grain
        return np.clip(exposed, 0, 255).astype(np.uint8)
