"""The explanation of one image as a figure for print: the classes side by side, one row per prototype."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from dapl.explain.draw import ATTENTION, blended, fitting_text, percentage, signed, to_pil
from dapl.explain.evidence import Box, ClassEvidence, Evidence, Explanation
from dapl.explain.patches import Patch

SCALE = 2
"""Pixels of the figure for one unit of its layout."""
_TILE, _GAP, _MARGIN, _TEXT, _HEAD, _TITLE, _FOOT = 112, 8, 20, 236, 150, 62, 52
_INK, _QUIET, _LINE, _FOR, _AGAINST, _WARN = "#1d1c1a", "#6a6761", "#d8d5ce", "#b94f08", "#1f5fa6", "#a3200d"
_BOX = "#ffe14d"


def draw_figure(explanation: Explanation) -> Image.Image:
    tiles = 3 if explanation.with_attention or explanation.with_crops else 2
    column = tiles * (_TILE + _GAP) + _TEXT
    rows = max(len(evidence.rows) for evidence in explanation.classes)
    width = 2 * _MARGIN + len(explanation.classes) * (column + 2 * _MARGIN) - 2 * _MARGIN
    height = 2 * _MARGIN + _HEAD + _TITLE + rows * (_TILE + _GAP) + _FOOT
    canvas = _Canvas(width, height)
    _draw_head(canvas, explanation, width)
    for number, evidence in enumerate(explanation.classes):
        left = _MARGIN + number * (column + 2 * _MARGIN)
        _draw_class(canvas, explanation, evidence, left, _MARGIN + _HEAD, column, tiles)
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

    def line(self, x: float, y: float, length: float, ink: str = _LINE, width: int = 1) -> None:
        self.draw.line((x * SCALE, y * SCALE, (x + length) * SCALE, y * SCALE), fill=ink, width=width * SCALE)

    def bar(self, x: float, y: float, length: float, ink: str, height: float = 5) -> None:
        self.draw.rectangle((x * SCALE, y * SCALE, (x + max(length, 0.5)) * SCALE, (y + height) * SCALE), fill=ink)

    def ring(self, x: float, y: float, radius: float = 4) -> None:
        for ink, width in (("#303030", 5), ("white", 2)):
            reach = (radius + width / 5) * SCALE
            corners = (x * SCALE - reach, y * SCALE - reach, x * SCALE + reach, y * SCALE + reach)
            self.draw.ellipse(corners, outline=ink, width=width)

    def tile(self, x: float, y: float, image: Image.Image, box: Box | None = None, side: int = _TILE) -> None:
        """``box`` in pixels of the image."""
        shown = image.resize((side * SCALE, side * SCALE), Image.Resampling.LANCZOS)
        if box is not None:
            by, marks = (side * SCALE / image.width, side * SCALE / image.height), ImageDraw.Draw(shown)
            left, top, right, bottom = (round(edge * by[n % 2]) for n, edge in enumerate(box))
            marks.rectangle((left, top, right - 1, bottom - 1), outline="#00000090", width=3 * SCALE)
            marks.rectangle((left + 1, top + 1, right - 2, bottom - 2), outline=_BOX, width=SCALE + 1)
        self.image.paste(shown, (round(x * SCALE), round(y * SCALE)))


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def _draw_head(canvas: _Canvas, explanation: Explanation, width: int) -> None:
    side = _HEAD - 30
    canvas.tile(_MARGIN, _MARGIN, to_pil(explanation.image), side=side)
    x, room = _MARGIN + side + 18, width - 2 * _MARGIN - side - 18
    canvas.text(x, _MARGIN, explanation.predicted_name, 20, bold=True, room=room)
    canvas.text(x, _MARGIN + 28, " · ".join(filter(None, (explanation.name, explanation.about))), 11, _QUIET, room=room)
    best = explanation.probabilities.argsort(descending=True, stable=True)[:3].tolist()
    for row, label in enumerate(best):
        y, share = _MARGIN + 54 + 21 * row, float(explanation.probabilities[label])
        canvas.text(x, y, explanation.class_names[label], 11, room=230)
        canvas.bar(x + 240, y + 4, 150, "#efede8", 7)
        canvas.bar(x + 240, y + 4, 150 * share, _FOR, 7)
        canvas.text(x + 400, y, percentage(share), 11)


def _draw_class(
    canvas: _Canvas,
    explanation: Explanation,
    evidence: ClassEvidence,
    left: int,
    top: int,
    width: int,
    tiles: int,
) -> None:
    canvas.text(left, top, evidence.name, 15, bold=True, room=width)
    canvas.text(left, top + 20, f"{percentage(evidence.probability)}, logit {signed(evidence.logit)}", 11, _QUIET)
    heads = ["this region …", *["… with values from …"] * explanation.with_attention, "… looks like this patch"]
    if explanation.with_crops:
        heads = ["here the head sees …", "… this crop, which …", "… looks like that crop"]
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
    if row.cropped:
        canvas.tile(left, top, to_pil(explanation.image), row.box)
        canvas.tile(left + _TILE + _GAP, top, to_pil(Patch(explanation.image, row.box).cut().image))
    else:
        canvas.tile(left, top, blended(explanation.image, row.heat), row.box)
    if tiles == 3 and row.attention is not None:
        canvas.tile(left + _TILE + _GAP, top, blended(explanation.image, row.attention, ATTENTION))
        x, y = (place * _TILE / explanation.image.shape[-1] for place in row.place)
        canvas.ring(left + _TILE + _GAP + x, top + y)
    patch = explanation.crop(row) if row.cropped else explanation.close_up(row)
    x = left + (tiles - 1) * (_TILE + _GAP)
    if patch is None:
        canvas.text(x + 24, top + _TILE / 2 - 6, "no image", 11, _QUIET)
    else:
        canvas.tile(x, top, to_pil(patch.image), patch.box)
    x, ink = left + tiles * (_TILE + _GAP), _FOR if row.contribution >= 0 else _AGAINST
    end = canvas.text(x, top + 8, f"{signed(row.similarity)} × {signed(row.weight)} = ", 12)
    canvas.text(end, top + 7, signed(row.contribution), 13, ink, bold=True)
    canvas.bar(x, top + 30, 200 * abs(row.contribution) / explanation.strongest, ink)
    named, whose, matter = explanation.notes(row)
    lines = (([f"prototype {row.prototype}", *named], _INK), (whose, _QUIET), (matter, _WARN))
    for number, (words, colour) in enumerate(line for line in lines if line[0]):
        canvas.text(x, top + 43 + 17 * number, ", ".join(words), 11, colour, room=_TEXT)
    if row.source is not None:
        canvas.text(x, top + 98, row.source.image, 8, _QUIET, room=_TEXT)
