"""Transforms that move the image, its mask, part masks, keypoints and box together: Sample in, Sample out.

Coordinates are continuous: pixel (row i, column j) covers [j, j+1) × [i, i+1), so a point at (x, y) lies in column
⌊x⌋ of row ⌊y⌋ and the image ends at (W, H). A keypoint that leaves the frame becomes invisible, its row 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import TVTensor

from dapl.common.errors import DaplError
from dapl.data.sample import Sample

Fit = Literal["stretch", "crop", "pad"]
Augmentation = Literal["none", "flip", "affine"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FILL = (124, 116, 104)
"""What is put where there is no image: the mean colour of ImageNet, which normalises to about 0."""

ROTATION = 15.0
SHEAR = 10.0
SKEW = 0.2
FLIP = 0.5


def fit(sample: Sample, size: int, how: Fit = "stretch") -> Sample:
    """The sample at size×size, always the same way.

    - ``stretch``: both sides to ``size``, whatever the shape (as ProtoPNet does);
    - ``crop``: the shorter side to ``size``, then the centre;
    - ``pad``: the longer side to ``size``, then the mean colour (mask 0) on both sides.

    Images are resized bilinearly with antialiasing, masks by the nearest pixel.
    """
    if size < 2:  # and torch 2.13 cannot resize to a single pixel
        raise DaplError(f"the image size is {size}; give at least 2 pixels.")
    if how == "stretch":
        return resize(sample, size, size)
    height, width = sample.image.shape[-2:]
    if how == "crop":
        scale = size / min(height, width)
    elif how == "pad":
        scale = size / max(height, width)
    else:
        raise DaplError(f"unknown way to fit an image: {how!r}; give one of {', '.join(get_args(Fit))}.")
    sample = resize(sample, max(1, round(height * scale)), max(1, round(width * scale)))
    height, width = sample.image.shape[-2:]
    if how == "crop":
        return crop(sample, (height - size) // 2, (width - size) // 2, size, size)
    left, top = (size - width) // 2, (size - height) // 2
    padding = [left, top, size - width - left, size - height - top]
    return _move(sample, lambda part: F.pad(part, padding, fill=FILL if isinstance(part, tv_tensors.Image) else 0))


def augment(sample: Sample, kind: Augmentation = "none", seed: int = 0) -> Sample:
    """A random variant of the sample, the same for the same (sample, kind, seed); no global generator is touched.

    - ``flip``: mirrored left to right with probability 0.5;
    - ``affine``: rotation within ±15°, shear within ±10°, each corner moved by up to a tenth of the side (a skew of 0.2
      of the half side), and the flip: about what ProtoPNet's augmented copies hold. One resampling does it all.

    Rows keep their part: the right wing of a mirrored bird stays the right wing, though it looks like a left one. The
    box becomes the smallest upright one around the moved box, clipped to the frame.
    """
    if kind == "none":
        return sample
    if kind == "flip":
        return flip(sample) if mirrored(seed) else sample
    if kind == "affine":
        height, width = sample.image.shape[-2:]
        return _warp(sample, _random_homography(_generator(seed), height, width))
    raise DaplError(f"unknown augmentation: {kind!r}; give one of {', '.join(get_args(Augmentation))}.")


def mirrored(seed: int) -> bool:
    """Whether ``flip`` mirrors an image with this seed; cached features of both views are picked by it too."""
    return _generator(seed).random() < FLIP


def normalise(images: Tensor, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> Tensor:
    """uint8 …×3×H×W to float32 (x / 255 − mean) / std, channel by channel; the memory format stays."""
    if images.dtype != torch.uint8:
        raise TypeError(f"normalise takes uint8 pixels, not {images.dtype}: they were normalised already?")
    deviation = torch.tensor(std, device=images.device).view(-1, 1, 1)
    offset = torch.tensor(mean, device=images.device).view(-1, 1, 1) / deviation
    return images.as_subclass(Tensor).to(torch.float32).mul_(1 / (255 * deviation)).sub_(offset)


def resize(sample: Sample, height: int, width: int) -> Sample:
    """Each side by its own factor."""

    def move(part: TVTensor) -> TVTensor:
        # NEAREST, torchvision's default for masks, takes the upper left neighbour: half a pixel beside the image
        is_mask = isinstance(part, tv_tensors.Mask)
        how = InterpolationMode.NEAREST_EXACT if is_mask else InterpolationMode.BILINEAR
        return F.resize(part, [height, width], interpolation=how, antialias=True)

    return _move(sample, move)


def crop(sample: Sample, top: int, left: int, height: int, width: int) -> Sample:
    """The given rectangle, which must lie inside the image."""
    return _move(sample, lambda part: F.crop(part, top, left, height, width))


def crop_to_box(sample: Sample) -> Sample:
    """Only the annotated box, out to whole pixels, so that no keypoint inside it is lost."""
    if sample.box is None:
        raise DaplError(f"{sample.name}: has no bounding box to crop to; use crop: none.")
    height, width = sample.image.shape[-2:]
    x1, y1, x2, y2 = sample.box[0].tolist()
    left, top = max(0, math.floor(x1)), max(0, math.floor(y1))
    right, bottom = min(width, math.ceil(x2)), min(height, math.ceil(y2))
    return crop(sample, top, left, bottom - top, right - left)


def flip(sample: Sample) -> Sample:
    """Mirrored left to right."""

    def move(part: TVTensor) -> TVTensor:
        if not isinstance(part, tv_tensors.KeyPoints):
            return F.horizontal_flip(part)
        # torchvision mirrors keypoints about (W − 1) / 2, as pixel indices, but resizes and warps them as continuous
        # coordinates; ours are continuous throughout
        moved = part.as_subclass(Tensor).clone()
        moved[:, 0] = part.canvas_size[1] - moved[:, 0]
        return tv_tensors.wrap(moved, like=part)

    return _move(sample, move)


def _generator(seed: int) -> random.Random:
    # the text is hashed whole: a generator that takes 32 bits would repeat itself for seeds packed from epoch and index
    return random.Random(f"{seed}")


def _warp(sample: Sample, homography: np.ndarray) -> Sample:
    """``homography`` (3×3) takes points of the old image to points of the new one, which has the same size."""
    back = np.linalg.inv(homography)  # torchvision asks where each new pixel comes from
    coefficients = (back / back[2, 2]).flatten()[:8].tolist()

    def move(part: TVTensor) -> TVTensor:
        if not isinstance(part, tv_tensors.Image):
            return F.perspective(part, None, None, coefficients=coefficients)
        # torchvision's own fill weighs the image twice where the two meet, which draws a dark line along the border
        ground = torch.tensor(FILL, dtype=torch.float32)[:, None, None]
        moved = F.perspective(part.as_subclass(Tensor) - ground, None, None, coefficients=coefficients) + ground
        return tv_tensors.Image(moved.round_().to(torch.uint8))

    return _move(sample, move)


def _random_homography(generator: random.Random, height: int, width: int) -> np.ndarray:
    """Mirrored or not, then sheared, rotated and skewed about the centre."""
    mirror = -1.0 if generator.random() < FLIP else 1.0
    angle = math.radians(generator.uniform(-ROTATION, ROTATION))
    shear = math.tan(math.radians(generator.uniform(-SHEAR, SHEAR)))
    to_centre = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1]])
    mirrored_and_sheared = np.array([[mirror, shear, 0], [0, 1, 0], [0, 0, 1]])
    rotated = np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (width / 2, height / 2)
    shift = np.array([[generator.uniform(-SKEW, SKEW) for _ in range(2)] for _ in range(4)]) * (width / 2, height / 2)
    skewed = _homography(corners, corners + shift)
    return np.linalg.inv(to_centre) @ skewed @ rotated @ mirrored_and_sheared @ to_centre


def _homography(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The 3×3 matrix, its last entry 1, that takes the four points ``start`` (4×2) to ``end``."""
    equations = []
    for (x, y), (u, v) in zip(start, end, strict=True):
        equations.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        equations.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    return np.append(np.linalg.solve(np.array(equations), end.flatten()), 1.0).reshape(3, 3)


def _move(sample: Sample, move: Callable[[TVTensor], TVTensor]) -> Sample:
    """``move`` on all that has a place in the image, and then what left the frame is taken off."""
    parts = {name: getattr(sample, name) for name in ("image", "mask", "part_masks", "keypoints", "box")}
    moved = replace(sample, **{name: move(part) for name, part in parts.items() if part is not None})
    frame: tuple[int, int] = tuple(moved.image.shape[-2:])
    keypoints, visible = None, None
    if moved.keypoints is not None:
        keypoints, visible = in_frame(moved.keypoints.as_subclass(Tensor), moved.visible, frame)
    return replace(moved, keypoints=keypoints, visible=visible, box=_clip(moved.box))


def in_frame(points: Tensor, visible: Tensor | None, frame: tuple[int, int]) -> tuple[tv_tensors.KeyPoints, Tensor]:
    """Points (K×2) in a frame (height, width); those outside become invisible, and the rows of invisible ones 0.

    The far edge belongs to the last pixel: a point at x = 0 must survive a flip.
    """
    end = torch.tensor([frame[1], frame[0]], dtype=points.dtype)
    inside = ((points >= 0) & (points <= end)).all(dim=1)
    visible = inside if visible is None else inside & visible
    points = torch.minimum(points, torch.nextafter(end, torch.zeros_like(end)))
    return tv_tensors.KeyPoints(points * visible[:, None], canvas_size=frame), visible


def _clip(box: tv_tensors.BoundingBoxes | None) -> tv_tensors.BoundingBoxes | None:
    """None when nothing of the box is left."""
    if box is None:
        return None
    box = F.clamp_bounding_boxes(box)
    x1, y1, x2, y2 = box[0].tolist()
    return box if x2 > x1 and y2 > y1 else None
