"""The drawings of pages, as SVG: the image with all its outlines and their names, close-ups, and maps over them.

Names stand beside the image, where `labels_of` finds room for them. Drawings are put together as text: a template takes
several times as long for so many small pieces. A region is outlined in the colour of its head, dark below, so that it
shows anywhere.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from markupsafe import Markup, escape

from dapl.explain.draw import ATTENTION, HEAT, Stop, data_uri, jpeg, overlay_strip
from dapl.explain.evidence import Evidence, Explanation, Reason
from dapl.explain.patches import Box
from dapl.metrics.naming import groups_of, part_text, plain_name, share_text
from dapl.runs.outlines import together

_FONT = 1 / 24
"""Height of the letters of names, as a share of the side of the drawing."""
_LINE, _APART = 1.02 * _FONT, 0.45 * _FONT
"""The same of the distance of two lines of a name, and of the room between two names."""
_WIDE = 0.58
"""Width of a letter, as a share of its height: a little more than most fonts take."""
_KEPT = 512
"""Training patches that are kept as they are shown."""
_LONGEST = 30
"""Letters of a line beside the image; what is longer goes on in the next line."""
_NEAR, _MARGIN = 0.66, 0.1
"""Where all outlines lie within this share of the image's side, that part of it is shown large, with so much of what is
beside it."""


@dataclass(frozen=True)
class Label:
    """The name of a reason, or of several that look at the same spot.

    Lengths are pixels of the image, or of the drawing where a part of the image is shown as large as all of it.
    """

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

    @property
    def lines(self) -> list[str]:
        """What stands beside the image: who it is, then its parts, broken into lines where they are long.

        >>> Label((3,), "head 3", "left brow 100 %, right brow 97 %", "#fff", False, False, (0, 0), True, 0).lines
        ['head 3', 'left brow 100 %,', 'right brow 97 %']
        """
        return [*self.heading, *_broken(self.text)]

    @property
    def heading(self) -> list[str]:
        """The first of the lines."""
        return list(_broken(f"{self.title} · background" if self.background else self.title))


@lru_cache(maxsize=4096)  # names come again with every image
def _broken(text: str) -> tuple[str, ...]:
    """A text in lines, broken between parts if that is enough, else between words, or within a very long one."""
    lines: list[str] = []
    for part in text.replace(", ", ",\n").split("\n") if len(text) > _LONGEST else [text]:
        lines += textwrap.wrap(part.replace(" %", "\u00a0%"), _LONGEST, break_on_hyphens=False)
    return tuple(line.replace("\u00a0", " ") for line in lines)


def view_of(rows: Sequence[Evidence], size: int) -> Box:
    """The part of an image of size × size pixels that its overview shows: all of it, or, of a small object, a square
    around all outlines."""
    bounds = [row.bounds for row in rows if row.bounds is not None]
    if bounds:
        left, top, right, bottom = together(bounds)
        side = round(max(right - left, bottom - top) + 2 * _MARGIN * size)
        if max(right - left, bottom - top) <= _NEAR * size and side < size:
            x = min(max(0, (left + right - side) // 2), size - side)
            y = min(max(0, (top + bottom - side) // 2), size - side)
            return x, y, x + side, y + side
    return 0, 0, size, size


def labels_of(rows: Sequence[Evidence], heads: int, size: int, view: Box | None = None) -> list[Label]:
    """Names for the reasons that have a region, half of them on each side of an image of size × size pixels.

    Reasons that look at the same spot share one name. ``heads``: 1 for a system without heads. ``view``: the part of
    the image that is shown, as large as the image.
    """
    left_edge, top_edge, right_edge, _ = view or (0, 0, size, size)
    scale = size / (right_edge - left_edge)
    shown, ends_of = {}, {}
    for row in rows:
        if row.ends is not None:
            shown[row.prototype] = row
            (a, b), (c, d) = row.ends
            ends_of[row.prototype] = (
                (round((a - left_edge) * scale, 1), round((b - top_edge) * scale, 1)),
                (round((c - left_edge) * scale, 1), round((d - top_edge) * scale, 1)),
            )
    same = groups_of({j: [other for other in row.same_spot if other in shown] for j, row in shown.items()})
    grouped = {j for group in same for j in group}
    groups = [*same, *([j] for j in shown if j not in grouped)]
    ends = {tuple(group): ends_of[group[0]] for group in groups}
    order = sorted(ends, key=lambda group: sum(ends[group][side][0] for side in (0, 1)))
    named = any(row.parts or row.here for row in rows)
    labels = []
    for left, members in ((True, order[: (len(order) + 1) // 2]), (False, order[(len(order) + 1) // 2 :])):
        points = {group: ends[group][0 if left else 1] for group in members}
        members = sorted(members, key=lambda group: points[group][1])
        own = [_label([shown[j] for j in group], heads, points[group], left, named) for group in members]
        heights = spread([one.y for one in own], [_height(one) * size for one in own], size)
        labels += [replace(one, y=round(y, 1)) for one, y in zip(own, heights, strict=True)]
    return labels


def reach_of(labels: Sequence[Label], size: int) -> int:
    """The height of a drawing with these names: that of the image, unless they need more."""
    return max(size, math.ceil(max((one.y + _height(one) * size / 2 for one in labels), default=0.0)))


def _height(label: Label) -> float:
    """Of a name with the room around it, as a share of the side of the drawing."""
    return len(label.lines) * _LINE + _APART


def group_notes(rows: Sequence[Reason], heads: int) -> list[str]:
    """For each group of reasons that look at the same spot, who they are and what they are called.

    >>> group_notes([], 10)
    []
    """
    shown = {row.prototype: row for row in rows}
    groups = groups_of({j: [other for other in row.same_spot if other in shown] for j, row in shown.items()})
    named = ((_title([shown[j] for j in group], heads), _text([shown[j] for j in group])) for group in groups)
    return [f"{title} look at the same spot{f': {text}' if text else ''}" for title, text in named]


def spread(wanted: Sequence[float], heights: Sequence[float], size: float) -> list[float]:
    """Middles of names of these heights, in order, that do not overlap and lie beside the image, as near to the wanted
    ones as that allows; names that need more room than the image has begin at its top and go on below it.

    >>> spread([10, 12, 95], [10, 10, 10], 100)
    [10, 20.0, 95]
    """
    middles: list[float] = []
    free = 0.0
    for y, height in zip(wanted, heights, strict=True):
        middles.append(max(y, free + height / 2))
        free = middles[-1] + height / 2
    bottom = max(size, sum(heights))
    for number in reversed(range(len(middles))):
        middles[number] = min(middles[number], bottom - heights[number] / 2)
        bottom = middles[number] - heights[number] / 2
    return middles


def _label(rows: Sequence[Reason], heads: int, point: tuple[float, float], left: bool, named: bool) -> Label:
    """At the height of its point."""
    prototypes = tuple(row.prototype for row in rows)
    first, background = rows[0], all(row.background for row in rows)
    text = _text(rows) or (f"here {plain_name(first.here)}" if first.here else "no clear part" if named else "")
    if not named and first.on_object is not None:
        text = f"{share_text(first.on_object)} on the object"
    title = _title(rows, heads)
    return Label(prototypes, title, text, first.colour, first.dashed, background, point, left, point[1])


def _title(rows: Sequence[Reason], heads: int) -> str:
    """``head 3``, ``heads 0, 2, 7`` or, without heads, ``prototypes 4, 9``."""
    kind = "head" if heads > 1 else "prototype"
    numbers = sorted({row.head if heads > 1 else row.prototype for row in rows})
    return f"{kind}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _text(rows: Sequence[Reason]) -> str:
    """The parts of the first one that is called something."""
    return next((part_text(row.parts) or "" for row in rows if row.parts), "")


def outlined(path: str, colour: str, dashed: bool = False) -> Markup:
    """The outline of a region in the colour of its head.

    >>> print(outlined("M0 0L4 0 4 2.5Z", "#e69f00"))
    <path class="case" d="M0 0L4 0 4 2.5Z"/><path class="edge" d="M0 0L4 0 4 2.5Z" stroke="#e69f00"/>
    """
    edge = "edge dashed" if dashed else "edge"
    return Markup(f'<path class="case" d="{path}"/><path class="{edge}" d="{path}" stroke="{colour}"/>')


def drawn_once(image: str, outlines: Iterable[tuple[str | None, str, bool]], size: int) -> Markup:
    """What several drawings of a page use: the image (its address), and all outlines together.

    ``outlines``: the arguments of `outlined`; no path where there is no region.
    """
    drawn = "".join(outlined(path, colour, dashed) for path, colour, dashed in outlines if path)
    return _hidden(
        f'<image id="input" href="{escape(image)}" width="{size}" height="{size}"/>\n<g id="outlines">{drawn}</g>'
    )


def _hidden(definitions: str) -> Markup:
    return Markup(
        f'<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>{definitions}</defs></svg>'
    )


def overview(labels: Sequence[Label], size: int, with_names: bool, view: Sequence[int] | None = None) -> Markup:
    """The image with all outlines and, where there is room for them, the names beside it; it uses `drawn_once`.

    ``view``: the part of the image that is shown (`view_of`); below it then stands all of the image, small.
    """
    left, top, right, bottom = view or (0, 0, size, size)
    whole = right - left == size
    longest = max((len(line) for one in labels for line in one.lines), default=0)
    beside = round(size * (0.08 + _WIDE * _FONT * max(longest, 18))) if with_names else 0
    height = reach_of(labels, size) if with_names else size
    said = escape("; ".join(f"{one.title} {one.text}" for one in labels))
    names = "".join(_drawn_name(one, size) for one in labels) if with_names else ""
    large = (
        f'<svg width="{size}" height="{size}" viewBox="{left} {top} {right - left} {bottom - top}">'
        '<use href="#input"/><use href="#outlines"/></svg>'
    )
    below = "" if whole else _whole_image(size, height, (left, top, right, bottom))
    height = height if whole else math.ceil(height + (_SMALL + 0.03) * size)
    return Markup(
        f'<svg class="overview {"named" if with_names else "bare"}" viewBox="{-beside} 0 {size + 2 * beside} {height}" '
        f'role="img" aria-label="The image with the outlines of its reasons: {said}">\n'
        f"{large}\n{names}{below}</svg>\n"
    )


_SMALL = 0.24
"""Side of the small image below a part of it that is shown large, as a share of the large one."""


def _whole_image(size: int, top: int, view: Box) -> str:
    """All of the image, small, with a frame around what is shown large."""
    side, y, font = _SMALL * size, top + 0.03 * size, size * _FONT
    left, above, right, bottom = view
    frame = f'x="{left}" y="{above}" width="{right - left}" height="{bottom - above}" fill="none"'
    words = "".join(
        f'<text x="{side + 0.03 * size:.2f}" y="{y + side / 2 + shift * font:.2f}" font-size="{font:.2f}">{line}</text>'
        for line, shift in (("all of the image that the model saw;", -0.2), ("the frame is shown large above", 1.0))
    )
    return (
        f'<svg class="whole" y="{y:.2f}" width="{side:.2f}" height="{side:.2f}" viewBox="0 0 {size} {size}">'
        f'<use href="#input"/><rect {frame} class="case"/><rect {frame} class="edge" stroke="#fff"/></svg>{words}\n'
    )


def _drawn_name(one: Label, size: int) -> str:
    """A line from the outline to the edge of the image, a key in the colour of the head, and lines of text."""
    font, key, lines, headings = size * _FONT, size * 0.022, one.lines, len(one.heading)
    x = -size * 0.03 if one.left else size * 1.03
    corner, words = (x - key, x - size * 0.037) if one.left else (x, x + size * 0.037)
    anchor, who = ' text-anchor="end"' if one.left else "", ' class="who"'
    tall = font * 0.95 * len(lines)
    gap = (
        f'<rect x="{corner:.2f}" y="{one.y - font * 0.35:.2f}" width="{key:.2f}" height="{font * 0.7:.2f}" fill="#fff" '
        'class="dot"/>'
    )
    first = one.y - (len(lines) / 2 - 0.84) * _LINE * size  # where the letters of the first line stand
    texts = "".join(
        f'<text x="{words:.2f}" y="{first + number * _LINE * size:.2f}" font-size="{font:.2f}"{anchor}'
        f"{who if number < headings else ''}>{escape(line)}</text>\n"
        for number, line in enumerate(lines)
    )
    return (
        f'<polyline class="leader" points="{one.point[0]},{one.point[1]} {0 if one.left else size},{one.y} '
        f'{x:.2f},{one.y}"/>\n'
        f'<circle cx="{one.point[0]}" cy="{one.point[1]}" r="{size / 90:.2f}" fill="{one.colour}" class="dot"/>\n'
        f'<rect x="{corner:.2f}" y="{one.y - tall / 2:.2f}" width="{key:.2f}" height="{tall:.2f}" '
        f'fill="{one.colour}" class="dot"/>{gap if one.dashed else ""}\n{texts}'
    )


@dataclass(frozen=True)
class RowDrawings:
    """What the row of a prototype shows."""

    part: Markup
    """Where it finds itself in the image, with its map over it on demand."""
    patch: Markup
    """Its training patch."""
    attention: Markup | None
    """From where its place took its values; None where the system has no attention."""


class PageDrawings:
    """The drawings of the page of an explanation, each made once: a prototype may speak for several classes."""

    def __init__(self, why: Explanation) -> None:
        self.size, self._patches = int(why.image.shape[-1]), why.patches.shown
        shown = {row.prototype: row for evidence in why.classes for row in evidence.rows}
        heats = _Strip("heats", [row.heat for row in shown.values()], HEAT)
        attended = {j: row.attention for j, row in shown.items() if row.attention is not None}
        attention = _Strip("attentions", list(attended.values()), ATTENTION)
        numbers = {j: number for number, j in enumerate(attended)}
        outlines = ((row.outline, row.colour, row.dashed) for row in why.classes[0].rows)
        once = drawn_once(data_uri(jpeg(why.image, quality=92), "jpeg"), outlines, self.size)
        self.once = once + _hidden(heats.definition + attention.definition)
        """What the other drawings use; it comes first."""
        self.of = {
            j: RowDrawings(
                self._part(row, heats.tile(number, self.size, "heat")),
                self._patch(why, row),
                None if j not in numbers else self._attention(row, attention.tile(numbers[j], self.size)),
            )
            for number, (j, row) in enumerate(shown.items())
        }
        """By prototype."""

    def _part(self, row: Evidence, heat: str) -> Markup:
        left, top, right, bottom = row.view
        outline = "" if row.outline is None else outlined(row.outline, row.colour, row.dashed)
        return Markup(
            f'<svg viewBox="{left} {top} {right - left} {bottom - top}" role="img" '
            f'aria-label="Where prototype {row.prototype} finds itself in this image">\n'
            f'<use href="#input"/>{heat}{outline}</svg>'
        )

    def _patch(self, why: Explanation, row: Evidence) -> Markup:
        """Kept, for the next image may need it again."""
        if row.prototype not in self._patches:
            self._patches[row.prototype] = _patch_drawing(why, row)
            if len(self._patches) > _KEPT:
                del self._patches[next(iter(self._patches))]
        return self._patches[row.prototype]

    def _attention(self, row: Evidence, values: str) -> Markup:
        x, y = row.place
        circle = f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{self.size / 28:.2f}" fill="none"'
        return Markup(
            f'<svg viewBox="0 0 {self.size} {self.size}" role="img" '
            'aria-label="From where its patch took its values">\n'
            f'<use href="#input"/>{values}\n'
            f'{circle} stroke="#000" stroke-opacity=".55" stroke-width="{self.size / 45:.2f}"/>'
            f'{circle} stroke="#fff" stroke-width="{self.size / 90:.2f}"/></svg>'
        )


def _patch_drawing(why: Explanation, row: Evidence) -> Markup:
    patch = why.close_up(row)
    if patch is None:
        return Markup(
            '<svg viewBox="0 0 100 100" role="img" aria-label="No training patch at hand"><text x="50" y="54" '
            'text-anchor="middle" font-size="11" fill="currentColor" opacity=".6">no image</text></svg>'
        )
    height, width = patch.image.shape[-2:]
    outline = "" if patch.outline is None else outlined(patch.outline, row.colour, row.dashed)
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="The training patch of prototype {row.prototype}">\n'
        f'<image href="{data_uri(jpeg(patch.image), "jpeg")}" width="{width}" height="{height}"/>{outline}</svg>'
    )


class _Strip:
    """Maps of one size in one image, one below the other: made, and shown, faster than forty images."""

    def __init__(self, name: str, maps: Sequence[torch.Tensor], stops: tuple[Stop, ...]) -> None:
        self.name, self.definition = name, ""
        if not maps:
            return
        content, self.side = overlay_strip(torch.stack(list(maps)), stops)
        width = self.side + 2
        self.definition = (
            f'<image id="{name}" href="{data_uri(content, "png")}" width="{width}" height="{width * len(maps)}"/>'
        )

    def tile(self, number: int, size: int, kind: str = "map") -> str:
        """One of the maps over an image of size × size pixels; ``kind``: its class, for the style of the page."""
        top = number * (self.side + 2) + 1
        return (
            f'<svg class="{kind}" width="{size}" height="{size}" viewBox="1 {top} {self.side} {self.side}" '
            f'preserveAspectRatio="none"><use href="#{self.name}"/></svg>'
        )
