"""Images for pages and figures: maps as transparent overlays, photographs as JPEG, both as data URIs.

A sheet of samples, with or without what is annotated on them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image, ImageDraw
from torch import Tensor

from dapl.data.sample import Sample
from dapl.data.transforms import fit

Stop = tuple[float, int, int, int, float]
"""Value in [0, 1], red, green, blue, opacity."""

HEAT: tuple[Stop, ...] = (
    (0.0, 12, 10, 40, 0.55),
    (0.45, 50, 10, 70, 0.42),
    (0.7, 200, 40, 50, 0.3),
    (0.88, 255, 130, 10, 0.38),
    (1.0, 255, 230, 80, 0.6),
)
"""Where a prototype is active: a dark veil elsewhere, so that it shows on an image of any colour."""
ATTENTION: tuple[Stop, ...] = (
    (0.0, 8, 12, 40, 0.6),
    (0.25, 15, 60, 140, 0.5),
    (0.6, 30, 170, 220, 0.4),
    (1.0, 190, 255, 245, 0.7),
)
"""From where attention took its values."""
_OVERLAY_SIDE = 75
"""Overlays are smooth: a third of the resolution of an image is enough for them, at a ninth of the bytes."""


def jpeg_uri(image: Tensor, quality: int = 88) -> str:
    """uint8 3×h×w as a JPEG."""
    stream = io.BytesIO()
    to_pil(image).save(stream, "JPEG", quality=quality)
    return data_uri(stream.getvalue(), "jpeg")


def overlay_uri(values: Tensor, stops: tuple[Stop, ...] = HEAT) -> str:
    """A map h×w as a PNG that is transparent where the map is low; scaled to its own range."""
    step = -(-values.shape[-1] // _OVERLAY_SIDE)
    levels = levels_of(values[step // 2 :: step, step // 2 :: step])
    image = Image.fromarray(levels, mode="P")
    colours = palette(stops)
    image.putpalette(colours[:, :3].tobytes())
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1, transparency=colours[:, 3].tobytes())
    return data_uri(stream.getvalue(), "png")


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
    return Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))


def levels_of(values: Tensor) -> np.ndarray:
    """uint8 h×w: 0 at the least value, 255 at the greatest; 0 everywhere where there is one value only."""
    low, high = float(values.min()), float(values.max())
    return ((values - low) * (255 / max(high - low, 1e-12))).round().byte().numpy()


@cache
def palette(stops: Sequence[Stop]) -> np.ndarray:
    """uint8 256×4, RGBA."""
    places, *channels = np.array(stops).T
    scaled = [np.interp(np.linspace(0, 1, 256), places, channel) for channel in channels]
    scaled[3] = scaled[3] * 255
    return np.stack(scaled, axis=1).round().astype(np.uint8)


def percentage(share: float) -> str:
    """A probability for a person: nothing is certain, nothing impossible."""
    return ">99.9%" if 0.9995 <= share < 1 else "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def signed(value: float) -> str:
    """Three decimals, with a minus that is as wide as a plus."""
    return f"{value:.3f}".replace("-", "−")


def contact_sheet(samples: Sequence[Sample], columns: int, tile: int = 128, annotations: bool = False) -> Image.Image:
    """Samples in rows, each fitted to a square tile; with ``annotations`` parts are tinted and keypoints dotted."""
    rows = -(-len(samples) // columns)
    sheet = Image.new("RGB", (columns * tile, rows * tile), "white")
    for number, sample in enumerate(samples):
        fitted = fit(sample, tile)
        image = draw_annotations(fitted) if annotations else Image.fromarray(_pixels(fitted))
        sheet.paste(image, (number % columns * tile, number // columns * tile))
    return sheet


def draw_annotations(sample: Sample, strength: float = 0.6) -> Image.Image:
    """Parts (or, without them, the foreground) tinted, visible keypoints dotted, the box outlined."""
    pixels = _pixels(sample).astype(np.float32)
    masks = sample.part_masks if sample.part_masks is not None else sample.mask
    if masks is not None:
        for part, mask in enumerate(masks.reshape(-1, *pixels.shape[:2]).numpy().astype(bool)):
            pixels[mask] = pixels[mask] * (1 - strength) + np.array(part_colour(part)) * strength
    image = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(image)
    if sample.box is not None:
        draw.rectangle(torch.as_tensor(sample.box)[0].tolist(), outline=(255, 255, 255))
    if sample.keypoints is not None and sample.visible is not None:
        for part, (x, y) in enumerate(torch.as_tensor(sample.keypoints).tolist()):
            if sample.visible[part]:
                draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=part_colour(part), outline="white")
    return image


def part_colour(part: int) -> tuple[int, int, int]:
    """The colour of a part, the same in every image; twenty of them before they repeat."""
    red, green, blue, _ = colormaps["tab20"](part % 20)
    return round(red * 255), round(green * 255), round(blue * 255)


def _pixels(sample: Sample) -> np.ndarray:
    """uint8 H×W×3."""
    return np.ascontiguousarray(torch.as_tensor(sample.image).permute(1, 2, 0).numpy())
