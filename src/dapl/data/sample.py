"""What every data set yields, one `Sample` per image; the contract `Dataset`; how classes are named and held out."""

from __future__ import annotations

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import random
import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor
from torchvision import tv_tensors

from dapl.common.errors import DaplError, nearest

SPLITS = ("train", "validation", "test")
SPLIT_OF = {split: split for split in SPLITS} | {"val": "validation", "valid": "validation"}
"""The split that a folder, a file or a table of that name holds."""


@dataclass(frozen=True)
class Sample:
    """One image and all that is known of it, before any transform.

    K is the number of parts of the data set (``len(dataset.parts)``); what is not known is None.

    >>> from dapl.data.toybirds import ToyBirds
    >>> sample = ToyBirds(classes=2, images_per_class=1, size=40)[1]
    >>> sample.label, tuple(sample.image.shape), tuple(sample.part_masks.shape), sample.visible.dtype
    (1, (3, 40, 40), (12, 40, 40), torch.bool)
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
    """bool K: which parts can be seen in this image."""
    part_masks: tv_tensors.Mask | None = None
    """uint8 K×H×W where exact masks exist; else the metrics make discs from the keypoints."""
    box: tv_tensors.BoundingBoxes | None = None
    """float32 1×4, XYXY in pixels: the annotated bounding box of the object."""


@runtime_checkable
class Dataset(Protocol):
    """A list of samples whose labels and names are known without decoding an image.

    >>> from dapl.data.toybirds import ToyBirds
    >>> birds = ToyBirds(classes=2, images_per_class=2, size=40)
    >>> isinstance(birds, Dataset), birds.labels, birds.parts[:2]
    (True, [0, 0, 1, 1], ['beak', 'eye'])
    """

    classes: Sequence[str]
    parts: Sequence[str]
    """Names of the parts, empty where none are annotated."""
    labels: Sequence[int]
    names: Sequence[str]
    has_masks: bool
    fingerprint: str
    """Changes whenever an image or an annotation would: the key of every cache."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


class Subset:
    """The samples of ``dataset`` at ``indices``, itself a `Dataset`.

    >>> from dapl.data.toybirds import ToyBirds
    >>> Subset(ToyBirds(classes=2, images_per_class=2, size=40), [3, 0]).labels
    [1, 0]
    """

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices: Sequence[int] = array("q", indices)  # a list of Python's integers takes five times as much
        self.classes: Sequence[str] = dataset.classes
        self.parts: Sequence[str] = dataset.parts
        self.labels: Sequence[int] = [dataset.labels[i] for i in self.indices]
        self.names: Sequence[str] = [dataset.names[i] for i in self.indices]
        self.has_masks = dataset.has_masks
        self.fingerprint = dataset.fingerprint  # rows are cached by name, so a subset shares its parent's cache

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {self.dataset!r})"

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[self.indices[index]]


@dataclass(frozen=True)
class Splits:
    """What a builder returns. Validation is taken out of train, or is the data set's own; test is used once.

    >>> from dapl.data.toybirds import ToyBirds
    >>> birds, test = (ToyBirds(classes=2, images_per_class=4, size=40, split=split) for split in ("train", "test"))
    >>> splits = Splits(*train_validation(birds, share=0.25), test)
    >>> len(splits.train), len(splits.validation), len(splits.test)
    (6, 2, 8)
    """

    train: Dataset
    validation: Dataset
    test: Dataset


def stratified_split(labels: Sequence[int], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices kept and indices held out, each ascending: every class is held out in the same share (decision 8).

    Of a class with n samples, share × n rounded half up are held out: at least one when n ≥ 2 and share > 0, at most
    n − 1, so none of a single sample. Which ones depends on the seed, the label and n alone, not on other classes nor
    on any global generator.

    >>> stratified_split([0, 0, 0, 1, 1, 2], share=0.3, seed=0)
    ([1, 2, 3, 5], [0, 4])
    """
    if not 0 <= share < 1:
        raise DaplError(f"the share to hold out is {share}; give a number from 0 up to, but not including, 1.")
    members: dict[int, array[int]] = defaultdict(lambda: array("q"))
    for index, label in enumerate(labels):
        members[int(label)].append(index)
    held: set[int] = set()
    for label, indices in members.items():
        # random.random() is one of the few generators whose numbers Python promises to keep from version to version
        generator = random.Random(f"{seed}/{label}")
        shuffled = sorted((generator.random(), index) for index in indices)
        count = min(max(int(share * len(indices) + 0.5), 1), len(indices) - 1) if share else 0
        held.update(index for _, index in shuffled[:count])
    kept = [index for index in range(len(labels)) if index not in held]
    return kept, sorted(held)


def train_validation(dataset: Dataset, share: float = 0.1, seed: int = 0) -> tuple[Subset, Subset]:
    """``dataset`` without a stratified ``share`` of it, and that share.

    >>> from dapl.data.toybirds import ToyBirds
    >>> train, validation = train_validation(ToyBirds(classes=3, images_per_class=10, size=40))
    >>> len(train), validation.labels
    (27, [0, 1, 2])
    """
    kept, held = stratified_split(dataset.labels, share, seed)
    return Subset(dataset, kept), Subset(dataset, held)


def class_index(classes: Sequence[str], name: str | int) -> int:
    """The index of a class by its name, by what follows the number of a CUB name, by the index itself, or by a part of
    the name that no other class has.

    >>> [class_index(["001.Red_Finch", "002.Grey_Owl"], name) for name in ("002.Grey_Owl", "grey_owl", "1", 1, "owl")]
    [1, 1, 1, 1, 1]
    """
    if isinstance(name, str):
        if _with_name(classes, name) or not re.fullmatch("-?[0-9]{1,9}", name):
            return _named_class(classes, name)
        name = int(name)
    if not 0 <= name < len(classes):
        raise DaplError(f"there is no class {name}; there are {len(classes)}, counted from 0.")
    return name


def _with_name(classes: Sequence[str], name: str) -> list[int]:
    """Classes of just this name, in any case and with or without CUB's number."""
    if name in classes:
        return [list(classes).index(name)]
    forms = [(label.lower(), label.lower().partition(".")[2]) for label in classes]
    return [index for index, form in enumerate(forms) if name and name.lower() in form]


def _named_class(classes: Sequence[str], name: str) -> int:
    parts = [index for index, label in enumerate(classes) if name and name.lower() in label.lower()]
    found = _with_name(classes, name) or parts
    if len(found) > 1:
        several = ", ".join(classes[index] for index in found[:5])
        raise DaplError(f"'{name}' is in the names of several classes: {several}; say which.")
    if not found:
        raise DaplError(f"there is no class '{name}'{nearest(name, classes)}")
    return found[0]


def refuse_one_class(source: object, classes: Sequence[str]) -> None:
    """``source`` is named where the training images are of one class.

    >>> refuse_one_class("birds", ["finch"])
    Traceback (most recent call last):
    dapl.common.errors.DaplError: birds: holds one class only (finch); a classifier needs two or more.
    """
    if len(classes) < 2:
        raise DaplError(f"{source}: holds one class only ({', '.join(classes)}); a classifier needs two or more.")


def choose_classes(names: Sequence[str], wanted: int | Sequence[str | int] | None) -> list[int]:
    """Ascending indices of the classes that a config asks for.

    ``wanted``: all (None), every n-th (an integer), or a list of names and of numbers that count from 1.

    >>> choose_classes(["001.Finch", "002.Owl", "003.Jay"], 2), choose_classes(["001.Finch", "002.Owl"], [2, "finch"])
    ([0, 2], [0, 1])
    """
    if wanted is None:
        return list(range(len(names)))
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted < 1:
            raise DaplError(f"data.classes: a step of {wanted} takes no class; give 1 or more (10 takes every tenth).")
        return list(range(0, len(names), wanted))
    if isinstance(wanted, str | bool) or not wanted:
        raise DaplError(f"data.classes: {wanted!r} is neither a step nor a list of class names or numbers.")
    chosen = []
    for one in wanted:
        if isinstance(one, int) and not 1 <= one <= len(names):
            raise DaplError(f"data.classes: there is no class number {one}; they run from 1 to {len(names)}.")
        try:
            chosen.append(one - 1 if isinstance(one, int) else _named_class(names, one))
        except DaplError as error:
            raise DaplError(f"data.classes: {error}") from None
        if chosen.count(chosen[-1]) > 1:
            raise DaplError(f"data.classes: {names[chosen[-1]]} is listed twice.")
    return sorted(chosen)
