"""Ten parts of a face as polygons between MediaPipe's landmarks.

Left and right are the viewer's: the left eye is the one on the left of an upright picture (the person's right eye,
which MediaPipe calls right). So a part's name can be checked by looking at the picture.
"""

from __future__ import annotations

import numpy as np

from dapl.masks.hull import hull_mask
from dapl.masks.polygons import fill_polygon

LANDMARKS = 468
"""Of the face mesh. The model's further ten points lie on the irises."""

OUTLINES: dict[str, tuple[int, ...]] = {
    # with the lids: the opening alone is a few pixels high, and of no area when the eye is closed
    "left eye": (130, 247, 30, 29, 27, 28, 56, 190, 243, 112, 26, 22, 23, 24, 110, 25),
    "right eye": (359, 467, 260, 259, 257, 258, 286, 414, 463, 341, 256, 252, 253, 254, 339, 255),
    "left brow": (70, 63, 105, 66, 107, 55, 65, 52, 53, 46),
    "right brow": (300, 293, 334, 296, 336, 285, 295, 282, 283, 276),
    "nose": (168, 193, 245, 188, 174, 217, 198, 209, 49, 129, 64, 98, 97, 2,
             326, 327, 294, 358, 279, 429, 420, 437, 399, 412, 465, 417),
    "mouth": (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185),
    "left cheek": (234, 116, 117, 118, 119, 120, 47, 126, 142, 203, 206, 216, 212, 214, 138, 58, 132, 93),
    "right cheek": (454, 345, 346, 347, 348, 349, 277, 355, 371, 423, 426, 436, 432, 434, 367, 288, 361, 323),
    "forehead": (21, 54, 103, 67, 109, 10, 338, 297, 332, 284, 251, 300, 293, 334, 296, 336, 9, 107, 66, 105, 63, 70),
    "chin": (135, 136, 150, 149, 176, 148, 152, 377, 400, 378, 379, 365,
             364, 430, 424, 406, 313, 18, 83, 182, 204, 210),
}  # fmt: skip
"""Landmarks around each part, in order."""

PARTS: tuple[str, ...] = tuple(OUTLINES)


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
    """float32 K×2: the mean of the landmarks around each part, for whatever wants a point a part."""
    return np.stack([landmarks[list(outline)].mean(axis=0) for outline in OUTLINES.values()]).astype(np.float32)
