"""One face: cut out of its frame, square, with its landmarks and mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from dapl.masks.face_parts import PARTS, part_centres
from dapl.masks.hull import hull_mask
from dapl.masks.polygons import bounding_box
from dapl.masks.refine import Prompt, Refiner

MIN_AGREEMENT = 0.5
"""A refined mask whose intersection over union with the hull is below this found something else than the face."""
_ON_THE_FACE = ("nose", "left cheek", "right cheek", "chin")
"""Parts whose centres are points on the face for SAM: neither hair nor glasses hide them often."""


@dataclass(frozen=True)
class Square:
    left: int
    top: int
    side: int


@dataclass(frozen=True)
class FaceMask:
    mask: np.ndarray
    """bool S×S."""
    method: str
    agreement: float


def square_around(landmarks: np.ndarray, margin: float, frame: tuple[int, int]) -> Square:
    """The face's longer side and ``margin`` of it on each side, moved into the frame (height, width)."""
    x1, y1, x2, y2 = bounding_box(landmarks)
    side = round(max(x2 - x1, y2 - y1) * (1 + 2 * margin))

    def start(middle: float, length: int) -> int:
        begin = round(middle - side / 2)
        return min(max(begin, 0), length - side) if side <= length else (length - side) // 2

    return Square(start((x1 + x2) / 2, frame[1]), start((y1 + y2) / 2, frame[0]), side)


def cut_out(image: np.ndarray, square: Square, size: int) -> np.ndarray:
    """uint8 size×size×3. Where the square is larger than the frame, the frame's edge goes on."""
    height, width = image.shape[:2]
    before, after = max(0, -square.top), max(0, square.top + square.side - height)
    left, right = max(0, -square.left), max(0, square.left + square.side - width)
    top, start = max(0, square.top), max(0, square.left)
    part = image[top : square.top + square.side, start : square.left + square.side]
    part = np.pad(part, ((before, after), (left, right), (0, 0)), mode="edge")
    return np.array(Image.fromarray(part).resize((size, size), Image.Resampling.BICUBIC))


def landmarks_in(landmarks: np.ndarray, square: Square, size: int) -> np.ndarray:
    """float32 468×2 in pixels of the cut-out picture."""
    return ((landmarks - (square.left, square.top)) * (size / square.side)).astype(np.float32)


def face_mask(picture: np.ndarray, landmarks: np.ndarray, refiner: Refiner) -> FaceMask:
    """The hull, refined; the hull itself where the refinement strayed from it."""
    size = picture.shape[0]
    hull = hull_mask(landmarks, (size, size))
    refined = refiner(picture, Prompt(_box(landmarks, size), _points(landmarks, size), hull))
    union = int((hull | refined).sum())
    agreement = int((hull & refined).sum()) / union if union else 0.0
    if agreement < MIN_AGREEMENT:
        return FaceMask(hull, "hull", agreement)
    return FaceMask(refined, refiner.name, agreement)


def _box(landmarks: np.ndarray, size: int) -> tuple[float, float, float, float]:
    return bounding_box(landmarks.clip(0, size))


def _points(landmarks: np.ndarray, size: int) -> np.ndarray | None:
    centres = part_centres(landmarks)[[PARTS.index(name) for name in _ON_THE_FACE]]
    inside = ((centres >= 0) & (centres < size)).all(axis=1)
    return centres[inside] if inside.any() else None
