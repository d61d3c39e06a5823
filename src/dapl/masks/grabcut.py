"""GrabCut (Rother et al., 2004), by OpenCV: colours inside against colours outside, no weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from dapl.errors import DaplError
from dapl.masks.refine import Prompt, filled_box

ITERATIONS = 4
BAND = 0.08
"""Half width of the band around the edge of a given mask in which GrabCut decides, as a share of √(its area)."""
CENTRE = 0.7
"""Without any prompt, the object is looked for in the middle of the picture, in this share of each side."""
POINT = 0.02
"""Radius around a given point that is surely on the object, as a share of the picture's shorter side."""


class GrabCutRefiner:
    """From the prompt's mask, else its box, else the middle of the picture; points are surely on the object."""

    name = "grabcut"

    def __init__(self) -> None:
        try:
            import cv2
        except ImportError as error:
            raise DaplError(f"GrabCut needs OpenCV ({error}); pip install 'dapl[masks]'.") from error
        self._cv2: Any = cv2

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        trimap = self._from_mask(prompt.mask) if prompt.mask is not None else self._from_box(image.shape[:2], prompt)
        for x, y in [] if prompt.points is None else prompt.points:
            radius = max(1, round(POINT * min(image.shape[:2])))
            self._cv2.circle(trimap, (int(x), int(y)), radius, self._cv2.GC_FGD, thickness=-1)
        inside = (trimap == self._cv2.GC_FGD) | (trimap == self._cv2.GC_PR_FGD)
        if inside.all() or not inside.any():  # GrabCut needs pixels of both kinds to learn colours from
            return inside
        self._cv2.setRNGSeed(0)  # its clusters start at random
        background, foreground = np.zeros((1, 65)), np.zeros((1, 65))
        self._cv2.grabCut(
            np.ascontiguousarray(image[..., ::-1]), trimap, None, background, foreground, ITERATIONS,
            self._cv2.GC_INIT_WITH_MASK,
        )  # fmt: skip
        return (trimap == self._cv2.GC_FGD) | (trimap == self._cv2.GC_PR_FGD)

    def _from_mask(self, mask: np.ndarray) -> np.ndarray:
        """Sure beyond the band around the mask's edge, inside and outside; undecided within."""
        cv2 = self._cv2
        reach = max(1, round(BAND * float(mask.sum()) ** 0.5))
        kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
        solid = mask.astype(np.uint8)
        trimap = np.where(solid, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
        trimap[cv2.erode(solid, kernel, borderType=cv2.BORDER_REPLICATE) > 0] = cv2.GC_FGD
        trimap[cv2.dilate(solid, kernel) == 0] = cv2.GC_BGD
        return trimap

    def _from_box(self, size: tuple[int, int], prompt: Prompt) -> np.ndarray:
        """Surely background outside the box, undecided inside."""
        height, width = size
        margin = (1 - CENTRE) / 2
        box = prompt.box or (width * margin, height * margin, width * (1 - margin), height * (1 - margin))
        return np.where(filled_box(box, size), self._cv2.GC_PR_FGD, self._cv2.GC_BGD).astype(np.uint8)
