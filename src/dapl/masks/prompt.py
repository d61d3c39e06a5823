"""What a maker of masks is told, and what it has to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dapl.masks.polygons import Box


@dataclass(frozen=True)
class Prompt:
    """What is known of where the object is; any of them may be None.

    >>> Prompt(box=(20, 10, 90, 70)).points is None
    True
    """

    box: Box | None = None
    points: np.ndarray | None = None
    """n×2, (x, y) in pixels, all on the object."""
    mask: np.ndarray | None = None
    """bool H×W, a rough first guess."""
    likely: np.ndarray | None = None
    """float H×W in [0, 1], how likely a pixel lies on the object; read by GrabCut alone."""


class Refiner(Protocol):
    """An image and a prompt in, a mask out; the same in, the same out."""

    name: str
    """One of `dapl.masks.refine.METHODS`."""

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        """``image`` uint8 H×W×3 RGB → bool H×W. The mask may be empty where nothing was found."""
        ...
