"""What pages, figures and sheets are drawn with: overlays, data URIs, sheets of tiles, and annotations on an image."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dapl.data.sample import Sample
from dapl.data.transforms import fit
from dapl.metrics.naming import plain_name, share_text
from dapl.runs.outlines import lines_of

Stop = tuple[float, int, int, int, float]
"""Value in [0, 1], red, green, blue, opacity."""

HEAT: tuple[Stop, ...] = (
    (0.0, 60, 20, 70, 0.18),
    (0.45, 150, 30, 80, 0.16),
    (0.7, 225, 60, 40, 0.3),
    (0.88, 255, 140, 10, 0.45),
    (1.0, 255, 235, 90, 0.62),
)
"""Where a prototype is active. Elsewhere the veil is thin: the object must stay visible."""
ATTENTION: tuple[Stop, ...] = (
    (0.0, 20, 30, 80, 0.2),
    (0.25, 20, 80, 160, 0.28),
    (0.6, 30, 170, 220, 0.4),
    (1.0, 190, 255, 245, 0.7),
)
"""From where attention took its values."""
HEAD_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#ffffff")
"""One per head, the same in every place: the colours of Okabe and Ito, which colour-blind people tell apart, with white
for their black, which would be lost on images. Further heads begin again, with dashed lines."""
OVERLAY_SIDE = 28
"""Overlays are smooth, and a browser smooths them again: a few pixels are enough."""


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The file of an image; ``kind`` and ``options`` as `PIL.Image.Image.save` takes them."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def jpeg(image: Tensor, quality: int = 88) -> bytes:
    """uint8 3×h×w as a JPEG."""
    return encoded(to_pil(image), "JPEG", quality=quality)


def overlay(values: Tensor, stops: tuple[Stop, ...] = HEAT) -> bytes:
    """A map h×w as a PNG that is transparent where the map is low; scaled to its own range."""
    return _shades_png(_shades(values.unsqueeze(0))[0], stops, level=1)


def overlay_strip(values: Tensor, stops: tuple[Stop, ...] = HEAT) -> tuple[bytes, int]:
    """Maps M×h×h as overlays in one PNG, one below the other, and the side of one of them in it.

    Around each is a border of one pixel that repeats its edge: who smooths one of them does not see the next one.
    """
    shades = _shades(values)
    side = shades.shape[-1]
    edge = [0, *range(side), side - 1]
    return _shades_png(shades.take(edge, 1).take(edge, 2).reshape(-1, side + 2), stops, level=0), side


def _shades(values: Tensor) -> np.ndarray:
    """Maps M×h×w, each scaled to its own range: uint8, no finer than an overlay needs."""
    step = -(-values.shape[-1] // OVERLAY_SIDE)
    shown = values[:, step // 2 :: step, step // 2 :: step].numpy()
    low, high = shown.min((1, 2), keepdims=True), shown.max((1, 2), keepdims=True)
    return ((shown - low) * ((_SHADES - 1) / np.maximum(high - low, 1e-12)) + 0.5).astype(np.uint8)


def _shades_png(shades: np.ndarray, stops: tuple[Stop, ...], level: int) -> bytes:
    """``level``: of compression; without it a page is a little larger, and made faster."""
    height, width = shades.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with the filter of PNG, none
    lines[:, 1:] = shades
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
    pixels = _chunk(b"IDAT", zlib.compress(lines.tobytes(), level))
    return b"\x89PNG\r\n\x1a\n" + header + _palette_chunks(stops) + pixels + _chunk(b"IEND", b"")


_SHADES = 64


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file. Pillow would take four times as long for an image this small."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@cache
def _palette_chunks(stops: tuple[Stop, ...]) -> bytes:
    colours = palette(stops)[np.rint(np.linspace(0, 255, _SHADES)).astype(int)]
    return _chunk(b"PLTE", colours[:, :3].tobytes()) + _chunk(b"tRNS", colours[:, 3].tobytes())


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def blended(image: Tensor, values: Tensor, stops: tuple[Stop, ...] = HEAT) -> Image.Image:
    """The image (uint8 3×S×S) under the overlay of a map of any size."""
    under = to_pil(image)
    colours = palette(stops)
    levels = Image.fromarray(levels_of(values)).resize(under.size, Image.Resampling.BICUBIC)
    layer = Image.fromarray(colours[np.asarray(levels)])
    return Image.alpha_composite(under.convert("RGBA"), layer).convert("RGB")


def to_pil(image: Tensor) -> Image.Image:
    """uint8 3×h×w."""
    height, width = image.shape[-2:]
    planes = torch.as_tensor(image).contiguous().numpy()
    # Plane by plane: to bring the colours of a pixel side by side takes longer than to write the file.
    return Image.merge("RGB", [Image.frombuffer("L", (width, height), plane, "raw", "L", 0, 1) for plane in planes])


def levels_of(values: Tensor) -> np.ndarray:
    """Maps …×h×w → uint8: 0 at the least value of a map, 255 at its greatest; 0 where it has one value only."""
    low, high = values.amin((-2, -1), keepdim=True), values.amax((-2, -1), keepdim=True)
    scale = 255 / (high.double() - low.double()).clamp(min=1e-12)
    return ((values - low) * scale.to(values.dtype)).round().byte().numpy()


@cache
def palette(stops: Sequence[Stop]) -> np.ndarray:
    """uint8 256×4, RGBA."""
    places, *channels = np.array(stops).T
    scaled = [np.interp(np.linspace(0, 1, 256), places, channel) for channel in channels]
    scaled[3] = scaled[3] * 255
    return np.stack(scaled, axis=1).round().astype(np.uint8)


def head_colour(slot: int) -> str:
    """The colour of a head, or of the n-th prototype of a class where a system has no heads.

    >>> head_colour(1) == head_colour(9), is_dashed(1), is_dashed(9)
    (True, False, True)
    """
    return HEAD_COLOURS[slot % len(HEAD_COLOURS)]


def is_dashed(slot: int) -> bool:
    """Whether its lines are dashed, because all colours are taken."""
    return slot >= len(HEAD_COLOURS)


def percentage(share: float) -> str:
    """A probability for a person: nothing is certain, nothing impossible."""
    return ">99.9%" if 0.9995 <= share < 1 else "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def signed(value: float) -> str:
    """Three decimals, with a minus that is as wide as a plus."""
    return f"{value:.3f}".replace("-", "−")


@cache
def templates(*packages: str) -> Environment:
    """The Jinja templates of packages. Everything is escaped: names of classes and files are anyone's words."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": signed, "exact": repr, "percent": percentage, "share": share_text, "soft": breakable}
    made.filters["plain"] = plain_name
    return made


def breakable(name: str) -> Markup:
    """A name, escaped, that may be broken after each underscore instead of anywhere."""
    return Markup(str(escape(name)).replace("_", "_<wbr>"))


class TileSheet:
    """A sheet with room for tiles of one size in rows, and for words above each row and below each tile.

    >>> sheet = TileSheet(count=5, tile=10, columns=3, margin=2, below=4)
    >>> sheet.image.size
    (38, 34)
    >>> sheet.place(4)
    (14, 18)

    Args:
        count: tiles that the sheet has room for.
        tile: side of a tile in pixels.
        columns: tiles per row; fewer where there are fewer tiles.
        margin: pixels around and between tiles.
        above: pixels above each row of tiles.
        below: pixels below each tile.
        foot: pixels at the end of the sheet.
        least_width: the sheet is at least this wide.
        mode: of the PIL image.
        ground: the colour where no tile lies.
    """

    def __init__(
        self,
        count: int,
        tile: int,
        columns: int,
        margin: int = 0,
        above: int = 0,
        below: int = 0,
        foot: int = 0,
        least_width: int = 0,
        mode: str = "RGB",
        ground: str | int = "white",
    ) -> None:
        self.columns = max(1, min(columns, count))
        self._across, self._down = tile + margin, above + tile + below + margin
        self._left, self._top = margin, margin + above
        rows = -(-max(1, count) // self.columns)
        size = (max(least_width, self.columns * self._across + margin), rows * self._down + margin + foot)
        self.image = Image.new(mode, size, ground)
        self.draw = ImageDraw.Draw(self.image)

    def place(self, number: int) -> tuple[int, int]:
        """Left and top of a tile."""
        row, column = divmod(number, self.columns)
        return self._left + column * self._across, self._top + row * self._down

    def paste(self, number: int, tile: Image.Image) -> tuple[int, int]:
        """Lay a tile in its place, which is returned."""
        self.image.paste(tile, self.place(number))
        return self.place(number)


def fitting_text(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: float, end: bool = False) -> str:
    """As much of the text as there is room for, from its beginning, or from its ``end``, where file names differ."""
    if font.getlength(text) <= room:
        return text
    while text and font.getlength(f"{text}…") > room:
        text = text[1:] if end else text[:-1]
    return f"…{text}" if end else f"{text}…"


def contact_sheet(samples: Sequence[Sample], columns: int, tile: int = 128, annotations: bool = False) -> Image.Image:
    """Samples in rows, each fitted to a square tile; with ``annotations`` parts are tinted and keypoints dotted."""
    sheet = TileSheet(len(samples), tile, columns)
    for number, sample in enumerate(samples):
        fitted = fit(sample, tile)
        sheet.paste(number, draw_annotations(fitted) if annotations else to_pil(fitted.image))
    return sheet.image


def draw_annotations(
    sample: Sample, strength: float = 0.6, mask_outline: tuple[int, int, int] | None = None, dot: int = 2
) -> Image.Image:
    """Parts (or, without them, the foreground) tinted, visible keypoints dotted, the box outlined.

    With ``mask_outline`` nothing is tinted, and the foreground is outlined in that colour instead.
    """
    pixels = np.asarray(to_pil(sample.image)).astype(np.float32)
    if mask_outline is not None:
        if sample.mask is not None:
            pixels[outline(torch.as_tensor(sample.mask).bool(), width=1).numpy()] = mask_outline
    else:
        masks = sample.part_masks if sample.part_masks is not None else sample.mask
        for part, mask in enumerate(() if masks is None else masks.reshape(-1, *pixels.shape[:2]).numpy().astype(bool)):
            pixels[mask] = pixels[mask] * (1 - strength) + np.array(part_colour(part)) * strength
    image = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(image)
    if sample.box is not None:
        draw.rectangle(torch.as_tensor(sample.box)[0].tolist(), outline=(255, 255, 255))
    if sample.keypoints is not None and sample.visible is not None:
        for part, (x, y) in enumerate(torch.as_tensor(sample.keypoints).tolist()):
            if sample.visible[part]:
                draw.ellipse((x - dot, y - dot, x + dot, y + dot), fill=part_colour(part), outline="white")
    return image


_PART_COLOURS = bytes.fromhex(
    "1f77b4 aec7e8 ff7f0e ffbb78 2ca02c 98df8a d62728 ff9896 9467bd c5b0d5"
    "8c564b c49c94 e377c2 f7b6d2 7f7f7f c7c7c7 bcbd22 dbdb8d 17becf 9edae5"
)
"""matplotlib's tab20, without importing matplotlib."""


def part_colour(part: int) -> tuple[int, int, int]:
    """The colour of a part, the same in every image; twenty of them before they repeat."""
    red, green, blue = _PART_COLOURS[part % 20 * 3 :][:3]
    return red, green, blue


def draw_outline(draw: ImageDraw.ImageDraw, path: str, colour: str, dashed: bool = False, width: int = 2) -> None:
    """The outline of a region (path data in pixels of the image drawn on) in a colour, dark below so that it shows."""
    for line in lines_of(path):
        closed = [*line, line[0]]
        draw.line(closed, fill="#303030", width=2 * width + 1, joint="curve")
        if dashed:
            for start, end in zip(closed[::2], closed[1::2], strict=False):
                draw.line([start, end], fill=colour, width=width)
        else:
            draw.line(closed, fill=colour, width=width, joint="curve")


def outline(region: Tensor, width: int = 2) -> Tensor:
    """The pixels within ``width`` outside a region: bool H×W → bool H×W."""
    wider = torch.nn.functional.max_pool2d(region[None, None].float(), 2 * width + 1, 1, width)[0, 0].bool()
    return wider & ~region
