"""The contact sheet of `dapl prepare check`: pictures with the outline of their mask, their parts and their class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw, ImageFont

from dapl.data.sample import Sample
from dapl.data.transforms import fit
from dapl.explain.contact import part_colour
from dapl.explain.sheet import outline

_MARGIN, _CAPTION = 8, 30
_MASK, _BOX, _WRONG, _GREY = (255, 220, 0), (255, 255, 255), (215, 30, 30), (110, 110, 110)


@dataclass(frozen=True)
class Shown:
    """A sample on the sheet."""

    sample: Sample
    split: str
    class_name: str
    wrong: bool
    """Something is the matter with it: it is framed in red."""


def draw_sheet(shown: Sequence[Shown], parts: Sequence[str], columns: int = 6, tile: int = 160) -> Image.Image:
    """Tiles by class, below each its class, split and file; a legend of the parts at the bottom."""
    ordered = sorted(shown, key=lambda one: one.class_name)
    columns = max(1, min(columns, len(ordered)))
    rows = -(-len(ordered) // columns)
    width = max(columns * (tile + _MARGIN) + _MARGIN, 420)
    legend = _Legend(parts, any(one.sample.mask is not None for one in ordered), width)
    sheet = Image.new("RGB", (width, rows * (tile + _CAPTION + _MARGIN) + _MARGIN + legend.height), "white")
    draw = ImageDraw.Draw(sheet)
    bold, small = ImageFont.load_default(12), ImageFont.load_default(10)
    for number, one in enumerate(ordered):
        left = _MARGIN + number % columns * (tile + _MARGIN)
        top = _MARGIN + number // columns * (tile + _CAPTION + _MARGIN)
        sheet.paste(draw_sample(one.sample, tile), (left, top))
        if one.wrong:
            draw.rectangle((left - 2, top - 2, left + tile + 1, top + tile + 1), outline=_WRONG, width=2)
        draw.text((left, top + tile + 1), _cut(one.class_name, bold, tile), fill="black", font=bold)
        room = tile - round(small.getlength(f"{one.split}: "))
        place = f"{one.split}: {_cut(one.sample.name.rpartition('/')[2], small, room, keep_end=True)}"
        draw.text((left, top + tile + 16), place, fill=_WRONG if one.wrong else _GREY, font=small)
    legend.draw(draw, sheet.height - legend.height)
    return sheet


def draw_sample(sample: Sample, tile: int) -> Image.Image:
    """The picture padded to a square, its mask outlined, its box drawn, visible parts dotted."""
    fitted = fit(sample, tile, "pad")
    pixels = torch.as_tensor(fitted.image).permute(1, 2, 0).clone()
    if fitted.mask is not None:
        pixels[outline(torch.as_tensor(fitted.mask).bool(), width=1)] = torch.tensor(_MASK, dtype=torch.uint8)
    picture = Image.fromarray(pixels.contiguous().numpy())
    draw = ImageDraw.Draw(picture)
    if fitted.box is not None:
        draw.rectangle(torch.as_tensor(fitted.box)[0].tolist(), outline=_BOX)
    if fitted.keypoints is not None and fitted.visible is not None:
        for part, (x, y) in enumerate(torch.as_tensor(fitted.keypoints).tolist()):
            if fitted.visible[part]:
                draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=part_colour(part), outline="white")
    return picture


class _Legend:
    """The colour of each part, in as many lines as it takes."""

    def __init__(self, parts: Sequence[str], masks: bool, width: int) -> None:
        self.font = ImageFont.load_default(11)
        entries = ([("outline of the mask", _MASK)] if masks else []) + [
            (name, part_colour(index)) for index, name in enumerate(parts)
        ]
        self.placed: list[tuple[int, int, str, tuple[int, int, int]]] = []
        x, y = _MARGIN, 6
        for name, colour in entries:
            length = 16 + round(self.font.getlength(name)) + 14
            if x + length > width and x > _MARGIN:
                x, y = _MARGIN, y + 18
            self.placed.append((x, y, name, colour))
            x += length
        self.height = y + 22 if entries else 0

    def draw(self, draw: ImageDraw.ImageDraw, top: int) -> None:
        for x, y, name, colour in self.placed:
            draw.ellipse((x, top + y + 2, x + 10, top + y + 12), fill=colour, outline=_GREY)
            draw.text((x + 15, top + y), name, fill="black", font=self.font)


def _cut(
    text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int, keep_end: bool = False
) -> str:  # fmt: skip
    """As much of the text as there is room for; files mostly differ at the end of their names."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[1:] if keep_end else text[:-1]
    return f"…{text}" if keep_end else f"{text}…"
