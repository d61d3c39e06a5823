"""From a rough idea of where the object is to a mask of its pixels: the refiners and how one is made.

- ``sam``: Segment Anything (Kirillov et al., 2023) from a local folder or the hub, by way of transformers;
- ``grabcut``: GrabCut (Rother et al., 2004) from OpenCV, which needs no weights;
- ``none``: the rough idea itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dapl.errors import DaplError, nearest

METHODS = ("sam", "grabcut", "none")


@dataclass(frozen=True)
class Prompt:
    """What is known of where the object is; any of them may be None."""

    box: tuple[float, float, float, float] | None = None
    """XYXY in pixels."""
    points: np.ndarray | None = None
    """n×2, (x, y) in pixels, all on the object."""
    mask: np.ndarray | None = None
    """bool H×W, a rough first guess."""


class Refiner(Protocol):
    """A picture and a prompt in, a mask out; the same in, the same out."""

    name: str
    """One of `METHODS`."""

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        """``image`` uint8 H×W×3 RGB → bool H×W. The mask may be empty where nothing was found."""
        ...


class Unrefined:
    """The mask of the prompt, else its box filled, else the whole picture."""

    name = "none"

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        if prompt.mask is not None:
            return prompt.mask.astype(bool)
        return filled_box(prompt.box, image.shape[:2])


def create_refiner(method: str, model: str | None = None) -> Refiner:
    """The refiner called ``method``; ``model`` is the folder or hub name of SAM's weights and for nothing else."""
    if method not in METHODS:
        raise DaplError(f"there is no refinement '{method}'{nearest(method, METHODS)}")
    if method == "sam":
        from dapl.masks.sam import SamRefiner

        return SamRefiner(model)
    if model is not None:
        raise DaplError(f"a SAM model was given ({model}), but the refinement is '{method}'; give 'sam', or no model.")
    if method == "grabcut":
        from dapl.masks.grabcut import GrabCutRefiner

        return GrabCutRefiner()
    return Unrefined()


def filled_box(box: tuple[float, float, float, float] | None, size: tuple[int, int]) -> np.ndarray:
    """bool H×W: the pixels whose centre lies in ``box`` (XYXY); all of them where there is no box."""
    if box is None:
        return np.ones(size, bool)
    rows, columns = np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5
    x1, y1, x2, y2 = box
    return ((rows >= y1) & (rows < y2))[:, None] & ((columns >= x1) & (columns < x2))[None, :]
