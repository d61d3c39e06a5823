"""Pictures decoded and resized once: uint8 arrays on disk that every process and every later run maps into memory."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dapl.data.annotations import AnnotationReader, Annotations, open_annotations, write_annotations
from dapl.data.arrays import open_array
from dapl.data.sample import Dataset, Sample, Subset
from dapl.data.transforms import Fit, fit
from dapl.files import replacing

_VERSION = 1  # raise when the same arguments would give other pixels
WORKERS_BY = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
"""How loading processes start: a process of several on one machine was spawned itself and would spawn them, slowly."""


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
    opened = open_array(masks) if dataset.has_masks else None
    return Pixels(open_array(images), opened, key)


def load_annotations(
    dataset: Dataset,
    size: int,
    how: Fit,
    folder: Path,
    workers: int = 0,
    advance: Callable[[int], None] = lambda count: None,
) -> Annotations:
    """Keypoints, boxes and part masks of ``dataset`` at the size of its `Pixels`, made first where they do not exist.

    They mostly do: whoever decodes the pictures writes them as well.
    """
    key = pixels_key(dataset, size, how)
    found = open_annotations(folder, key, size)
    if found is None:
        loader = _loader(dataset, size, how, workers)
        write_annotations(folder, key, len(dataset), (_told(batch[2:], advance) for batch in loader))
        found = open_annotations(folder, key, size)
    assert found is not None
    return found


class Decoded(torch.utils.data.Dataset):
    """A data set's pictures and masks at one size, as plain tensors, in the shape a DataLoader wants."""

    def __init__(self, dataset: Dataset, size: int, how: Fit) -> None:
        self.dataset, self.size, self.how = dataset, size, how

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """uint8 3×S×S and uint8 S×S (empty where there is no mask)."""
        return _plain(fit(self.dataset[index], self.size, self.how))


class Annotated(Decoded):
    """As `Decoded`, and beside picture and mask all that `AnnotationReader.arrays` gives."""

    def __init__(self, dataset: Dataset, size: int, how: Fit) -> None:
        super().__init__(dataset, size, how)
        self.reader = AnnotationReader(dataset, size, how)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:  # type: ignore[override]
        sample = fit(self.dataset[index], self.size, self.how)
        return *_plain(sample), *self.reader.arrays(sample)


def _plain(sample: Sample) -> tuple[Tensor, Tensor]:
    mask = torch.empty(0, dtype=torch.uint8) if sample.mask is None else sample.mask.as_subclass(Tensor)
    return sample.image.as_subclass(Tensor), mask


def _loader(dataset: Dataset, size: int, how: Fit, workers: int) -> DataLoader:
    return DataLoader(Annotated(dataset, size, how), batch_size=16, num_workers=workers, generator=torch.Generator())


def _told(batch: Sequence[Tensor], advance: Callable[[int], None]) -> Sequence[Tensor]:
    advance(len(batch[0]))
    return batch


def _write(
    dataset: Dataset, size: int, how: Fit, images: Path, masks: Path, workers: int, advance: Callable[[int], None]
) -> None:
    """One pass over the data set: pictures, masks and annotations."""
    count = len(dataset)
    key = pixels_key(dataset, size, how)
    with replacing(images) as image_file, replacing(masks) as mask_file:
        image_rows = np.lib.format.open_memmap(image_file, "w+", np.uint8, (count, 3, size, size))
        mask_rows = np.lib.format.open_memmap(
            mask_file, "w+", np.uint8, (count if dataset.has_masks else 0, size, size)
        )

        def annotations() -> Iterator[Sequence[Tensor]]:
            start = 0
            for batch, batch_masks, *rest in _loader(dataset, size, how, workers):
                stop = start + len(batch)
                image_rows[start:stop] = batch.numpy()
                if dataset.has_masks:
                    mask_rows[start:stop] = batch_masks.numpy()
                advance(len(batch))
                start = stop
                yield rest

        write_annotations(images.parent, key, count, annotations())
        image_rows.flush()
        mask_rows.flush()
