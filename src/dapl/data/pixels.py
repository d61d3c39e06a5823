"""Pictures decoded and resized once: uint8 arrays on disk that every process and every later run maps into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dapl.data.sample import Dataset, Subset
from dapl.data.transforms import Fit, fit
from dapl.files import replacing

_VERSION = 1  # raise when the same arguments would give other pixels


@dataclass(frozen=True)
class Pixels:
    """All pictures of a data set at one size. Arrays may be memory maps."""

    images: np.ndarray
    """uint8 n×3×S×S."""
    masks: np.ndarray | None
    """uint8 n×S×S in {0, 1}, or None where the data set has no masks."""
    key: str
    """Names the content: the same key, the same pixels."""


def base_rows(dataset: Dataset) -> tuple[Dataset, list[int]]:
    """The data set behind any subsets, and the rows of it that ``dataset`` shows: caches are kept for the former."""
    rows = list(range(len(dataset)))
    while isinstance(dataset, Subset):
        rows = [dataset.indices[row] for row in rows]
        dataset = dataset.dataset
    return dataset, rows


def pixels_key(dataset: Dataset, size: int, how: Fit) -> str:
    text = f"{_VERSION}/{dataset.fingerprint}/{size}/{how}/{len(dataset)}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def load_pixels(
    dataset: Dataset,
    size: int,
    how: Fit,
    folder: Path,
    workers: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> Pixels:
    """Open the arrays of ``dataset``, making them first where they do not exist; ``advance`` hears of each batch."""
    key = pixels_key(dataset, size, how)
    images, masks = folder / f"{key}-images.npy", folder / f"{key}-masks.npy"
    if not (images.exists() and (masks.exists() or not dataset.has_masks)):
        _write(dataset, size, how, images, masks, workers, advance)
    opened = np.load(masks, mmap_mode="r") if dataset.has_masks else None
    return Pixels(np.load(images, mmap_mode="r"), opened, key)


class Decoded(torch.utils.data.Dataset):
    """A data set's pictures and masks at one size, as plain tensors, in the shape a DataLoader wants."""

    def __init__(self, dataset: Dataset, size: int, how: Fit) -> None:
        self.dataset, self.size, self.how = dataset, size, how

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """uint8 3×S×S and uint8 S×S (empty where there is no mask)."""
        sample = fit(self.dataset[index], self.size, self.how)
        mask = torch.empty(0, dtype=torch.uint8) if sample.mask is None else sample.mask.as_subclass(Tensor)
        return sample.image.as_subclass(Tensor), mask


def _write(
    dataset: Dataset, size: int, how: Fit, images: Path, masks: Path, workers: int, advance: Callable[[int], None]
) -> None:
    loader = DataLoader(Decoded(dataset, size, how), batch_size=16, num_workers=workers)
    count = len(dataset)
    with replacing(images) as image_file, replacing(masks) as mask_file:
        image_rows = np.lib.format.open_memmap(image_file, "w+", np.uint8, (count, 3, size, size))
        mask_rows = np.lib.format.open_memmap(
            mask_file, "w+", np.uint8, (count if dataset.has_masks else 0, size, size)
        )
        start = 0
        for batch, batch_masks in loader:
            stop = start + len(batch)
            image_rows[start:stop] = batch.numpy()
            if dataset.has_masks:
                mask_rows[start:stop] = batch_masks.numpy()
            advance(len(batch))
            start = stop
        image_rows.flush()
        mask_rows.flush()
