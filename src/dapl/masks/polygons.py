"""Convex hulls and filled polygons, in pixel coordinates: pixel (i, j) has its centre at (j + ½, i + ½)."""

from __future__ import annotations

import numpy as np

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""XYXY in pixels."""


def convex_hull(points: np.ndarray) -> np.ndarray:
    """The corners (m×2) of the smallest convex polygon around points (n×2), one after another around it.

    >>> convex_hull(np.array([[0, 0], [4, 0], [2, 1], [4, 4], [0, 4], [2, 0]])).tolist()
    [[0, 0], [4, 0], [4, 4], [0, 4]]
    """
    ordered = np.unique(points, axis=0)  # by x, then by y
    if len(ordered) < 3:
        return ordered
    pairs = [(x, y) for x, y in ordered.tolist()]  # plain numbers are many times faster one by one
    return np.array(_chain(pairs)[:-1] + _chain(pairs[::-1])[:-1])


def _chain(points: list[Point]) -> list[Point]:
    """One half of the hull: the points at which a walk along them always turns the same way (Andrew, 1979)."""
    chain: list[Point] = []
    for point in points:
        while len(chain) >= 2 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _turn(start: Point, middle: Point, end: Point) -> float:
    """Above 0 for a turn to one side, below for the other, 0 straight on."""
    return (middle[0] - start[0]) * (end[1] - start[1]) - (middle[1] - start[1]) * (end[0] - start[0])


def fill_polygon(corners: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """bool H×W: the pixels whose centre lies inside the polygon (m×2, closed by itself).

    Two polygons with a common edge share no pixel. Where a polygon crosses itself, what is enclosed twice is outside.

    >>> fill_polygon(np.array([[1, 0], [4, 0], [4, 2], [1, 2]]), (3, 5)).astype(int)
    array([[0, 1, 1, 1, 0],
           [0, 1, 1, 1, 0],
           [0, 0, 0, 0, 0]])
    """
    height, width = size
    corners = np.asarray(corners, np.float64)
    if len(corners) < 3:
        return np.zeros(size, bool)
    x1, y1 = corners.T
    x2, y2 = np.roll(corners, -1, axis=0).T
    y = np.arange(height)[:, None] + 0.5
    rows, edges = np.nonzero((y1 <= y) != (y2 <= y))
    slope = (x2 - x1)[edges] / (y2 - y1)[edges]
    x = x1[edges] + (y[rows, 0] - y1[edges]) * slope
    # a row is inside from the first pixel beyond a crossing to the last one before the next
    columns = np.clip(np.ceil(x - 0.5), 0, width).astype(np.intp)
    crossings = np.zeros((height, width + 1), np.int32)
    np.add.at(crossings, (rows, columns), 1)
    return np.cumsum(crossings, axis=1)[:, :width] % 2 == 1


def bounding_box(points: np.ndarray) -> Box:
    """The box around points (n×2)."""
    (x1, y1), (x2, y2) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return x1, y1, x2, y2


def filled_box(box: Box | None, size: tuple[int, int]) -> np.ndarray:
    """bool H×W: the pixels whose centre lies in ``box`` (XYXY); all of them where there is no box.

    >>> filled_box((1, 0, 3, 1), (2, 4)).astype(int).tolist()
    [[0, 1, 1, 0], [0, 0, 0, 0]]
    """
    if box is None:
        return np.ones(size, bool)
    rows, columns = np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5
    x1, y1, x2, y2 = box
    return ((rows >= y1) & (rows < y2))[:, None] & ((columns >= x1) & (columns < x2))[None, :]
