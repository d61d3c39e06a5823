"""Pictures for pages and figures: maps as transparent overlays, photographs as JPEG, both as data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image
from torch import Tensor

Stop = tuple[float, int, int, int, float]
"""Value in [0, 1], red, green, blue, opacity."""

HEAT: tuple[Stop, ...] = (
    (0.0, 12, 10, 40, 0.55), (0.45, 50, 10, 70, 0.42), (0.7, 200, 40, 50, 0.3), (0.88, 255, 130, 10, 0.38),
    (1.0, 255, 230, 80, 0.6),
)  # fmt: skip
"""Where a prototype is active: a dark veil elsewhere, so that it shows on a picture of any colour."""
ATTENTION: tuple[Stop, ...] = (
    (0.0, 8, 12, 40, 0.6), (0.25, 15, 60, 140, 0.5), (0.6, 30, 170, 220, 0.4), (1.0, 190, 255, 245, 0.7)
)  # fmt: skip
"""From where attention took its values."""
_OVERLAY_SIDE = 75
"""Overlays are smooth: a third of the resolution of a picture is enough for them, at a ninth of the bytes."""


def jpeg_uri(image: Tensor, quality: int = 88) -> str:
    """uint8 3×h×w as a JPEG."""
    stream = io.BytesIO()
    picture_of(image).save(stream, "JPEG", quality=quality)
    return data_uri(stream.getvalue(), "jpeg")


def overlay_uri(values: Tensor, stops: tuple[Stop, ...] = HEAT) -> str:
    """A map h×w as a PNG that is transparent where the map is low; scaled to its own range."""
    step = -(-values.shape[-1] // _OVERLAY_SIDE)
    levels = levels_of(values[step // 2 :: step, step // 2 :: step])
    picture = Image.fromarray(levels, mode="P")
    colours = palette(stops)
    picture.putpalette(colours[:, :3].tobytes())
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=1, transparency=colours[:, 3].tobytes())
    return data_uri(stream.getvalue(), "png")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def blended(image: Tensor, values: Tensor, stops: tuple[Stop, ...] = HEAT) -> Image.Image:
    """The picture (uint8 3×S×S) under the overlay of a map of any size."""
    picture = picture_of(image)
    colours = palette(stops)
    levels = Image.fromarray(levels_of(values)).resize(picture.size, Image.Resampling.BICUBIC)
    layer = Image.fromarray(colours[np.asarray(levels)])
    return Image.alpha_composite(picture.convert("RGBA"), layer).convert("RGB")


def picture_of(image: Tensor) -> Image.Image:
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
