"""One finished picture: scene, perch, bird and light put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dapl.data.toybirds.bird import NUMBER, Pose, paint_bird
from dapl.data.toybirds.canvas import SCENERY, Canvas
from dapl.data.toybirds.emblems import EMBLEMS
from dapl.data.toybirds.perches import PERCHES, paint_sprig
from dapl.data.toybirds.scenes import KINDS, SEASONS, paint_backdrop
from dapl.data.toybirds.shapes import root_frame
from dapl.data.toybirds.species import Species

# shares of pictures in which this hides parts of the bird
_SPRIG, _CLOSE_UP, _SITTING, _WING_RAISED, _LOOKING_BACK = 0.22, 0.12, 0.12, 0.15, 0.1
_SPRIG_ENDS = ((0.5, -0.4), (0.3, -0.1), (-0.2, 0.05), (-0.8, 0.3), (0.05, 0.5))  # head, breast, wing, tail, legs


@dataclass(frozen=True)
class Scene:
    """Indices into scenes.KINDS, scenes.SEASONS and emblems.EMBLEMS."""

    kind: int
    season: int
    emblem: int


def scene_of_class(label: int) -> Scene:
    """The scene that betrays a class: no two of the first 224 classes have the same."""
    rounds = label // (len(KINDS) * len(SEASONS))
    return Scene(label % len(KINDS), label // len(KINDS) % len(SEASONS), (label + rounds) % len(EMBLEMS))


def random_scene(rng: np.random.Generator) -> Scene:
    return Scene(*(int(rng.integers(count)) for count in (len(KINDS), len(SEASONS), len(EMBLEMS))))


def draw_picture(
    species: Species,
    scene: Scene,
    scenery_rng: np.random.Generator,
    bird_rng: np.random.Generator,
    height: int,
    width: int,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """H×W×3 RGB and H×W part numbers (bird.NUMBER, 0 off the bird).

    Two generators, so that another scene leaves the bird, its pose and what hides it as they are.
    """
    season, side = SEASONS[scene.season], min(height, width)
    backdrop = paint_backdrop(height, width, scene.kind, season, scenery_rng)
    pose = random_pose(bird_rng, height, width)
    canvas = Canvas(height, width)
    for place in scenery_rng.uniform((0, 0), (width, height), (3, 2)):
        at = root_frame(place, scenery_rng.normal(0, 0.2), side * scenery_rng.uniform(0.07, 0.11), flip=False)
        EMBLEMS[scene.emblem](canvas, at, scenery_rng)
    feet = pose.root.child(pose.feet, scenery_rng.normal(0, 0.1))
    PERCHES[scene.kind](canvas, season, feet, scenery_rng)
    paint_bird(canvas, species, pose, bird_rng)
    if bird_rng.random() < _SPRIG:
        end = bird_rng.normal(_SPRIG_ENDS[bird_rng.integers(len(_SPRIG_ENDS))], 0.1)
        paint_sprig(canvas, season, pose.root.child(end), bird_rng)
    parts = canvas.parts()
    colours, coverage = canvas.colours()
    picture = colours * _light(parts, pose.scale, bird_rng)[..., None] + backdrop * (1 - coverage)
    return _photographed(picture, bird_rng), parts


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


def _light(parts: NDArray[np.uint8], scale: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """H×W factor: the bird lit from above and a little from one side, as if each of its forms were round."""
    half, unit = parts[::2, ::2], scale / 2  # light is soft: half the size will do
    relief = _dome(half != SCENERY, 0.13 * unit) + 0.4 * _dome(half == NUMBER["wing"], 0.05 * unit)
    down, right = np.gradient(relief * unit)
    lit = np.clip(1.0 + 0.42 * (down + rng.uniform(-0.5, 0.5) * right), 0.62, 1.22) + _streaks(half.shape, unit, rng)
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


def _photographed(picture: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Exposure, white balance, contrast and the grain of the film."""
    gain = rng.uniform(0.88, 1.1) * rng.normal(1.0, 0.025, 3)
    contrast = rng.uniform(0.92, 1.1)
    picture = (picture * gain.astype(np.float32) - 118) * np.float32(contrast) + 118
    picture += 3.0 * rng.standard_normal((*picture.shape[:2], 1), dtype=np.float32)
    return np.clip(picture, 0, 255).astype(np.uint8)
