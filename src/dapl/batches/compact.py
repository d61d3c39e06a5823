"""Images of a data set at the size the model sees as JPEG, for data whose pixels would take more room than there is."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dapl.batches.cache import (
    AGAIN,
    AnnotationReader,
    flush,
    new_array,
    open_array,
    pixels_key,
    plain,
    read_batches,
    write_annotations,
)
from dapl.common.files import replacing
from dapl.common.reading import regular_file
from dapl.data.sample import Dataset
from dapl.data.transforms import Fit, fit

_QUALITY = 95
_TRIED = 16
"""Images by which the size of all is foretold."""


@dataclass(frozen=True)
class CompactPixels:
    """All images of a data set at one size, encoded. Arrays may be memory maps."""

    encoded: np.ndarray
    """uint8, the JPEG files one after the other."""
    ends: np.ndarray
    """int64 n+1: image i is encoded[ends[i]:ends[i + 1]]."""
    packed_masks: np.ndarray | None
    """uint8 n×S×⌈S/8⌉, eight pixels per byte, or None where the data set has no masks."""
    size: int

    def image(self, row: int) -> Tensor:
        """uint8 3×S×S."""
        stream = io.BytesIO(self.encoded[self.ends[row] : self.ends[row + 1]].tobytes())
        with Image.open(stream) as file:
            return torch.from_numpy(np.array(file)).permute(2, 0, 1).contiguous()

    def mask(self, row: int) -> Tensor:
        """uint8 S×S in {0, 1}; empty where there are no masks."""
        if self.packed_masks is None:
            return torch.empty(0, dtype=torch.uint8)
        return torch.from_numpy(np.unpackbits(self.packed_masks[row], axis=-1, count=self.size))


def encode(image: Tensor) -> bytes:
    """uint8 3×S×S as JPEG, with the resolution of its colours kept."""
    stream = io.BytesIO()
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    Image.fromarray(pixels).save(stream, "JPEG", quality=_QUALITY, subsampling=0)
    return stream.getvalue()


def compact_bytes(dataset: Dataset, size: int, how: Fit) -> float:
    """The room that `load_compact` will take, foretold from some images."""
    rows = np.linspace(0, len(dataset) - 1, min(_TRIED, len(dataset))).astype(int).tolist()
    mean = sum(len(encode(plain(fit(dataset[row], size, how))[0])) for row in rows) / len(rows)
    return len(dataset) * (mean + 8 + (size * -(-size // 8) if dataset.has_masks else 0))


def compact_files(folder: Path, key: str, has_masks: bool) -> list[Path]:
    names = ["jpeg.bin", "ends.npy", *(["packed.npy"] if has_masks else [])]
    return [folder / f"{key}-{name}" for name in names]


def load_compact(
    dataset: Dataset,
    size: int,
    how: Fit,
    folder: Path,
    workers: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> CompactPixels:
    """Open the encoded images of ``dataset``, making them first where they do not exist."""
    key = pixels_key(dataset, size, how)
    files = compact_files(folder, key, dataset.has_masks)
    if not all(file.exists() for file in files):
        _write(dataset, size, how, folder, workers, advance)
    encoded = np.memmap(regular_file(files[0], AGAIN), np.uint8, "r")
    return CompactPixels(
        encoded, open_array(files[1], dtype=np.int64), open_array(files[2]) if files[2:] else None, size
    )


def _write(dataset: Dataset, size: int, how: Fit, folder: Path, workers: int, advance: Callable[[int], None]) -> None:
    key = pixels_key(dataset, size, how)
    files = compact_files(folder, key, dataset.has_masks)
    ends = np.zeros(len(dataset) + 1, np.int64)
    with ExitStack() as stack:
        temporary = [stack.enter_context(replacing(file)) for file in files]
        stream = stack.enter_context(temporary[0].open("wb"))
        shape = (len(dataset), size, -(-size // 8))
        packed = new_array(temporary[2], np.uint8, shape) if dataset.has_masks else None

        def annotations() -> Iterator[Sequence[Tensor]]:
            row = 0
            for images, masks, *rest in read_batches(dataset, size, how, advance, workers):
                if packed is not None:
                    packed[row : row + len(images)] = np.packbits(masks.numpy(), axis=-1)
                for image in images:
                    ends[row + 1] = ends[row] + stream.write(encode(image))
                    row += 1
                yield rest

        write_annotations(folder, key, len(dataset), annotations())
        flush(packed)
        with temporary[1].open("wb") as file:  # given a path, numpy would add .npy to it
            np.save(file, ends)


def pixels_bytes(dataset: Dataset, size: int, how: Fit) -> float:
    """The room that decoded images, their masks and exact masks of their parts take."""
    parts = len(dataset.parts) / 8 if AnnotationReader(dataset, size, how).exact else 0
    return len(dataset) * size * size * (3 + dataset.has_masks + parts)
