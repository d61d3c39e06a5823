"""Keypoints, boxes and part masks of a data set at the size the model sees, read once and kept as small files.

The metrics want them for every picture; reading them from the data set would decode every picture again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dapl.data.arrays import open_array, read_arrays
from dapl.data.sample import Dataset, Sample
from dapl.data.transforms import Fit, fit
from dapl.errors import DaplError
from dapl.files import replacing


@dataclass(frozen=True)
class Annotations:
    """What is known of the parts of n pictures of size×size pixels, K parts each."""

    keypoints: Tensor
    """float32 n×K×2, (x, y) in pixels; 0 where a part is not visible."""
    visible: Tensor
    """bool n×K."""
    boxes: Tensor
    """float32 n×4, XYXY; 0 where there is none."""
    packed: np.ndarray | None
    """Exact part masks, eight pixels a byte: uint8 n×K×size×⌈size/8⌉, maybe a memory map; None where there are none."""
    size: int

    def __len__(self) -> int:
        return len(self.keypoints)

    def rows(self, rows: Sequence[int] | Tensor) -> Annotations:
        index = torch.as_tensor(rows)
        packed = None if self.packed is None else np.asarray(self.packed[index.numpy()])
        return Annotations(self.keypoints[index], self.visible[index], self.boxes[index], packed, self.size)

    def part_masks(self) -> Tensor | None:
        """bool n×K×size×size where exact masks exist."""
        if self.packed is None:
            return None
        return torch.from_numpy(np.unpackbits(self.packed, axis=-1, count=self.size).view(np.bool_))


class AnnotationReader:
    """The annotations of single samples as arrays of the same shape for each picture of a data set."""

    def __init__(self, dataset: Dataset, size: int, how: Fit) -> None:
        self.dataset, self.size, self.how = dataset, size, how
        self.exact = len(dataset) > 0 and dataset[0].part_masks is not None

    def arrays(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keypoints K×2, visible K, box 4 and packed part masks (empty where there are none) of a fitted sample."""
        if (sample.part_masks is not None) != self.exact:
            raise DaplError(
                f"{sample.name}: {'has no' if self.exact else 'has'} part masks, unlike the first picture of the data "
                "set; give them for all pictures or for none."
            )
        parts = len(self.dataset.parts)
        keypoints, visible = torch.zeros(parts, 2), torch.zeros(parts, dtype=torch.bool)
        if sample.keypoints is not None:
            keypoints = sample.keypoints.as_subclass(Tensor)
            visible = torch.ones(parts, dtype=torch.bool) if sample.visible is None else sample.visible
        box = torch.zeros(4) if sample.box is None else sample.box.as_subclass(Tensor)[0]
        packed = np.empty(0, np.uint8)
        if sample.part_masks is not None:
            packed = np.packbits(sample.part_masks.as_subclass(Tensor).numpy(), axis=-1)
        return keypoints, visible, box, torch.from_numpy(packed)

    def read(self, rows: Sequence[int]) -> Annotations:
        """Straight from the data set, which decodes each picture."""
        return stacked([self.arrays(fit(self.dataset[row], self.size, self.how)) for row in rows], self.size)


def stacked(arrays: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], size: int) -> Annotations:
    keypoints, visible, boxes, packed = (torch.stack(list(column)) for column in zip(*arrays, strict=True))
    return Annotations(keypoints, visible, boxes, packed.numpy() if packed.numel() else None, size)


def write_annotations(folder: Path, key: str, count: int, batches: Iterable[Sequence[Tensor]]) -> None:
    """``batches`` of what `AnnotationReader.arrays` gives, in order. Masks go to their file as they come.

    Two files: the masks, which are mapped into memory, and the rest, whose presence says that both are whole.
    """
    small: list[Sequence[Tensor]] = []
    masks: np.memmap | None = None
    start = 0
    with ExitStack() as stack:
        for *rest, packed in batches:
            small.append(rest)
            if packed.numel():
                if masks is None:
                    file = stack.enter_context(replacing(_masks(folder, key)))
                    masks = np.lib.format.open_memmap(file, "w+", np.uint8, (count, *packed.shape[1:]))
                masks[start : start + len(packed)] = packed.numpy()
            start += len(packed)
        if masks is not None:
            masks.flush()
    keypoints, visible, boxes = (torch.cat(list(column)).numpy() for column in zip(*small, strict=True))
    with replacing(_points(folder, key)) as temporary, temporary.open("wb") as stream:
        np.savez(stream, keypoints=keypoints, visible=visible, boxes=boxes, exact=np.array(masks is not None))


def open_annotations(folder: Path, key: str, size: int) -> Annotations | None:
    """What `write_annotations` left behind, if it did."""
    if not _points(folder, key).exists():
        return None
    *arrays, has_masks = read_arrays(_points(folder, key), ("keypoints", "visible", "boxes", "exact"))
    keypoints, visible, boxes = (torch.from_numpy(array) for array in arrays)
    exact = bool(has_masks)
    if exact and not _masks(folder, key).exists():
        return None
    return Annotations(keypoints, visible, boxes, open_array(_masks(folder, key)) if exact else None, size)


def _points(folder: Path, key: str) -> Path:
    return folder / f"{key}-annotations.npz"


def _masks(folder: Path, key: str) -> Path:
    return folder / f"{key}-parts.npy"
