"""Faces in an image: their 468 landmarks by MediaPipe's Face Landmarker, their hull, and ten parts between landmarks.

Left and right are the viewer's: the left eye is the one on the left of an upright image (the person's right eye,
which MediaPipe calls right). So a part's name can be checked by looking at the image.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dapl.common.errors import DaplError, needing
from dapl.common.reading import read_bytes
from dapl.masks.polygons import bounding_box, convex_hull, fill_polygon

LANDMARKS = 468
"""Points of the face mesh. The model's further ten points lie on the irises."""

_OUTLINES = {
    # with the lids: the opening alone is a few pixels high, and of no area when the eye is closed
    "left eye": "130 247 30 29 27 28 56 190 243 112 26 22 23 24 110 25",
    "right eye": "359 467 260 259 257 258 286 414 463 341 256 252 253 254 339 255",
    "left brow": "70 63 105 66 107 55 65 52 53 46",
    "right brow": "300 293 334 296 336 285 295 282 283 276",
    "nose": "168 193 245 188 174 217 198 209 49 129 64 98 97 2 326 327 294 358 279 429 420 437 399 412 465 417",
    "mouth": "61 146 91 181 84 17 314 405 321 375 291 409 270 269 267 0 37 39 40 185",
    "left cheek": "234 116 117 118 119 120 47 126 142 203 206 216 212 214 138 58 132 93",
    "right cheek": "454 345 346 347 348 349 277 355 371 423 426 436 432 434 367 288 361 323",
    "forehead": "21 54 103 67 109 10 338 297 332 284 251 300 293 334 296 336 9 107 66 105 63 70",
    "chin": "135 136 150 149 176 148 152 377 400 378 379 365 364 430 424 406 313 18 83 182 204 210",
}
OUTLINES: dict[str, tuple[int, ...]] = {
    part: tuple(int(number) for number in numbers.split()) for part, numbers in _OUTLINES.items()
}
"""Landmarks around each part, in order."""

PARTS: tuple[str, ...] = tuple(OUTLINES)


def hull_mask(landmarks: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """bool H×W: the pixels inside the convex hull of landmarks (n×2, (x, y) in pixels)."""
    return fill_polygon(convex_hull(landmarks), size)


def part_masks(landmarks: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """bool K×H×W, the parts in the order of `PARTS`, from landmarks 468×2 in pixels.

    All lie inside the hull of the landmarks. No two share a pixel: in a head turned far aside, where the polygons
    fold over one another, a pixel goes to the first part of the list, the smaller ones before the larger.
    """
    free = hull_mask(landmarks, size)
    masks = np.empty((len(PARTS), *size), bool)
    for mask, outline in zip(masks, OUTLINES.values(), strict=True):
        mask[:] = fill_polygon(landmarks[list(outline)], size) & free
        free &= ~mask
    return masks


def part_centres(landmarks: np.ndarray) -> np.ndarray:
    """float32 K×2: the mean of the landmarks around each part, for whatever wants one point per part."""
    return np.stack([landmarks[list(outline)].mean(axis=0) for outline in OUTLINES.values()]).astype(np.float32)


VARIABLE = "DAPL_FACE_MODEL"
"""Environment variable with the path of the model."""
MAX_FACES = 10
"""More in one image are not looked for."""
_WHERE = (
    "download face_landmarker.task from MediaPipe's Face Landmarker model page and give its path with --face-model or "
    f"the environment variable {VARIABLE}"
)
_SAME_FACE = 0.3
"""Two finds whose boxes overlap by this share of the smaller one are one face."""


def face_model(path: str | Path | None = None) -> Path:
    """The model's file: ``path``, else $DAPL_FACE_MODEL."""
    given = path or os.environ.get(VARIABLE)
    if not given:
        raise DaplError(f"finding faces needs a model, and none was given; {_WHERE}.")
    file = Path(given).expanduser()
    if not file.is_file():
        raise DaplError(f"{file}: no such file, where the face model should be; {_WHERE}.")
    return file


class FaceFinder:
    """Landmarks of all faces of an image. Close it, or use it in a ``with``, so that MediaPipe ends its threads."""

    def __init__(self, model: Path) -> None:
        with needing("finding faces needs mediapipe", "faces"):
            import mediapipe
            from mediapipe.tasks.python import BaseOptions, vision
        self._image, self._format = mediapipe.Image, mediapipe.ImageFormat.SRGB
        try:
            with _quiet():
                options = vision.FaceLandmarkerOptions(
                    # the content, not the path: MediaPipe looks for relative paths in its own folder
                    base_options=BaseOptions(model_asset_buffer=read_bytes(model, _WHERE)),
                    num_faces=MAX_FACES,
                )
                self._landmarker = vision.FaceLandmarker.create_from_options(options)
                self._detect(np.zeros((64, 64, 3), np.uint8))  # all it has to say, it says by the first image
        except (RuntimeError, ValueError) as error:
            raise DaplError(f"{model}: not a model of MediaPipe's Face Landmarker ({error}); {_WHERE}.") from error

    def __enter__(self) -> FaceFinder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._landmarker.close()

    def __call__(self, image: np.ndarray) -> list[np.ndarray]:
        """Landmarks, float32 468×2 in pixels, of each face in ``image`` (uint8 H×W×3, RGB), the largest face first.

        MediaPipe sees the image at 128×128 when it looks for faces, and misses those smaller than about a tenth of
        its width. Where there is none in the whole image, square windows of it are searched, then smaller ones.
        """
        faces = self._detect(image)
        for windows in _windows(*image.shape[:2]):
            if faces:
                break
            faces = _distinct([face for window in windows for face in self._detect_around(image, window)])
        return sorted(faces, key=_area, reverse=True)

    def _detect(self, image: np.ndarray) -> list[np.ndarray]:
        height, width = image.shape[:2]
        found = self._landmarker.detect(self._image(image_format=self._format, data=np.ascontiguousarray(image)))
        scale = np.array([width, height])
        return [
            (np.array([(point.x, point.y) for point in face[:LANDMARKS]]) * scale).astype(np.float32)
            for face in found.face_landmarks
        ]

    def _detect_around(self, image: np.ndarray, window: tuple[int, int, int]) -> list[np.ndarray]:
        """Faces of a window (top, left, side), looked at again around each: the window's edge may have cut them."""
        faces = []
        for rough in self._detect_in(image, window):
            x1, y1, x2, y2 = bounding_box(rough)
            side = int(2 * max(x2 - x1, y2 - y1))
            top, left = round((y1 + y2 - side) / 2), round((x1 + x2 - side) / 2)
            again = self._detect_in(image, (max(0, top), max(0, left), side))
            faces += [max(again, key=_area)] if again else [rough]
        return faces

    def _detect_in(self, image: np.ndarray, window: tuple[int, int, int]) -> list[np.ndarray]:
        top, left, side = window
        offset = np.array([left, top], np.float32)
        return [face + offset for face in self._detect(image[top : top + side, left : left + side])]


def _windows(height: int, width: int) -> Iterator[list[tuple[int, int, int]]]:
    """(top, left, side) of squares that overlap by half: as large as fit, then half of that, never below 128 pixels."""
    for side in (min(height, width), min(height, width) // 2):
        if side >= 128 and side < max(height, width):
            yield [(top, left, side) for top in _starts(height, side) for left in _starts(width, side)]


def _starts(length: int, side: int) -> list[int]:
    count = 1 + -(-2 * (length - side) // side)
    return np.linspace(0, length - side, count).round().astype(int).tolist()


def _distinct(faces: list[np.ndarray]) -> list[np.ndarray]:
    """Each face once, though it was found in two windows."""
    kept: list[np.ndarray] = []
    for face in sorted(faces, key=_area, reverse=True):
        if not any(_overlap(face, other) > _SAME_FACE for other in kept):
            kept.append(face)
    return kept


def _overlap(face: np.ndarray, other: np.ndarray) -> float:
    corner, end = np.maximum(face.min(0), other.min(0)), np.minimum(face.max(0), other.max(0))
    return float((end - corner).clip(0).prod() / min(_area(face), _area(other)))


def _area(face: np.ndarray) -> float:
    """The area of the box around a face."""
    return float((face.max(axis=0) - face.min(axis=0)).prod())


@contextmanager
def _quiet() -> Iterator[None]:
    """MediaPipe's compiled part greets on standard error, and no setting silences it; a failure is an exception."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
