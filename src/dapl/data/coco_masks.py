"""Segmentations of COCO: polygons and run lengths, compressed or not, decoded by pycocotools."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from torchvision import tv_tensors

from dapl.common.errors import DaplError, needing
from dapl.data.listing import ImageSize

_FIRST, _GOES_ON, _NEGATIVE = 48, 32, 16
"""Compressed run lengths are characters of six bits from '0' on: one says that the number goes on, and the highest of
its last five that it is negative."""


def coco_mask_module() -> Any:
    """`pycocotools.mask`, or an error that names the extra it comes with."""
    with needing("data.name: segmentations of COCO are decoded by pycocotools", "coco"):
        from pycocotools import mask
    return mask


@dataclass(frozen=True)
class Segmentations:
    """The masks of one or several objects of an image, taken together."""

    values: tuple[Any, ...]
    """As the JSON has them: lists of polygons, or dictionaries of run lengths."""
    origin: str
    """Where they stand, for messages."""

    def read(self, frame: ImageSize, image: Path) -> tv_tensors.Mask:
        merged = np.zeros(frame, np.uint8)
        for value in self.values:
            merged |= decode(value, frame, self.origin)
        return tv_tensors.Mask(torch.from_numpy(merged))

    def identity(self) -> str:
        return hashlib.blake2b(json.dumps(self.values).encode(), digest_size=16).hexdigest()


def decode(segmentation: Any, frame: ImageSize, origin: str) -> np.ndarray:
    """uint8 H×W in {0, 1}, as pycocotools has it; ``origin`` is named where the segmentation is not one."""
    height, width = frame
    tools = coco_mask_module()
    if isinstance(segmentation, dict):
        counts = _run_lengths(segmentation, frame, origin)
        run_lengths = {"size": [height, width], "counts": counts}
        encoded = tools.frPyObjects(run_lengths, height, width) if isinstance(counts, list) else run_lengths
    else:
        polygons = _polygons(segmentation, origin)
        encoded = tools.merge(tools.frPyObjects(polygons, height, width))
    try:
        return tools.decode(encoded)
    except (ValueError, TypeError) as error:
        raise DaplError(f"{origin}: the segmentation cannot be decoded ({error}); export it again.") from error


def _polygons(value: Any, origin: str) -> list[list[float]]:
    if not isinstance(value, list) or not value or not all(_is_polygon(polygon) for polygon in value):
        raise DaplError(
            f"{origin}: the segmentation is neither run lengths nor a list of polygons, each of three or more points"
            f" [x1, y1, x2, y2, …]; export it again."
        )
    return [[float(number) for number in polygon] for polygon in value]


def _is_polygon(value: Any) -> bool:
    numbers = isinstance(value, list) and len(value) >= 6 and len(value) % 2 == 0
    return numbers and all(isinstance(n, int | float) and abs(n) < 1e6 for n in value)  # false for nan as well


def _run_lengths(value: dict[str, Any], frame: ImageSize, origin: str) -> list[int] | bytes:
    """The counts, seen to be sound: pycocotools reads beyond the end of some that are not, or leaves pixels unset."""
    height, width = frame
    size, counts = value.get("size"), value.get("counts")
    if size != [height, width]:
        shown = f"{size[1]}×{size[0]}" if isinstance(size, list) and len(size) == 2 else repr(size)
        raise DaplError(
            f"{origin}: the mask is {shown}, but its image is {width}×{height} (width×height, upright by EXIF);"
            f" annotate the upright image, or put the image back that was annotated."
        )
    lengths = _lengths(counts) if isinstance(counts, str) else counts
    sound = isinstance(lengths, list) and all(type(n) is int and n >= 0 for n in lengths)
    if not sound or sum(lengths) != height * width:  # type: ignore[arg-type]
        raise DaplError(
            f"{origin}: the run lengths of the segmentation do not add up to {width}×{height} pixels; export it again."
        )
    return counts.encode("ascii") if isinstance(counts, str) else counts  # type: ignore[return-value]


def _lengths(counts: str) -> list[int] | None:
    """Compressed run lengths as numbers: five bits a character, the lowest first, from the third on as differences."""
    lengths: list[int] = []
    number = shift = 0
    for character in counts:
        bits = ord(character) - _FIRST
        if not 0 <= bits < 64:
            return None
        number |= (bits & 31) << shift
        shift += 5
        if not bits & _GOES_ON:
            if bits & _NEGATIVE:
                number -= 1 << shift
            lengths.append(number + (lengths[-2] if len(lengths) > 2 else 0))
            number = shift = 0
    return lengths if shift == 0 else None
