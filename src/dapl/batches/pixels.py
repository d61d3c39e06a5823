"""Images, masks and annotations of a data set at the size the model sees: decoded once, kept on disk.

Images are kept as arrays, which every process and every later run maps into memory, or as JPEG where their pixels would
take more room than there is. The metrics want the annotations (keypoints, boxes and part masks) for every image;
reading them from the data set would decode every image again.
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from dapl.batches.cache import AGAIN, flush, new_array, open_array, read_arrays
from dapl.common.errors import DaplError
from dapl.common.files import mark_as_cache, replacing
from dapl.common.reading import regular_file
from dapl.data.sample import Dataset, Sample, Subset
from dapl.data.transforms import Fit, fit

_VERSION = 1  # raise when the same arguments would give other pixels
WORKERS_BY = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
"""How loading processes start: a process of several on one machine was spawned itself and would spawn them, slowly."""
_QUALITY = 95
_TRIED = 16
"""Images by which the size of all is foretold."""


@dataclass(frozen=True)
class Annotations:
    """What is known of the parts of n images of size×size pixels, K parts each."""

    keypoints: Tensor
    """float32 n×K×2, (x, y) in pixels; 0 where a part is not visible."""
    visible: Tensor
    """bool n×K."""
    boxes: Tensor
    """float32 n×4, XYXY; 0 where there is none."""
    packed: np.ndarray | None
    """Exact part masks, eight pixels per byte: uint8 n×K×size×⌈size/8⌉, maybe a memory map; None: none."""
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


class AnnotationReader(torch.utils.data.Dataset):
    """Images and their annotations as arrays of the same shape for each image, as a DataLoader wants them."""

    def __init__(self, dataset: Dataset, size: int, how: Fit) -> None:
        self.dataset, self.size, self.how = dataset, size, how
        self.exact = len(dataset) > 0 and dataset[0].part_masks is not None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """What `plain` and `arrays` give."""
        sample = fit(self.dataset[index], self.size, self.how)
        return *plain(sample), *self.arrays(sample)

    def arrays(self, sample: Sample) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keypoints K×2, visible K, box 4 and packed part masks (empty where there are none) of a fitted sample."""
        if (sample.part_masks is not None) != self.exact:
            raise DaplError(
                f"{sample.name}: {'has no' if self.exact else 'has'} part masks, unlike the first image of the data "
                "set; give them for all images or for none."
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
        """Straight from the data set, which decodes each image."""
        return stacked([self.arrays(fit(self.dataset[row], self.size, self.how)) for row in rows], self.size)


def stacked(arrays: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], size: int) -> Annotations:
    keypoints, visible, boxes, packed = (torch.stack(list(column)) for column in zip(*arrays, strict=True))
    return Annotations(keypoints, visible, boxes, packed.numpy() if packed.numel() else None, size)


def write_annotations(folder: Path, key: str, count: int, batches: Iterable[Sequence[Tensor]]) -> None:
    """``batches`` of what `AnnotationReader.arrays` gives, in order. Masks go to their file as they come.

    Two files: the masks, which are mapped into memory, and the rest, whose presence says that both are whole.
    """
    mark_as_cache(folder)
    small: list[Sequence[Tensor]] = []
    masks: np.ndarray | None = None
    start = 0
    with ExitStack() as stack:
        for *rest, packed in batches:
            small.append(rest)
            if packed.numel():
                if masks is None:
                    file = stack.enter_context(replacing(_files(folder, key)[1]))
                    masks = new_array(file, np.uint8, (count, *packed.shape[1:]))
                masks[start : start + len(packed)] = packed.numpy()
            start += len(packed)
        flush(masks)
    keypoints, visible, boxes = (torch.cat(list(column)).numpy() for column in zip(*small, strict=True))
    with replacing(_files(folder, key)[0]) as temporary, temporary.open("wb") as stream:
        np.savez(stream, keypoints=keypoints, visible=visible, boxes=boxes, exact=np.array(masks is not None))


def open_annotations(folder: Path, key: str, size: int) -> Annotations | None:
    """What `write_annotations` left behind, if it did."""
    points, masks = _files(folder, key)
    if not points.exists():
        return None
    *arrays, exact = read_arrays(points, ("keypoints", "visible", "boxes", "exact"))
    if exact and not masks.exists():
        return None
    keypoints, visible, boxes = (torch.from_numpy(one) for one in arrays)
    return Annotations(keypoints, visible, boxes, open_array(masks) if exact else None, size)


def _files(folder: Path, key: str) -> tuple[Path, Path]:
    """The files of the annotations, and of their part masks."""
    return folder / f"{key}-annotations.npz", folder / f"{key}-parts.npy"


@dataclass(frozen=True)
class Pixels:
    """All images of a data set at one size. Arrays may be memory maps."""

    images: np.ndarray
    """uint8 n×3×S×S."""
    masks: np.ndarray | None
    """uint8 n×S×S in {0, 1}, or None where the data set has no masks."""

    def image(self, row: int) -> Tensor:
        """uint8 3×S×S."""
        return torch.from_numpy(self.images[row].copy())

    def mask(self, row: int) -> Tensor:
        """uint8 S×S in {0, 1}; empty where there are no masks."""
        return torch.empty(0, dtype=torch.uint8) if self.masks is None else torch.from_numpy(self.masks[row].copy())


def base_rows(dataset: Dataset) -> tuple[Dataset, Sequence[int]]:
    """The data set behind any subsets, and the rows of it that ``dataset`` shows: caches are kept for the former."""
    rows: Sequence[int] = range(len(dataset))
    while isinstance(dataset, Subset):
        rows = array("q", (dataset.indices[row] for row in rows))
        dataset = dataset.dataset
    return dataset, rows


def pixels_key(dataset: Dataset, size: int, how: Fit) -> str:
    """Names the content: the same key, the same pixels."""
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
        _write_pixels(dataset, size, how, images, masks, workers, advance)
    return Pixels(open_array(images), open_array(masks) if dataset.has_masks else None)


def pixels_bytes(dataset: Dataset, size: int, how: Fit) -> float:
    """The room that decoded images, their masks and exact masks of their parts take."""
    parts = len(dataset.parts) / 8 if AnnotationReader(dataset, size, how).exact else 0
    return len(dataset) * size * size * (3 + dataset.has_masks + parts)


def load_annotations(
    dataset: Dataset, size: int, how: Fit, folder: Path, advance: Callable[[int], None] = lambda count: None
) -> Annotations:
    """Keypoints, boxes and part masks of ``dataset`` at the size of its `Pixels`, made first where they do not exist.

    They mostly do: whoever decodes the images writes them as well.
    """
    key = pixels_key(dataset, size, how)
    found = open_annotations(folder, key, size)
    if found is None:
        batches = (batch[2:] for batch in read_batches(dataset, size, how, advance))
        write_annotations(folder, key, len(dataset), batches)
        found = open_annotations(folder, key, size)
    assert found is not None
    return found


def plain(sample: Sample) -> tuple[Tensor, Tensor]:
    """Image and mask as plain tensors: uint8 3×S×S and uint8 S×S (empty where there is no mask)."""
    mask = torch.empty(0, dtype=torch.uint8) if sample.mask is None else sample.mask.as_subclass(Tensor)
    return sample.image.as_subclass(Tensor), mask


def read_batches(
    dataset: Dataset, size: int, how: Fit, advance: Callable[[int], None], workers: int = 0
) -> Iterator[Sequence[Tensor]]:
    """Batches of what an `AnnotationReader` gives, in order."""
    reader = AnnotationReader(dataset, size, how)
    for batch in DataLoader(reader, batch_size=16, num_workers=workers, generator=torch.Generator()):
        advance(len(batch[0]))
        yield batch


def _write_pixels(
    dataset: Dataset, size: int, how: Fit, images: Path, masks: Path, workers: int, advance: Callable[[int], None]
) -> None:
    mark_as_cache(images.parent)
    with replacing(images) as image_file, replacing(masks) as mask_file:
        image_rows = new_array(image_file, np.uint8, (len(dataset), 3, size, size))
        mask_rows = new_array(mask_file, np.uint8, (len(dataset) if dataset.has_masks else 0, size, size))

        def keep(rows: slice, batch: Tensor, batch_masks: Tensor) -> None:
            image_rows[rows] = batch.numpy()
            if dataset.has_masks:
                mask_rows[rows] = batch_masks.numpy()

        _decode_once(dataset, size, how, images.parent, workers, advance, keep)
        flush(image_rows, mask_rows)


def _decode_once(
    dataset: Dataset,
    size: int,
    how: Fit,
    folder: Path,
    workers: int,
    advance: Callable[[int], None],
    keep: Callable[[slice, Tensor, Tensor], None],
) -> None:
    """One pass over the data set: ``keep`` gets the rows, images and masks of each batch; annotations are written."""

    def annotations() -> Iterator[Sequence[Tensor]]:
        start = 0
        for images, masks, *rest in read_batches(dataset, size, how, advance, workers):
            keep(slice(start, start + len(images)), images, masks)
            start += len(images)
            yield rest

    write_annotations(folder, pixels_key(dataset, size, how), len(dataset), annotations())


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
        _write_compact(dataset, size, how, files, workers, advance)
    encoded = np.memmap(regular_file(files[0], AGAIN), np.uint8, "r")
    return CompactPixels(
        encoded, open_array(files[1], dtype=np.int64), open_array(files[2]) if files[2:] else None, size
    )


def _write_compact(
    dataset: Dataset, size: int, how: Fit, files: Sequence[Path], workers: int, advance: Callable[[int], None]
) -> None:
    ends = np.zeros(len(dataset) + 1, np.int64)
    with ExitStack() as stack:
        temporary = [stack.enter_context(replacing(file)) for file in files]
        stream = stack.enter_context(temporary[0].open("wb"))
        shape = (len(dataset), size, -(-size // 8))
        packed = new_array(temporary[2], np.uint8, shape) if dataset.has_masks else None

        def keep(rows: slice, images: Tensor, masks: Tensor) -> None:
            if packed is not None:
                packed[rows] = np.packbits(masks.numpy(), axis=-1)
            for row, image in enumerate(images, rows.start):
                ends[row + 1] = ends[row] + stream.write(encode(image))

        _decode_once(dataset, size, how, files[0].parent, workers, advance, keep)
        flush(packed)
        with temporary[1].open("wb") as file:  # given a path, numpy would add .npy to it
            np.save(file, ends)
