"""Where a stage's batches come from: images (decoded or from the pixel cache) or cached backbone features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar, overload

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import tv_tensors

from dapl.batches.pixels import WORKERS_BY, CompactPixels, Pixels, base_rows, plain
from dapl.common.seeds import derive_seed
from dapl.data.sample import Dataset, Sample
from dapl.data.transforms import Augmentation, Fit, augment, fit, mirrored
from dapl.models.contract import FeatureTensors, Output, PrototypeModel, map_features


@dataclass  # not frozen: Fabric makes a copy with other types of numbers, field by field
class Batch:
    """B images of a data set, as images or as features."""

    indices: Tensor
    """long B, on the CPU."""
    labels: Tensor
    images: Tensor | None = None
    """uint8 B×3×S×S."""
    features: FeatureTensors | None = None
    """What the extractor gives: float B×D0×H×W, or a tuple of such tensors."""
    mirrored: FeatureTensors | None = None
    """The features of the mirror images, where both views are cached and the source gives both."""
    masks: Tensor | None = None
    """B×h×w foreground, uint8 {0, 1} in pixels or float in [0, 1] on the grid; None where there are none."""

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> Batch:
        moved = {
            name: map_features(lambda one: one.to(device, non_blocking=True), value)
            for name in ("labels", "images", "features", "mirrored", "masks")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **moved)


def features_of(model: PrototypeModel, batch: Batch) -> FeatureTensors:
    if batch.features is not None:
        return batch.features
    return model.extractor(batch.images)


def run_model(model: PrototypeModel, batch: Batch) -> Output:
    return model.from_features(features_of(model, batch))


def grid_masks(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Foreground share of each cell: the area average of the mask (decision 4). B×h×w → float B×H×W in [0, 1]."""
    masks = masks.float()
    if tuple(masks.shape[-2:]) == tuple(size):
        return masks
    return torch.nn.functional.adaptive_avg_pool2d(masks.unsqueeze(1), (size[0], size[1])).squeeze(1)


def finest_grid(features: FeatureTensors) -> tuple[int, int]:
    """H and W of the map B×D×H×W, of several maps those of the finest; what is no map does not count.

    >>> finest_grid((torch.rand(1, 96, 14, 14), torch.rand(1, 1280, 7, 7), torch.rand(1, 10)))
    (14, 14)
    """
    tensors = features if isinstance(features, tuple) else (features,)
    height, width = max((one.shape[-2:] for one in tensors if one.dim() == 4), key=lambda size: size[0] * size[1])
    return height, width


class BatchSource(Protocol):
    """A data set that can be read in batches, in an order that the caller gives."""

    labels: Tensor

    def __len__(self) -> int: ...

    def batches(self, order: Sequence[Tensor], seed: int = 0) -> Iterator[Batch]:
        """One batch for each index tensor; ``seed`` decides the augmentation."""


class ImageSource:
    """Images, from the pixel cache where there is one, changed at random where the stage asks for it."""

    def __init__(
        self,
        dataset: Dataset,
        pixels: Pixels | CompactPixels | None,
        size: int,
        how: Fit,
        kind: Augmentation = "none",
        workers: int = 0,
    ) -> None:
        self.base, self.rows = base_rows(dataset)
        self.pixels, self.size, self.how, self.kind, self.workers = pixels, size, how, kind, workers
        self.labels = torch.tensor(list(dataset.labels))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        index, seed = key
        image, mask = self._plain(self.rows[index])
        if self.kind == "none":
            return image, mask
        sample = Sample(tv_tensors.Image(image), 0, "", mask=tv_tensors.Mask(mask) if mask.numel() else None)
        changed = augment(sample, self.kind, derive_seed(seed, index))
        return changed.image.as_subclass(Tensor), mask if changed.mask is None else changed.mask.as_subclass(Tensor)

    def _plain(self, row: int) -> tuple[Tensor, Tensor]:
        if self.pixels is None:
            return plain(fit(self.base[row], self.size, self.how))
        return self.pixels.image(row), self.pixels.mask(row)

    def batches(self, order: Sequence[Tensor], seed: int = 0) -> Iterator[Batch]:
        keys = LazySequence(len(order), lambda number: [(index, seed) for index in order[number].tolist()])
        loader: Iterable[tuple[Tensor, Tensor]] = DataLoader(
            self,  # type: ignore[arg-type]  # keys are pairs, not the integers that the type asks for
            batch_sampler=keys,
            num_workers=self.workers,
            generator=torch.Generator(),  # else it would draw from the global one
            multiprocessing_context=WORKERS_BY if self.workers else None,
        )
        for indices, (images, masks) in zip(order, loader, strict=True):
            yield Batch(indices, self.labels[indices], images=images, masks=masks if masks.numel() else None)


@dataclass(frozen=True)
class Features:
    """V views (as seen, mirrored) of n images; may be maps of files."""

    values: FeatureTensors
    """n×V×D0×H×W, or a tuple of such tensors; float32 or float16."""
    masks: Tensor | None
    """float n×V×H×W, foreground share of each cell of the finest map; None where the data has no masks."""

    @property
    def views(self) -> int:
        return (self.values[0] if isinstance(self.values, tuple) else self.values).shape[1]


class FeatureSource:
    """Cached features of a frozen extractor; of two views (as seen, mirrored) it picks as `ImageSource` flips."""

    def __init__(
        self, features: Features, rows: Sequence[int], labels: Sequence[int], views: int = 2, both: bool = False
    ) -> None:
        """``rows`` of the features belong to this source.

        ``views``: 1 to keep to the image as seen where both are there; ``both``: batches hold the view not picked too.
        """
        self.features, self.views, self.both = features, min(views, features.views), both
        self.rows = torch.tensor(list(rows))
        self.labels = torch.tensor(list(labels))

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, order: Sequence[Tensor], seed: int = 0) -> Iterator[Batch]:
        for indices in order:
            rows, view = self.rows[indices], torch.zeros_like(indices)
            if self.views == 2:
                view = torch.tensor([int(mirrored(derive_seed(seed, index))) for index in indices.tolist()])
            masks = None if self.features.masks is None else self.features.masks[rows, view]
            features = map_features(partial(_picked, rows=rows, view=view), self.features.values)
            other = None
            if self.both and self.views == 2:
                other = map_features(partial(_picked, rows=rows, view=1 - view), self.features.values)
            yield Batch(indices, self.labels[indices], features=features, mirrored=other, masks=masks)


def _picked(values: Tensor, rows: Tensor, view: Tensor) -> Tensor:
    return values[rows, view].float()


class ImagesWithFeatures:
    """Images and, beside each, features that are kept of it, so that these need not be made again."""

    def __init__(self, images: ImageSource, features: FeatureSource) -> None:
        self.images, self.features, self.labels = images, features, images.labels

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, order: Sequence[Tensor], seed: int = 0) -> Iterator[Batch]:
        both = zip(self.images.batches(order, seed), self.features.batches(order, seed), strict=True)
        for seen, known in both:
            yield replace(seen, features=known.features)


Item = TypeVar("Item")


class LazySequence(Sequence[Item]):
    """So many items, each made when it is asked for.

    >>> squares = LazySequence(5, lambda number: number**2)
    >>> list(squares[1::2]), squares[-1], len(squares)
    ([1, 9], 16, 5)
    """

    def __init__(self, count: int, make: Callable[[int], Item]) -> None:
        self._numbers, self._make = range(count), make

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, which: int) -> Item: ...

    @overload
    def __getitem__(self, which: slice) -> LazySequence[Item]: ...

    def __getitem__(self, which: int | slice) -> Item | LazySequence[Item]:
        if isinstance(which, slice):
            chosen = self._numbers[which]
            return LazySequence(len(chosen), lambda number: self._make(chosen[number]))
        return self._make(self._numbers[which])


def _cut(indices: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Batches of ``indices``; a tensor for each of them would take more memory than the indices themselves."""
    count = -(-len(indices) // batch_size)
    return LazySequence(count, lambda number: indices[number * batch_size : (number + 1) * batch_size])


def shuffled(count: int, batch_size: int, seed: int) -> Sequence[Tensor]:
    """All of 0 … count−1 in random order, cut into batches; the last may be smaller."""
    return _cut(torch.randperm(count, generator=torch.Generator().manual_seed(seed)), batch_size)


def in_order(count: int, batch_size: int) -> Sequence[Tensor]:
    return _cut(torch.arange(count), batch_size)


COMPANY = 8


def company(batch_size: int, device: torch.device) -> int:
    """How many images share a pass that gives numbers: on a CPU always eight, whatever the batch size of the config.

    How many images are multiplied at once decides the order in which a processor adds, and so the last bits of a map,
    which may decide a pixel at the edge of a region. Eight at a time cost a CPU about as much as sixty-four.
    """
    return COMPANY if device.type == "cpu" else batch_size


def filled(order: Sequence[Tensor], size: int) -> Sequence[Tensor]:
    """Batches of indices, each filled up to the same size with its last image, so that every pass has one shape.

    What is found of that image is then found several times, and has to be kept once.

    >>> list(filled(in_order(5, 3), 3))
    [tensor([0, 1, 2]), tensor([3, 4, 4])]
    """
    return LazySequence(len(order), lambda number: _fill(order[number], size))


def _fill(indices: Tensor, size: int) -> Tensor:
    return torch.cat((indices, indices[-1:].expand(size - len(indices))))


def shares(order: Sequence[Tensor], rank: int, world: int) -> list[Tensor]:
    """This process's part of each batch. Where a last batch is too small to give it one, it borrows the first image.

    A borrowed image must count for nothing; without it the others would wait for this process's gradient for ever.
    """
    return [indices[rank::world] if rank < len(indices) else indices[:1] for indices in order]
