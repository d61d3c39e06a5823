"""A sheet of samples, with or without what is annotated on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image, ImageDraw

from dapl.data.sample import Sample
from dapl.data.transforms import fit


def contact_sheet(samples: Sequence[Sample], columns: int, tile: int = 128, annotations: bool = False) -> Image.Image:
    """Samples in rows, each fitted to a square tile; with ``annotations`` parts are tinted and keypoints dotted."""
    rows = -(-len(samples) // columns)
    sheet = Image.new("RGB", (columns * tile, rows * tile), "white")
    for number, sample in enumerate(samples):
        fitted = fit(sample, tile)
        picture = draw_annotations(fitted) if annotations else Image.fromarray(_pixels(fitted))
        sheet.paste(picture, (number % columns * tile, number // columns * tile))
    return sheet


def draw_annotations(sample: Sample, strength: float = 0.6) -> Image.Image:
    """Parts (or, without them, the foreground) tinted, visible keypoints dotted, the box outlined."""
    pixels = _pixels(sample).astype(np.float32)
    masks = sample.part_masks if sample.part_masks is not None else sample.mask
    if masks is not None:
        for part, mask in enumerate(masks.reshape(-1, *pixels.shape[:2]).numpy().astype(bool)):
            pixels[mask] = pixels[mask] * (1 - strength) + np.array(part_colour(part)) * strength
    picture = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    if sample.box is not None:
        draw.rectangle(torch.as_tensor(sample.box)[0].tolist(), outline=(255, 255, 255))
    if sample.keypoints is not None and sample.visible is not None:
        for part, (x, y) in enumerate(torch.as_tensor(sample.keypoints).tolist()):
            if sample.visible[part]:
                draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=part_colour(part), outline="white")
    return picture


def part_colour(part: int) -> tuple[int, int, int]:
    """The colour of a part, the same in every picture; twenty of them before they repeat."""
    red, green, blue, _ = colormaps["tab20"](part % 20)
    return round(red * 255), round(green * 255), round(blue * 255)


def _pixels(sample: Sample) -> np.ndarray:
    """uint8 H×W×3."""
    return np.ascontiguousarray(torch.as_tensor(sample.image).permute(1, 2, 0).numpy())
