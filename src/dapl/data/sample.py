"""What every data set yields: one `Sample` a picture, and the contract `Dataset` that the rest of the house reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import dapl._torchvision  # noqa: F401  (before torchvision)  # isort: skip
from torch import Tensor
from torchvision import tv_tensors


@dataclass(frozen=True)
class Sample:
    """One picture and all that is known of it, before any transform.

    K is the number of parts of the data set (``len(dataset.parts)``); what is not known is None.
    """

    image: tv_tensors.Image
    """uint8 3×H×W, RGB."""
    label: int
    """Index into ``dataset.classes``."""
    name: str
    """Stable and unique within the data set, mostly the path below its root."""
    mask: tv_tensors.Mask | None = None
    """uint8 H×W, 1 on the object (foreground) and 0 elsewhere."""
    keypoints: tv_tensors.KeyPoints | None = None
    """float32 K×2, (x, y) in pixels; the rows of invisible parts are 0."""
    visible: Tensor | None = None
    """bool K: which parts can be seen in this picture."""
    part_masks: tv_tensors.Mask | None = None
    """uint8 K×H×W where exact masks exist; else the metrics make discs from the keypoints."""
    box: tv_tensors.BoundingBoxes | None = None
    """float32 1×4, XYXY in pixels: the annotated bounding box of the object."""


@runtime_checkable
class Dataset(Protocol):
    """A list of samples whose labels and names are known without decoding a picture."""

    classes: Sequence[str]
    parts: Sequence[str]
    """Names of the parts, empty where none are annotated."""
    labels: Sequence[int]
    names: Sequence[str]
    has_masks: bool
    fingerprint: str
    """Changes whenever a picture or an annotation would: the key of every cache."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


class Subset:
    """The samples of ``dataset`` at ``indices``, itself a `Dataset`."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = list(indices)
        self.classes: Sequence[str] = dataset.classes
        self.parts: Sequence[str] = dataset.parts
        self.labels: Sequence[int] = [dataset.labels[i] for i in self.indices]
        self.names: Sequence[str] = [dataset.names[i] for i in self.indices]
        self.has_masks = dataset.has_masks
        self.fingerprint = dataset.fingerprint  # rows are cached by name, so a subset shares its parent's cache

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[self.indices[index]]


@dataclass(frozen=True)
class Splits:
    """What a builder returns. Validation is taken out of train, or is the data set's own; test is used once."""

    train: Dataset
    validation: Dataset
    test: Dataset
