"""An explanation as a figure for print: the large image with all outlines and names, then the classes side by side, one
row per prototype."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from dapl.explain.draw import ATTENTION, blended, draw_outline, fitting_text, percentage, signed, to_pil
from dapl.explain.drawings import Label, group_notes, labels_of, reach_of, view_of
from dapl.explain.evidence import ClassEvidence, Evidence, Explanation
from dapl.explain.patches import Box, Patch
from dapl.runs.outlines import moved

SCALE = 2
"""Pixels of the figure for one unit of its layout."""
_TILE, _GAP, _MARGIN, _TEXT, _TITLE, _FOOT = 128, 8, 20, 250, 62, 52
_OVERVIEW, _NAMES, _WHOLE = 300, 225, 84
"""Side of the large image, the room for names on each side of it, and the side of the small image beside it."""
_INK, _QUIET, _LINE, _FOR, _AGAINST, _WARN = "#1d1c1a", "#6a6761", "#d8d5ce", "#b94f08", "#1f5fa6", "#a3200d"
_AMBER = "#8a5a00"


def draw_figure(explanation: Explanation) -> Image.Image:
    """The large image with all outlines and names, then a column per class."""
    tiles = 3 if explanation.with_attention else 2
    column = tiles * (_TILE + _GAP) + _TEXT
    rows = max(len(evidence.rows) for evidence in explanation.classes)
    notes = max(len(group_notes(evidence.rows, explanation.heads)) for evidence in explanation.classes)
    width = 2 * _MARGIN + len(explanation.classes) * (column + 2 * _MARGIN) - 2 * _MARGIN
    size, listed = int(explanation.image.shape[-1]), explanation.classes[0].rows
    view = view_of(listed, size)
    labels = labels_of(listed, explanation.heads, size, view)
    head = round(_OVERVIEW * reach_of(labels, size) / size) + 28
    height = 2 * _MARGIN + head + _TITLE + 16 * notes + rows * (_TILE + _GAP) + _FOOT
    canvas = _Canvas(max(width, _OVERVIEW + 2 * _NAMES + 2 * _MARGIN + 260), height)
    _draw_head(canvas, explanation, view, labels)
    for number, evidence in enumerate(explanation.classes):
        left = _MARGIN + number * (column + 2 * _MARGIN)
        _draw_class(canvas, explanation, evidence, left, _MARGIN + head, column, tiles, notes)
    return canvas.image


class _Canvas:
    """A white image drawn on in units of the layout."""

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGB", (width * SCALE, height * SCALE), "white")
        self.draw = ImageDraw.Draw(self.image)

    def text(
        self, x: float, y: float, text: str, size: int = 12, ink: str = _INK, bold: bool = False, room: float = 1e4
    ) -> float:
        """From (x, y) downwards; cut to ``room``; returns where it ends."""
        font = _font(size * SCALE, bold)
        text = fitting_text(text, font, room * SCALE)
        self.draw.text((x * SCALE, y * SCALE), text, fill=ink, font=font)
        return x + font.getlength(text) / SCALE

    def text_before(self, x: float, y: float, text: str, size: int, ink: str, bold: bool, room: float) -> None:
        """As `text`, but ending at x."""
        font = _font(size * SCALE, bold)
        text = fitting_text(text, font, room * SCALE)
        self.draw.text((x * SCALE - font.getlength(text), y * SCALE), text, fill=ink, font=font)

    def line(self, x: float, y: float, length: float, ink: str = _LINE, width: int = 1) -> None:
        self.draw.line((x * SCALE, y * SCALE, (x + length) * SCALE, y * SCALE), fill=ink, width=width * SCALE)

    def bar(self, x: float, y: float, length: float, ink: str, height: float = 5) -> None:
        self.draw.rectangle((x * SCALE, y * SCALE, (x + max(length, 0.5)) * SCALE, (y + height) * SCALE), fill=ink)

    def ring(self, x: float, y: float, radius: float = 4) -> None:
        for ink, width in (("#303030", 5), ("white", 2)):
            reach = (radius + width / 5) * SCALE
            corners = (x * SCALE - reach, y * SCALE - reach, x * SCALE + reach, y * SCALE + reach)
            self.draw.ellipse(corners, outline=ink, width=width)

    def tile(self, x: float, y: float, image: Image.Image, side: int = _TILE) -> float:
        """Fitted into a square; returns its scale, from pixels of the image to those of the figure."""
        scale = side * SCALE / max(image.size)
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        self.image.paste(image.resize(size, Image.Resampling.LANCZOS), (round(x * SCALE), round(y * SCALE)))
        return scale

    def outline(self, x: float, y: float, path: str | None, colour: str, dashed: bool, scale: float, side: int) -> None:
        """The outline of a region in a tile at (x, y) that is drawn in this scale; what is outside the tile is cut."""
        if path is None:
            return
        place = round(x * SCALE), round(y * SCALE)
        tile = self.image.crop((*place, place[0] + side * SCALE, place[1] + side * SCALE))
        draw_outline(ImageDraw.Draw(tile), moved(path, 0, 0, scale), colour, dashed, width=2 * SCALE)
        self.image.paste(tile, place)


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def _draw_head(canvas: _Canvas, explanation: Explanation, view: Box, labels: Sequence[Label]) -> None:
    left, top, size = _MARGIN + _NAMES, _MARGIN, int(explanation.image.shape[-1])
    rows = explanation.classes[0].rows
    scale = canvas.tile(left, top, to_pil(explanation.image).crop(view), _OVERVIEW)
    for row in rows:
        path = None if row.outline is None else moved(row.outline, view[0], view[1])
        canvas.outline(left, top, path, row.colour, row.dashed, scale, _OVERVIEW)
    for name in labels:
        _draw_label(canvas, name, left, top, _OVERVIEW / size)
    x = left + _OVERVIEW + _NAMES + 12
    room = canvas.image.width / SCALE - x - _MARGIN
    canvas.text(x, top, explanation.predicted_name, 20, bold=True, room=room)
    canvas.text(x, top + 28, " · ".join(filter(None, (explanation.name, explanation.about))), 11, _QUIET, room=room)
    best = explanation.probabilities.argsort(descending=True, stable=True)[:3].tolist()
    bar = max(60, min(150, room - 260))
    for number, label in enumerate(best):
        y, share = top + 54 + 21 * number, float(explanation.probabilities[label])
        canvas.text(x, y, explanation.class_names[label], 11, room=room - bar - 60)
        canvas.bar(x + room - bar - 52, y + 4, bar, "#efede8", 7)
        canvas.bar(x + room - bar - 52, y + 4, bar * share, _FOR, 7)
        canvas.text(x + room - 46, y, percentage(share), 11)
    if view != (0, 0, size, size):
        _draw_whole(canvas, explanation, view, x, top + _OVERVIEW - _WHOLE)
    if explanation.warning is not None:
        for number, line in enumerate(textwrap.wrap(f"Warning: {explanation.warning}.", max(20, int(room / 6.2)))):
            canvas.text(x, top + 128 + 17 * number, line, 11, _WARN, room=room)


def _draw_whole(canvas: _Canvas, explanation: Explanation, view: Box, x: float, y: float) -> None:
    """All of the image, small, with a frame around what is shown large."""
    scale = canvas.tile(x, y, to_pil(explanation.image), _WHOLE)
    left, top, right, bottom = (place * scale for place in view)
    corners = (x * SCALE + left, y * SCALE + top, x * SCALE + right, y * SCALE + bottom)
    for ink, width in (("#303030", 5), ("white", 2)):
        canvas.draw.rectangle(corners, outline=ink, width=width)
    for number, line in enumerate(("all of the image that the model saw;", "the frame is shown large on the left")):
        canvas.text(x + _WHOLE + 10, y + _WHOLE / 2 - 15 + 16 * number, line, 11, _QUIET)


def _draw_label(canvas: _Canvas, label: Label, left: int, top: int, scale: float) -> None:
    """The name beside the large image, and a line to its outline."""
    edge = left - 6 if label.left else left + _OVERVIEW + 6
    x, y = left + label.point[0] * scale, top + label.point[1] * scale
    at = top + label.y * scale
    points = [(x, y), (left if label.left else left + _OVERVIEW, at), (edge, at)]
    canvas.draw.line([(a * SCALE, b * SCALE) for a, b in points], fill=_QUIET, width=SCALE)
    lines = label.lines
    bar, tall = edge - 6 if label.left else edge, 13 * len(lines)
    canvas.bar(bar, at - tall / 2, 6, "#303030", tall)  # around the colour, so that white shows too
    canvas.bar(bar + 0.5, at - tall / 2 + 0.5, 5, label.colour, tall - 1)
    if label.dashed:
        canvas.bar(bar + 0.5, at - 4, 5, "white", 8)
    for number, text in enumerate(lines):
        bold = number < len(label.heading)
        ink = _QUIET if not bold else _WARN if label.background else _INK
        y = at - 6.5 * len(lines) - 1 + 13 * number
        if label.left:
            canvas.text_before(edge - 9, y, text, 10, ink, bold, _NAMES)
        else:
            canvas.text(edge + 9, y, text, 10, ink, bold, _NAMES)


def _draw_class(
    canvas: _Canvas,
    explanation: Explanation,
    evidence: ClassEvidence,
    left: int,
    top: int,
    width: int,
    tiles: int,
    notes: int,
) -> None:
    canvas.text(left, top, evidence.name, 15, bold=True, room=width)
    canvas.text(left, top + 20, f"{percentage(evidence.probability)}, logit {signed(evidence.logit)}", 11, _QUIET)
    for number, note in enumerate(group_notes(evidence.rows, explanation.heads)):
        canvas.text(left, top + 40 + 16 * number, note, 11, _AMBER, room=width)
    top += 16 * notes
    what = "crop" if explanation.with_crops else "part"
    heads = [f"this {what} …", f"… looks like that {what}"]
    heads += ["with values from"] if tiles == 3 else []
    heads.append("similarity × weight = contribution")
    for number, text in enumerate(heads):
        canvas.text(left + number * (_TILE + _GAP), top + 42, text, 9, _QUIET, room=_TEXT if number == tiles else _TILE)
    for number, row in enumerate(evidence.rows):
        _draw_row(canvas, explanation, row, left, top + _TITLE + number * (_TILE + _GAP), tiles)
    bottom = top + _TITLE + len(evidence.rows) * (_TILE + _GAP)
    x = left + tiles * (_TILE + _GAP)
    canvas.line(left, bottom, width, _INK)
    rest = evidence.rest
    if rest.prototypes:
        canvas.text(left, bottom + 7, f"{rest.prototypes} other prototypes", 11, _QUIET)
        canvas.text(x, bottom + 7, signed(rest.contribution), 11, _QUIET)
    canvas.text(left, bottom + 25, "sum = logit", 12, bold=True)
    canvas.text(x, bottom + 25, signed(evidence.logit), 12, bold=True)


def _draw_row(canvas: _Canvas, explanation: Explanation, row: Evidence, left: int, top: int, tiles: int) -> None:
    here = Patch(explanation.image, row.view, row.outline).cut()
    for number, patch in enumerate((here, explanation.close_up(row))):
        x = left + number * (_TILE + _GAP)
        if patch is None:
            canvas.text(x + 24, top + _TILE / 2 - 6, "no image", 11, _QUIET)
        else:
            scale = canvas.tile(x, top, to_pil(patch.image))
            canvas.outline(x, top, patch.outline, row.colour, row.dashed, scale, _TILE)
    if tiles == 3 and row.attention is not None:
        x = left + 2 * (_TILE + _GAP)
        canvas.tile(x, top, blended(explanation.image, row.attention, ATTENTION))
        across, down = (place * _TILE / explanation.image.shape[-1] for place in row.place)
        canvas.ring(x + across, top + down)
    x, ink = left + tiles * (_TILE + _GAP), _FOR if row.contribution >= 0 else _AGAINST
    end = canvas.text(x, top + 8, f"{signed(row.similarity)} × {signed(row.weight)} = ", 12)
    canvas.text(end, top + 7, signed(row.contribution), 13, ink, bold=True)
    canvas.bar(x, top + 30, 200 * abs(row.contribution) / explanation.strongest, ink)
    named, whose, matter = explanation.notes(row)
    lines = ((named, _INK), ([f"prototype {row.prototype}"], _QUIET), (whose, _QUIET), (matter, _WARN))
    for number, (words, colour) in enumerate(line for line in lines if line[0]):
        canvas.text(x, top + 43 + 17 * number, ", ".join(words), 11, colour, room=_TEXT)
    if row.source is not None:
        canvas.text(x, top + _TILE - 14, row.source.image, 8, _QUIET, room=_TEXT)
