"""One large image with the outlines of all reasons, and where their names stand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dapl.explain.evidence import Reason
from dapl.metrics.naming import groups_of, part_text, plain_name, share_text

_GAP = 0.1
"""Least distance of two names, as a share of the image's side."""


@dataclass(frozen=True)
class Label:
    """The name of a reason, or of several that look at the same spot. Lengths are pixels of the image."""

    prototypes: tuple[int, ...]
    title: str
    """Its head, or heads; prototypes where a system has no heads."""
    text: str
    """What it is called; where the data names no parts, how much of it lies on the object, where that is known."""
    colour: str
    dashed: bool
    """Whether its lines are dashed, because all colours are taken."""
    background: bool
    point: tuple[float, float]
    """(x, y) on the outline, where the line to the name ends."""
    left: bool
    """Whether the name stands on the left of the image."""
    y: float
    """The height of the name."""


def labels_of(rows: Sequence[Reason], heads: int, size: int) -> list[Label]:
    """Names for the reasons that have a region, half of them on each side of an image of size × size pixels.

    Reasons that look at the same spot share one name. ``heads``: 1 for a system without heads.
    """
    shown = {row.prototype: row for row in rows if row.outline is not None}
    together = groups_of({j: [other for other in row.same_spot if other in shown] for j, row in shown.items()})
    grouped = {j for group in together for j in group}
    groups = [*together, *([j] for j in shown if j not in grouped)]
    ends = {tuple(group): _ends(shown[group[0]].outline or "") for group in groups}
    order = sorted(ends, key=lambda group: sum(ends[group][side][0] for side in (0, 1)))
    named = any(row.parts or row.here for row in rows)
    labels = []
    for left, members in ((True, order[: (len(order) + 1) // 2]), (False, order[(len(order) + 1) // 2 :])):
        points = {group: ends[group][0 if left else 1] for group in members}
        members = sorted(members, key=lambda group: points[group][1])
        heights = spread([points[group][1] for group in members], _GAP * size, size)
        for group, y in zip(members, heights, strict=True):
            labels.append(_label([shown[j] for j in group], heads, points[group], left, y, named))
    return labels


def group_notes(rows: Sequence[Reason], heads: int) -> list[str]:
    """For each group of reasons that look at the same spot, who they are and what they are called.

    >>> group_notes([], 10)
    []
    """
    shown = {row.prototype: row for row in rows}
    groups = groups_of({j: [other for other in row.same_spot if other in shown] for j, row in shown.items()})
    named = ((_title([shown[j] for j in group], heads), _text([shown[j] for j in group])) for group in groups)
    return [f"{title} look at the same spot{f': {text}' if text else ''}" for title, text in named]


def spread(wanted: Sequence[float], gap: float, size: float) -> list[float]:
    """Heights in order that are at least ``gap`` apart and within the image, as near to the wanted ones as that allows.

    >>> spread([10, 12, 95], 10, 100)
    [10, 20, 95]
    """
    heights: list[float] = []
    for y in wanted:
        heights.append(max(y, heights[-1] + gap) if heights else max(y, gap / 2))
    bottom = size - gap / 2
    for number in reversed(range(len(heights))):
        heights[number] = min(heights[number], bottom)
        bottom = heights[number] - gap
    return heights


def _label(rows: Sequence[Reason], heads: int, point: tuple[float, float], left: bool, y: float, named: bool) -> Label:
    prototypes = tuple(row.prototype for row in rows)
    first, background = rows[0], all(row.background for row in rows)
    text = _text(rows) or (f"here {plain_name(first.here)}" if first.here else "no clear part" if named else "")
    if not named and first.on_object is not None:
        text = f"{share_text(first.on_object)} on the object"
    title = _title(rows, heads)
    return Label(prototypes, title, text, first.colour, first.dashed, background, point, left, round(y, 1))


def _title(rows: Sequence[Reason], heads: int) -> str:
    """``head 3``, ``heads 0, 2, 7`` or, without heads, ``prototypes 4, 9``."""
    kind = "head" if heads > 1 else "prototype"
    numbers = sorted({row.head if heads > 1 else row.prototype for row in rows})
    return f"{kind}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _text(rows: Sequence[Reason]) -> str:
    """The parts of the first one that is called something."""
    return next((part_text(row.parts) or "" for row in rows if row.parts), "")


def _ends(outline: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """The leftmost and the rightmost point of the longest line."""
    longest = max(outline.split("Z")[:-1], key=lambda line: line.count(" "))
    values = longest[1:].replace("L", " ").split()
    points = list(zip(map(float, values[::2]), map(float, values[1::2]), strict=True))
    return min(points), max(points)
