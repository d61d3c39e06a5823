"""The first guess of a face's mask: the convex hull of its landmarks."""

from __future__ import annotations

import numpy as np

from dapl.masks.polygons import convex_hull, fill_polygon


def hull_mask(landmarks: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """bool H×W: the pixels inside the convex hull of landmarks (n×2, (x, y) in pixels)."""
    return fill_polygon(convex_hull(landmarks), size)
