"""One image explained, as an object that saves itself: HTML to look at, PNG to print, JSON to compute with.

The figure for print has the large image with all outlines and names, then the classes side by side, one row per
prototype.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from PIL import Image, ImageDraw, ImageFont

from dapl.common.errors import DaplError
from dapl.common.files import replacing, write_json, write_text
from dapl.explain.draw import (
    ATTENTION,
    blended,
    breakable,
    draw_outline,
    fitting_text,
    percentage,
    signed,
    templates,
    to_pil,
)
from dapl.explain.drawings import Label, PageDrawings, group_notes, labels_of, overview, reach_of, view_of
from dapl.explain.evidence import ClassEvidence, Evidence, Explanation, Reason, doc
from dapl.explain.patches import Box, Patch, PatchSource
from dapl.metrics.naming import plain_name, share_text
from dapl.runs.outlines import moved

FORMATS = ("html", "png", "json")
JSON_FORMAT, JSON_VERSION = "dapl-explanation", 2
_MOST = 0.9
"""Of a region that lies in its crop to this share nothing needs to be said."""
_BARS = 5
"""Classes whose probability the head of the page shows."""


@dataclass(frozen=True)
class ShownPatch:
    """A close-up of the training image around a prototype's region."""

    image: str = field(metadata=doc("Address of the image."))
    width: int
    height: int
    outline: str | None = field(metadata=doc("Outline of the region in it, as path data of SVG."))

    @classmethod
    def of(cls, patch: Patch, address: str) -> ShownPatch:
        return cls(address, patch.image.shape[-1], patch.image.shape[-2], patch.outline)


@dataclass(frozen=True)
class ShownReason(Reason):
    """A `Reason` with the addresses of its images, as a page shows it: data URIs in a file, URLs of a server."""

    heat: str = field(metadata=doc("Address of a transparent PNG: where it is active in the image."))
    attention: str | None = field(metadata=doc("The same: from where that place took its values."))
    patch: ShownPatch | None


@dataclass(frozen=True, repr=False)
class LocalExplanation(Explanation):
    """Why an image got its label, as it is shown and saved.

    >>> why = model.explain("bird.jpg")                   # doctest: +SKIP
    >>> why                                               # doctest: +SKIP
    LocalExplanation(bird.jpg: 001.Black_footed_Albatross 97.1%, 2 classes, 20 prototypes)
    >>> why.classes[0].rows[0].contribution               # doctest: +SKIP
    2.521
    >>> why.save("bird.html")                             # doctest: +SKIP
    """

    def __repr__(self) -> str:
        rows = sum(len(evidence.rows) for evidence in self.classes)
        label = f"{self.predicted_name} {percentage(float(self.probabilities.max()))}"
        return f"LocalExplanation({self.name}: {label}, {len(self.classes)} classes, {rows} prototypes)"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither its style nor its script policy meets the notebook's."""
        page = html.escape(self.html(), quote=True)
        title = html.escape(repr(self), quote=True)
        return (
            f'<iframe srcdoc="{page}" title="{title}" sandbox loading="lazy" '
            'style="width:100%;height:640px;border:1px solid #8884;border-radius:8px"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write to ``path``, as its suffix says: .html, .png or .json."""
        path = Path(path)
        kind = path.suffix.lower().removeprefix(".")
        if kind not in FORMATS:
            raise DaplError(f"{path}: an explanation is saved as .html, .png or .json.")
        if kind == "html":
            write_text(path, self.html(), synced=False)  # to wait for a disk takes longer than to explain
        elif kind == "json":
            write_json(path, self.to_json())
        else:
            with replacing(path) as temporary:
                draw_figure(self).save(temporary, format="PNG", dpi=(200, 200))
        return path

    def html(self) -> str:
        """One page with everything inside."""
        best = self.probabilities.argsort(descending=True, stable=True)[:_BARS].tolist()
        drawings = PageDrawings(self)
        view = view_of(self.classes[0].rows, drawings.size)
        labels = labels_of(self.classes[0].rows, self.heads, drawings.size, view)
        template = templates("dapl.explain").get_template("local.html.j2")
        return template.render(
            why=self,
            predicted_name=self.predicted_name,
            warning=self.warning,
            with_crops=self.with_crops,
            bars=[(self.class_names[c], float(self.probabilities[c])) for c in best],
            labels=labels,
            overviews=[overview(labels, drawings.size, with_names, view) for with_names in (True, False)],
            drawings=drawings,
        )

    # What follows is text, not template: a page has twenty rows, and a template takes three times as long.

    def table_rows(
        self, evidence: ClassEvidence, drawings: PageDrawings, strongest: float, with_attention: bool
    ) -> Markup:
        """A row per prototype: part of this image, training patch, attention where there is any, and what is said."""
        rows = []
        for row in evidence.rows:
            drawn, off = drawings.of[row.prototype], ' class="off"' if row.switched_off else ""
            attention = f'<td class="look attention">{drawn.attention or ""}</td>' if with_attention else ""
            source = "" if row.source is None else f'<p class="source">from {breakable(row.source.image)}</p>'
            rows.append(
                f'<tr data-prototype="{row.prototype}"{off}>\n'
                f'<td class="look">{drawn.part}</td>\n<td class="look">{drawn.patch}</td>\n{attention}\n'
                f'<td class="why">\n{self.sum_line(row, strongest)}\n'
                f'<div class="chips">{self.chips(row)}</div>\n{source}\n</td>\n</tr>'
            )
        return Markup("\n".join(rows))

    def sum_line(self, row: Evidence, strongest: float) -> Markup:
        """Similarity × weight = contribution, each as it is shown and exactly, and a bar against the strongest."""
        side = ' class="against"' if row.contribution < 0 else ""
        numbers = (f'value="{value!r}">{signed(value)}' for value in (row.similarity, row.weight, row.contribution))
        similarity, weight, contribution = numbers
        return Markup(
            f'<div class="sum"><data {similarity}</data> &times; <data {weight}</data> = '
            f'<b{side}><data class="contribution" {contribution}</data></b></div>\n'
            f'<div class="meter"><i{side} style="width:{100 * abs(row.contribution) / strongest:.2f}%"></i></div>'
        )

    def chips(self, row: Evidence) -> Markup:
        """What is said of a prototype below its numbers."""
        dashed = " dashed" if row.dashed else ""
        head = f"head {row.head} &middot; " if self.heads > 1 else ""
        key = f'<i class="key{dashed}" style="background-color:{row.colour}"></i>'
        said = [_chip(Markup(f"{key}{head}prototype {row.prototype}"))]
        if row.part:
            meaning = "the parts that it is on, with the share of the measured images in which it is"
            said.append(_chip(row.part, meaning))
        if not row.outline:
            said.append(_chip("nothing here stands out", "its similarity is the same at every place"))
        if row.here:
            said.append(_chip(f"here {plain_name(row.here)}", "the part that most of its region lies on in this image"))
        if row.in_crop is not None and row.in_crop < _MOST:
            text = f"the crop holds {share_text(row.in_crop)} of what is outlined"
            said.append(_chip(text, "the head looks at the whole outline, but sees the crop and no other pixel"))
        if row.foreground is not None:
            text = f"{share_text(row.foreground)} on the object here"
            said.append(_chip(text, "share of the outlined region that lies on the object"))
        if not row.own:
            said.append(_chip(f"of {', '.join(row.of)}"))
        elif len(row.of) > 1:
            said.append(_chip(f"shared by {len(row.of)} classes", ", ".join(row.of)))
        if row.background and row.on_object is not None:
            text = f"background: {share_text(row.on_object)} on the object"
            said.append(_chip(text, "mean over the measured images", warns=True))
        if row.switched_off:
            said.append(_chip("switched off", warns=True))
        return Markup("\n".join(said))

    def group_notes(self, evidence: ClassEvidence) -> list[str]:
        """Which reasons of a class look at the same spot."""
        return group_notes(evidence.rows, self.heads)

    def to_json(self) -> dict[str, Any]:
        """Plain values; docs/explain.md says what each is."""
        return {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "image": self.name,
            "model": self.about,
            "image_size": self.image.shape[-1],
            "predicted": self.predicted_name,
            "warning": self.warning,
            "switched_off": list(self.switched_off),
            "probabilities": dict(zip(self.class_names, self.probabilities.double().tolist(), strict=True)),
            "logits": dict(zip(self.class_names, self.logits.double().tolist(), strict=True)),
            "classes": [evidence.to_json() for evidence in self.classes],
        }

    def text(self, rows: int = 5) -> str:
        """For a terminal: the strongest ``rows`` of each class and the sum."""
        blocks = [f"{self.name}: {self.predicted_name} ({percentage(float(self.probabilities.max()))})"]
        blocks += [] if self.warning is None else [f"  warning: {self.warning}"]
        blocks += [self._class_text(evidence, rows) for evidence in self.classes]
        return "\n".join(blocks)

    def _class_text(self, evidence: ClassEvidence, count: int) -> str:
        lines = [f"  {evidence.name}  ({percentage(evidence.probability)})"]
        for row in evidence.rows[:count]:
            notes = ", ".join(chain(*self.notes(row)))
            lines.append(
                f"    {row.contribution:8.3f} = {row.similarity:6.3f} × {row.weight:6.3f}   "
                f"prototype {row.prototype}{': ' if notes else ''}{notes}"
            )
        left = sum(row.contribution for row in evidence.rows[count:]) + evidence.rest.contribution
        others = len(evidence.rows[count:]) + evidence.rest.prototypes
        if others:
            lines.append(f"    {left:8.3f}   {others} other prototype{'s' if others > 1 else ''}")
        return "\n".join([*lines, f"    {evidence.logit:8.3f}   logit"])


def _chip(text: str, meaning: str = "", warns: bool = False) -> str:
    look, title = ' class="warn"' if warns else "", f' title="{escape(meaning)}"' if meaning else ""
    return f"<span{look}{title}>{escape(text)}</span>"


def localise(explanation: Explanation, name: str, about: str, patches: PatchSource, seen: str = "") -> LocalExplanation:
    """An explanation with the name of its image, the model in a few words, where training patches are had from, and
    which part of the image the model saw."""
    return LocalExplanation(**vars(explanation) | {"name": name, "about": about, "patches": patches, "seen": seen})


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
    labels = labels_of(listed, explanation.heads, size, view_of(listed, size))
    head = round(_OVERVIEW * reach_of(labels, size) / size) + 28
    height = 2 * _MARGIN + head + _TITLE + 16 * notes + rows * (_TILE + _GAP) + _FOOT
    canvas = _Canvas(max(width, _OVERVIEW + 2 * _NAMES + 2 * _MARGIN + 260), height)
    _draw_head(canvas, explanation, labels)
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


def _draw_head(canvas: _Canvas, explanation: Explanation, labels: Sequence[Label]) -> None:
    left, top, size = _MARGIN + _NAMES, _MARGIN, int(explanation.image.shape[-1])
    rows = explanation.classes[0].rows
    view = view_of(rows, size)
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
