"""Outlines of regions as short texts, the path data of SVG: what every page and figure draws instead of a box."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

POINTS = 48
"""Points per closed line, at most: enough for a smooth line at the size of a page."""
_LEAST = 8
"""Points of the shortest line that is drawn beside a longer one: a shorter one is a speck of two or three pixels."""
_SMOOTHED, _SHARE = 4, 14
"""Neighbouring points that are averaged, so that a line does not follow the stairs of the pixels: at least so many, and
of a long line one in so many of its points."""

_FINE = 160
"""Images of this many pixels per side are outlined at half their resolution."""

Line = list[tuple[float, float]]
"""Points (x, y) of one closed line."""


def outline_of(region: np.ndarray, box: Sequence[int] | None = None) -> str | None:
    """The outline of a region (bool H×W) in its own pixels; None where the region is empty.

    Specks are left out, unless the region is nothing but specks: then the longest line stands for it.

    Args:
        region: which pixels belong to it.
        box: left, top, right and bottom of the region where they are known, which saves looking at the whole image.

    Example:
        >>> square = np.zeros((8, 8), dtype=bool)
        >>> square[2:6, 2:6] = True
        >>> [len(line) for line in lines_of(outline_of(square) or "")]
        [8]
    """
    return outlines_of(region[None], [_bounds(region) if box is None else box])[0]


def outlines_of(regions: np.ndarray, boxes: Sequence[Sequence[int] | None]) -> list[str | None]:
    """The outlines of regions (bool M×H×W) with these bounds, None where there are none; as `outline_of` each.

    All of them are traced together, one below the other: the tracer takes longer to begin than to follow a line.

    >>> squares = np.zeros((2, 8, 8), dtype=bool)
    >>> squares[0, 2:6, 2:6] = squares[1, 1:7, 1:7] = True
    >>> outlines_of(squares, [(2, 2, 6, 6), None]) == [outline_of(squares[0]), None]
    True
    """
    from contourpy import LineType, contour_generator

    step = 2 if regions.shape[2] >= _FINE else 1  # of every second pixel: a quarter of the work, and nobody sees it
    cuts = [
        None if box is None else regions[m, box[1] : box[3] : step, box[0] : box[2] : step]
        for m, box in enumerate(boxes)
    ]
    # Around each a line of ground, so that lines are closed and do not run into the next one.
    starts = np.cumsum([0, *(0 if cut is None else cut.shape[0] + 2 for cut in cuts)])
    width = max((cut.shape[1] + 2 for cut in cuts if cut is not None), default=0)
    ground = np.zeros((starts[-1], width), dtype=np.float32)
    if not ground.size:
        return [None] * len(boxes)
    for cut, start in zip(cuts, starts[:-1], strict=True):
        if cut is not None:
            ground[start + 1 : start + 1 + cut.shape[0], 1 : 1 + cut.shape[1]] = cut
    found: list[list[np.ndarray]] = [[] for _ in boxes]
    for line in contour_generator(z=ground, name="serial", line_type=LineType.Separate).lines(0.5):
        points = np.asarray(line)
        found[int(np.searchsorted(starts, points[0, 1], side="right")) - 1].append(points)
    outlines = []
    for box, start, every in zip(boxes, starts[:-1], found, strict=True):
        lines = [line for line in every if len(line) > _LEAST] or sorted(every, key=len)[-1:]
        corner = (0, 0) if box is None else (box[0] - 0.5 * step, box[1] - (start + 0.5) * step)
        outlines.append(path_of([_smooth(line) * step + corner for line in lines]) if lines else None)
    return outlines


def _bounds(region: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the pixels that belong to it; zeros where none does."""
    across, down = np.flatnonzero(region.any(0)), np.flatnonzero(region.any(1))
    return (int(across[0]), int(down[0]), int(across[-1]) + 1, int(down[-1]) + 1) if len(across) else (0, 0, 0, 0)


def _smooth(line: np.ndarray) -> np.ndarray:
    """A closed line (n×2, the first point once more at its end) with fewer points and without the stairs of pixels."""
    line = line[:-1]
    if len(line) <= _LEAST:
        return line
    step = max(2, -(-len(line) // POINTS))
    if len(line) < 2 * step * _SMOOTHED:
        return line[::step]
    window = max(_SMOOTHED, len(line) // _SHARE)
    sums = np.concatenate((np.zeros((1, 2)), line, line[: window - 1])).cumsum(0)
    return (sums[window:] - sums[:-window])[::step] / window


def path_of(lines: Sequence[Sequence[Sequence[float]] | np.ndarray]) -> str:
    """Closed lines as the path data of SVG.

    >>> path_of([[(0, 0), (4, 0), (4, 2.5)]])
    'M0 0L4 0 4 2.5Z'
    """

    def text(line: Sequence[Sequence[float]] | np.ndarray) -> str:
        values = np.round(np.asarray(line, dtype=float).ravel(), 1).tolist()
        return " ".join(map(str, values)).replace(".0", "").replace(" ", "L", 2).replace("L", " ", 1)

    return "".join(f"M{text(line)}Z" for line in lines)


def lines_of(path: str) -> list[Line]:
    """The closed lines of an outline.

    >>> lines_of("M0 0L4 0 4 2.5Z")
    [[(0.0, 0.0), (4.0, 0.0), (4.0, 2.5)]]
    """
    lines = []
    for part in path.split("Z")[:-1]:
        values = [float(value) for value in part[1:].replace("L", " ").split()]
        lines.append(list(zip(values[::2], values[1::2], strict=True)))
    return lines


def main_bounds(path: str) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the largest closed line: what a close-up of a scattered region shows.

    >>> main_bounds("M0 0L4 0 4 2.5ZM9 9L9.5 9 9.5 9.5Z")
    (0, 0, 4, 3)
    """

    best = None
    for part in path.split("Z")[:-1]:
        values = [float(value) for value in part[1:].replace("L", " ").split()]
        left, top, right, bottom = min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])
        area = (right - left) * (bottom - top)
        if best is None or area > best[0]:
            best = area, math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
    if best is None:
        raise ValueError("an outline without a line has no bounds")
    return best[1:]


def moved(path: str, left: float, top: float, scale: float = 1.0) -> str:
    """The same outline in a cut of the image that begins at (left, top), enlarged by ``scale``.

    >>> moved("M10 10L14 10 14 12Z", 10, 10, 2)
    'M0 0L8 0 8 4Z'
    """
    return path_of([[((x - left) * scale, (y - top) * scale) for x, y in line] for line in lines_of(path)])
