"""Pictures as the bytes that are sent."""

from __future__ import annotations

import base64

from torch import Tensor

from dapl.explain.draw import ATTENTION, jpeg_uri, overlay_uri


def jpeg(image: Tensor) -> bytes:
    """uint8 3×h×w."""
    return _content(jpeg_uri(image, quality=90))


def heat_png(heat: Tensor) -> bytes:
    """S×S: where a prototype is active."""
    return _content(overlay_uri(heat))


def attention_png(attention: Tensor) -> bytes:
    """H×W: from where a place took its values."""
    return _content(overlay_uri(attention, ATTENTION))


def _content(uri: str) -> bytes:
    return base64.b64decode(uri.partition(",")[2])
