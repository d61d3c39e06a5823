"""Outlines of regions as short texts, the path data of SVG: what every page and figure draws instead of a box."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

POINTS = 48
"""Points per closed line, at most: enough for a smooth line at the size of a page."""
_LEAST = 8
"""Points of the shortest line that is drawn beside a longer one: a shorter one is a speck of two or three pixels."""
_SMOOTHED, _SHARE = 4, 14
"""Neighbouring points that are averaged, so that a line does not follow the stairs of the pixels: at least so many, and
of a long line one in so many of its points."""

_TOGETHER, _PIXELS = 256, 2**20
"""Regions that are outlined together, at most, and pixels within their bounds: what is made of them stays small."""
_FINE = 160
"""Images of this many pixels per side are outlined at half their resolution."""

Line = list[tuple[float, float]]
"""Points (x, y) of one closed line."""
Bounds = tuple[int, int, int, int]
"""Left, top, right, bottom."""
Ends = tuple[tuple[float, float], tuple[float, float]]
"""Two points (x, y)."""


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
    found = outlines_of(region[None], [_bounds(region) if box is None else box])[0]
    return None if found is None else found.path


class Outline(NamedTuple):
    """The outline of a region."""

    path: str
    """Path data of SVG, in pixels."""
    main: Bounds
    """What `main_bounds` says of it."""
    ends: Ends
    """The leftmost and the rightmost point of its line with the most points."""
    bounds: Bounds
    """Of all its lines."""


def outlines_of(regions: np.ndarray, boxes: Sequence[Sequence[int] | None]) -> list[Outline | None]:
    """The outlines of regions (bool M×H×W) with these bounds, None where there are none; as `outline_of` each.

    Many of them are traced, smoothed and written together, one below the other: to begin takes longer than to go on.

    >>> squares = np.zeros((2, 8, 8), dtype=bool)
    >>> squares[0, 2:6, 2:6] = squares[1, 1:7, 1:7] = True
    >>> first, second = outlines_of(squares, [(2, 2, 6, 6), None])
    >>> first.path == outline_of(squares[0]), first.main, second
    (True, (2, 2, 6, 6), None)
    """
    sizes = [0 if box is None else (box[2] - box[0]) * (box[3] - box[1]) for box in boxes]
    found: list[Outline | None] = []
    while len(found) < len(boxes):
        start = len(found)
        fit = int(np.searchsorted(np.cumsum(sizes[start : start + _TOGETHER]), _PIXELS, side="right"))
        some = slice(start, start + max(1, fit))
        found += _outlines_together(regions[some], boxes[some])
    return found


def _outlines_together(regions: np.ndarray, boxes: Sequence[Sequence[int] | None]) -> list[Outline | None]:
    step = 2 if regions.shape[2] >= _FINE else 1  # of every second pixel: a quarter of the work, and nobody sees it
    cuts = [
        None if box is None else regions[m, box[1] : box[3] : step, box[0] : box[2] : step]
        for m, box in enumerate(boxes)
    ]
    # Around each a line of ground, so that lines are closed and do not run into the next one.
    starts = np.cumsum([0, *(0 if cut is None else cut.shape[0] + 2 for cut in cuts)])
    width = max((cut.shape[1] + 2 for cut in cuts if cut is not None), default=0)
    ground = np.zeros((starts[-1], width), dtype=bool)
    for cut, start in zip(cuts, starts[:-1].tolist(), strict=True):
        if cut is not None:
            ground[start + 1 : start + 1 + cut.shape[0], 1 : 1 + cut.shape[1]] = cut
    outlines: list[Outline | None] = [None] * len(boxes)
    if not ground.any():
        return outlines
    points, bounds = _closed_lines(ground)
    region_of_line = np.searchsorted(starts, points.imag[bounds[:-1]], side="right") - 1
    lengths = np.diff(bounds)
    points.imag -= np.repeat(starts[region_of_line], lengths)  # from here on as if each stood alone, to the last bit
    # Specks are left out, unless there is nothing else: then the longest line, of equally long ones the last.
    drawn = lengths > _LEAST
    for m in set(region_of_line.tolist()) - set(region_of_line[drawn].tolist()):
        own = np.flatnonzero(region_of_line == m)
        drawn[own[len(own) - 1 - lengths[own][::-1].argmax()]] = True
    shown = np.flatnonzero(drawn)
    places, counts = _smooth(points, bounds[shown], lengths[shown] - 1)
    owner = region_of_line[shown]
    corners = np.array([(0, 0) if box is None else box[:2] for box in boxes], dtype=float) - 0.5 * step
    tenths = np.rint((places * step + np.repeat(corners[owner], counts, axis=0)) * 10).astype(int)
    first = np.cumsum(counts) - counts
    low, high = np.minimum.reduceat(tenths, first), np.maximum.reduceat(tenths, first)
    areas = (high - low).prod(1)
    edges = np.concatenate((low // 10, -(-high // 10)), axis=1).tolist()
    ends = _ends(tenths, counts, first, low[:, 0], high[:, 0])
    texts: dict[int, str] = {}
    largest: dict[int, int] = {}
    longest: dict[int, int] = {}
    bounds_of: dict[int, list[Bounds]] = {}
    area, points_of = areas.tolist(), counts.tolist()
    for line, (m, text) in enumerate(zip(owner.tolist(), _line_texts(tenths, counts), strict=True)):
        texts[m] = texts.get(m, "") + text
        bounds_of.setdefault(m, []).append(tuple(edges[line]))
        if area[line] > area[largest.setdefault(m, line)]:
            largest[m] = line
        if points_of[line] > points_of[longest.setdefault(m, line)]:
            longest[m] = line
    for m, text in texts.items():
        outlines[m] = Outline(text, tuple(edges[largest[m]]), ends[longest[m]], together(bounds_of[m]))
    return outlines


def together(bounds: Iterable[Bounds]) -> Bounds:
    """What holds all of them.

    >>> together([(0, 2, 5, 4), (3, 1, 4, 9)])
    (0, 1, 5, 9)
    """
    left, top, right, bottom = zip(*bounds, strict=True)
    return min(left), min(top), max(right), max(bottom)


def _ends(
    tenths: np.ndarray, counts: np.ndarray, first: np.ndarray, leftmost: np.ndarray, rightmost: np.ndarray
) -> list[Ends]:
    """The leftmost and the rightmost point of each line; of several the highest on the left, the lowest on the right.

    ``tenths``: points (n×2), so many per line from its first on; ``leftmost``, ``rightmost``: x, per line.
    """
    x, y = tenths.T
    far = np.iinfo(y.dtype).max
    top = np.minimum.reduceat(np.where(x == np.repeat(leftmost, counts), y, far), first)
    bottom = np.maximum.reduceat(np.where(x == np.repeat(rightmost, counts), y, -far), first)
    corners = (np.stack((leftmost, top, rightmost, bottom), axis=1) / 10).tolist()
    return [((a, b), (c, d)) for a, b, c, d in corners]


def _closed_lines(ground: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lines around the pixels that are set in a map (bool h×w, nothing set at its border), one after the other.

    Points (n, as x + iy), each line ending with its first point once more, and where they begin and end (lines + 1). A
    line goes from edge to edge of pixels, which lie on its right; pixels that touch at a corner only are not of one
    piece.
    """
    width = ground.shape[1]
    pixels = ground.ravel()
    across, down = (np.flatnonzero(pixels[far:] != pixels[:-far]) for far in (1, width))
    above, before = pixels[down], pixels[across]  # whether the first of the two is the one that is set
    by_edge = (down[~above] + width, across[before], down[above], across[~before] + 1)
    # An edge: its pixel, and on which side of it the edge is: above, on the right, below, on the left.
    pixel, side = np.concatenate(by_edge), np.repeat(np.arange(4), [len(own) for own in by_edge])
    ahead = pixel + np.array([1, width, -1, -width])[side]
    beside = ahead + np.array([-width, 1, width, -1])[side]
    goes_on, turns = pixels[ahead], pixels[ahead] & pixels[beside]
    following = np.where(turns, beside, np.where(goes_on, ahead, pixel))
    following_side = (side + np.where(turns, 3, np.where(goes_on, 0, 1))) & 3
    # Pixels that have an edge are counted: a table of these alone, by pixel and side, stays in the cache.
    own = np.empty(pixels.size, dtype=np.int32)
    own[pixel] = np.arange(len(pixel), dtype=np.int32)  # the number of one of its edges stands for the pixel
    number = np.empty(4 * len(pixel), dtype=np.int32)
    number[4 * own[pixel] + side] = np.arange(len(pixel), dtype=np.int32)
    successor = number[4 * own[following] + following_side].tolist()
    # A line is met first, row by row, at an outer corner (nothing above, nothing on the left), or, of one around a
    # hole, at the corner of the hole.
    outer = by_edge[3][~pixels[by_edge[3] - width]]
    hole = by_edge[2] + width
    hole = hole[pixels[hole - 1] & pixels[hole - width - 1]]
    corners = np.concatenate((number[4 * own[outer] + 3], number[4 * own[hole - width] + 2]))
    line: list[int] = []
    ends, add = [0], line.append
    for edge in corners[np.argsort(np.concatenate((outer, hole)))].tolist():
        if successor[edge] < 0:  # on a line already
            continue
        while edge >= 0:  # once around, and the first one again
            add(edge)
            successor[edge], edge = -1, successor[edge]
        ends.append(len(line))
    points = np.array([-0.5j, 0.5, 0.5j, -0.5])[side]
    row, column = np.divmod(pixel, width)
    points.real += column
    points.imag += row
    return points[line], np.array(ends)


def _bounds(region: np.ndarray) -> Bounds:
    """Left, top, right and bottom of the pixels that belong to it; zeros where none does."""
    across, down = np.flatnonzero(region.any(0)), np.flatnonzero(region.any(1))
    return (int(across[0]), int(down[0]), int(across[-1]) + 1, int(down[-1]) + 1) if len(across) else (0, 0, 0, 0)


def _smooth(points: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Closed lines with fewer points and without the stairs of pixels, n×2; and how many points each is left with.

    ``points``: n, as x + iy, for NumPy takes numbers faster than pairs; each line has so many, from its start on.
    """
    steps = np.where(counts <= _LEAST, 1, np.maximum(2, -(-counts // POINTS)))
    windows = np.where(counts < 2 * steps * _SMOOTHED, 1, np.maximum(_SMOOTHED, counts // _SHARE))
    windows[counts <= _LEAST] = 1
    left = -(-counts // steps)
    line = np.repeat(np.arange(len(starts)), left)  # of every point that is left
    place = (np.arange(len(line)) - np.repeat(np.cumsum(left) - left, left)) * steps[line]
    # The sum of a window is the difference of two sums from the beginning on; a window that goes beyond the end of its
    # line goes on at its beginning. Coordinates are halves of pixels: sums of them are exact.
    sums = np.concatenate(([0], points)).cumsum()
    first = starts[line] + place
    past = first + windows[line]
    over = past > (starts + counts)[line]
    past[over] -= counts[line[over]]
    inside = sums[past] - sums[first]
    inside[over] += (sums[starts + counts] - sums[starts])[line[over]]
    return inside.view(float).reshape(-1, 2) / windows[line, None], left


def _words(tenths: np.ndarray) -> list[str]:
    """Numbers of tenths as texts."""
    largest = int(np.abs(tenths).max(initial=0))
    if largest < _LARGEST:  # one look into a table for all of them: they come again and again
        return _texts(1 << largest.bit_length())[tenths].tolist()
    return [_text(number) for number in tenths.tolist()]


_LARGEST = 2**14


@cache
def _texts(end: int) -> np.ndarray:
    """Those from 0 up to an end, then those from minus the end up to −1, as NumPy counts from the last one back."""
    return np.array([_text(number) for number in (*range(end), *range(-end, 0))], dtype=object)


def _text(tenths: int) -> str:
    return str(tenths / 10).removesuffix(".0")


def _line_texts(tenths: np.ndarray, counts: Sequence[int] | np.ndarray) -> list[str]:
    """Closed lines, one after the other (n×2), each of so many points, as the path data of SVG."""
    words = _words(tenths.ravel())
    texts, start = [], 0
    for count in np.asarray(counts).tolist():
        end = start + 2 * count
        texts.append(f"M{words[start]} {words[start + 1]}L{' '.join(words[start + 2 : end])}Z")
        start = end
    return texts


def path_of(lines: Sequence[Sequence[Sequence[float]] | np.ndarray]) -> str:
    """Closed lines as the path data of SVG.

    >>> path_of([[(0, 0), (4, 0), (4, 2.5)]])
    'M0 0L4 0 4 2.5Z'
    """
    if not lines:
        return ""
    points = np.concatenate([np.asarray(line, dtype=float) for line in lines])
    return "".join(_line_texts(np.rint(points * 10).astype(int), [len(line) for line in lines]))


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


def main_bounds(path: str) -> Bounds:
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
