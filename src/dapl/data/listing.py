"""Data that is a list of image files, each with what is known of it: what folders and COCO files are read into."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from torchvision import tv_tensors

from dapl.common.errors import DaplError
from dapl.data.cub import ON_EDGE
from dapl.data.images import read_image, read_mask
from dapl.data.sample import Dataset, Sample, Splits, Subset, stratified_split
from dapl.data.transforms import in_frame

Frame = tuple[int, int]
"""Height and width of an image, upright."""
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with the data, told apart by ``kind`` so that it can be counted."""

    kind: str
    """left out, image, size, mask, no mask, keypoints, box, class."""
    name: str
    """Of the image, file or class."""
    text: str
    """One sentence: where, what, and what to do."""


class MaskSource(Protocol):
    """Where the mask of an image comes from."""

    def read(self, frame: Frame, image: Path) -> tv_tensors.Mask:
        """uint8 H×W in {0, 1}; a `DaplError` where it does not fit the ``frame`` of its ``image``."""
        ...

    def identity(self) -> str:
        """Changes whenever the mask would."""
        ...


@dataclass(frozen=True)
class MaskFile:
    path: Path

    def read(self, frame: Frame, image: Path) -> tv_tensors.Mask:
        return read_mask(self.path, frame, image)

    def identity(self) -> str:
        return _stamp(self.path)


@dataclass(frozen=True)
class Record:
    """One image and what is known of it; K parts."""

    name: str
    path: Path
    label: int
    mask: MaskSource | None = None
    points: np.ndarray | None = None
    """float32 K×2, (x, y); 0 where a part is not visible."""
    visible: np.ndarray | None = None
    """bool K."""
    box: tuple[float, float, float, float] | None = None
    """XYXY."""
    origin: str = ""
    """Where the annotations stand, for messages: a file, perhaps with a place in it."""
    lines: tuple[int, ...] = ()
    """K: the lines of ``origin`` that the keypoints stand on, where they do."""
    size: Frame | None = None
    """What the annotations say that the image measures."""


@dataclass
class Listing:
    """A data set as its files say, before anything is refused."""

    source: str
    classes: list[str]
    parts: list[str]
    records: dict[str, list[Record]]
    """By split: train, and validation and test where the data tells them apart."""
    faults: list[Fault] = field(default_factory=list)
    """What was left out, or is wrong, as far as can be said without decoding an image."""
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and wrong in no way."""
    masks: Path | None = None
    """Folder that masks are looked for in."""

    def __iter__(self) -> Iterator[Record]:
        for split in SPLITS:
            yield from self.records.get(split, ())


class FileDataset:
    """The records of one split as a `Dataset`."""

    def __init__(
        self, records: Sequence[Record], classes: Sequence[str], parts: Sequence[str], faults: Sequence[Fault] = ()
    ) -> None:
        self.records = list(records)
        self.classes: Sequence[str] = list(classes)
        self.parts: Sequence[str] = list(parts)
        self.labels: Sequence[int] = [record.label for record in self.records]
        self.names: Sequence[str] = [record.name for record in self.records]
        self.has_masks = bool(self.records) and all(record.mask is not None for record in self.records)
        self.warnings: Sequence[str] = [fault.text for fault in faults]
        self.fingerprint = self._fingerprint()

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Sample:
        sample, faults = self.examine(index)
        if faults or sample is None:
            raise DaplError(faults[0].text)
        return sample

    def examine(self, index: int) -> tuple[Sample | None, list[Fault]]:
        """The sample as far as it can be read, and all that is wrong with it."""
        record = self.records[index]
        try:
            image = read_image(record.path)
        except DaplError as error:
            return None, [Fault("image", record.name, str(error))]
        frame: Frame = tuple(image.shape[-2:])
        faults: list[Fault] = []
        mask = self._mask_of(record, frame, faults)
        points, visible = self._points_of(record, frame, faults)
        sample = Sample(image, record.label, record.name, mask, points, visible, box=_box_of(record, frame, faults))
        return sample, faults

    def _mask_of(self, record: Record, frame: Frame, faults: list[Fault]) -> tv_tensors.Mask | None:
        if record.size is not None and record.size != frame:
            faults.append(Fault("mask" if record.mask is not None else "size", record.name, _other_size(record, frame)))
            return None
        if record.mask is None:
            return None
        try:
            return record.mask.read(frame, record.path)
        except DaplError as error:
            faults.append(Fault("mask", record.name, str(error)))
            return None

    def _points_of(
        self, record: Record, frame: Frame, faults: list[Fault]
    ) -> tuple[tv_tensors.KeyPoints | None, torch.Tensor | None]:
        """Up to a pixel outside is moved onto the edge; what lies farther out is a fault and becomes invisible."""
        if not self.parts:
            return None, None
        if record.points is None or record.visible is None:
            nowhere = torch.zeros(len(self.parts), 2)
            return in_frame(nowhere, torch.zeros(len(self.parts), dtype=torch.bool), frame)
        end = np.array([frame[1], frame[0]], dtype=np.float32)
        outside = np.maximum(-record.points, record.points - end).max(axis=1) * record.visible
        for part in np.flatnonzero(outside > ON_EDGE).tolist():
            x, y = record.points[part].tolist()
            where = f"{record.origin}, line {record.lines[part]}" if record.lines else record.origin
            text = (
                f"{where}: {self.parts[part]} is marked visible at ({x:g}, {y:g}), outside {record.name}, which"
                f" is {frame[1]}×{frame[0]} (width×height, upright by EXIF); mend it, or mark it as not visible."
            )
            faults.append(Fault("keypoints", record.name, text))
        on_edge = np.where((outside <= ON_EDGE)[:, None], record.points.clip(0, end), record.points)
        return in_frame(torch.from_numpy(on_edge.astype(np.float32)), torch.from_numpy(record.visible), frame)

    def _fingerprint(self) -> str:
        """From what is known of each image and the size and time of its files: no image is read."""
        hashed = hashlib.blake2b(json.dumps([self.classes, self.parts]).encode(), digest_size=16)
        for record in self.records:
            known = [record.name, record.label, record.box, record.size, _stamp(record.path)]
            hashed.update(json.dumps(known).encode())
            if record.mask is not None:
                hashed.update(record.mask.identity().encode())
            if record.points is not None and record.visible is not None:
                hashed.update(record.points.tobytes() + record.visible.tobytes())
        return hashed.hexdigest()


def _box_of(record: Record, frame: Frame, faults: list[Fault]) -> tv_tensors.BoundingBoxes | None:
    """Clipped to the image; a box of which nothing is left is a fault."""
    if record.box is None:
        return None
    box = np.array(record.box, dtype=np.float32).reshape(2, 2).clip(0, [frame[1], frame[0]])
    if (box[1] - box[0] < 1).any():
        x1, y1, x2, y2 = record.box
        text = (
            f"{record.origin}: the box ({x1:g}, {y1:g}) to ({x2:g}, {y2:g}) lies outside {record.name}, which is"
            f" {frame[1]}×{frame[0]}; mend it."
        )
        faults.append(Fault("box", record.name, text))
        return None
    return tv_tensors.BoundingBoxes(torch.from_numpy(box.reshape(1, 4)), format="XYXY", canvas_size=frame)  # type: ignore[call-overload]


def _other_size(record: Record, frame: Frame) -> str:
    assert record.size is not None
    return (
        f"{record.origin}: says that {record.name} is {record.size[1]}×{record.size[0]}, but the image is"
        f" {frame[1]}×{frame[0]} (width×height, upright by EXIF), so what is annotated does not fit; annotate the"
        f" upright image, or put the image back that was annotated."
    )


def _stamp(path: Path) -> str:
    """Size and time of a file."""
    try:
        found = os.stat(path)
    except OSError:
        return f"{path.name} missing"
    return f"{path.name} {found.st_size} {found.st_mtime_ns}"


def drop_unlearned_classes(listing: Listing) -> None:
    """A class without a training image cannot be learned; its images in other splits are left out with it."""
    learned = sorted({record.label for record in listing.records["train"]})
    number = {label: index for index, label in enumerate(learned)}
    for label, name in enumerate(listing.classes):
        if label not in number:
            text = f"{listing.source}: class {name} has no training image and is left out; add some."
            listing.faults.append(Fault("class", name, text))
    for split, records in listing.records.items():
        kept = [replace(record, label=number[record.label]) for record in records if record.label in number]
        listing.records[split] = kept
        present = {record.label for record in kept}
        for index, label in enumerate(learned):
            if index not in present and split != "train":
                name = listing.classes[label]
                text = f"{listing.source}: class {name} has no {split} image."
                listing.faults.append(Fault("class", name, text))
    listing.classes = [listing.classes[label] for label in learned]


def refuse_unusable(listing: Listing) -> None:
    """What cannot be trained on at all: too few classes, files that are not there, masks for some images only."""
    train = listing.records["train"]
    if not train:
        raise DaplError(_first(listing.faults) or f"{listing.source}: holds no training image.")
    if len({record.label for record in train}) < 2:
        only = listing.classes[train[0].label]
        raise DaplError(f"{listing.source}: holds one class only ({only}); a classifier needs two or more.")
    empty = next((split for split, records in listing.records.items() if not records), None)
    if empty is not None:
        raise DaplError(f"{listing.source}: holds no {empty} image of a known class; add some, or take it out.")
    missing = [record for record in listing if not record.path.exists()]
    if missing:
        raise DaplError(
            f"{missing[0].path}: no such file, though {missing[0].origin or listing.source} names it ({len(missing)} of"
            f" {sum(1 for _ in listing)} missing); put them there, or name the folder with data.images."
        )
    bare = [record for record in listing if record.mask is None]
    if bare and len(bare) < sum(1 for _ in listing):
        raise DaplError(
            f"{listing.source}: {len(bare)} of {sum(1 for _ in listing)} images have no mask, the first"
            f" {bare[0].name}; `dapl masks` makes those that are missing."
        )


def _first(faults: Sequence[Fault]) -> str:
    return faults[0].text if faults else ""


def split_listing(listing: Listing, test_share: float, split_seed: int) -> tuple[Dataset, Dataset] | Splits:
    """(train, test) or, where the data has its own validation split, all three.

    Where it has no test split, a stratified ``test_share`` of train is taken for it: the same for the same seed.
    """

    def dataset(split: str) -> FileDataset:
        faults = listing.faults if split == "train" else ()
        return FileDataset(listing.records[split], listing.classes, listing.parts, faults)

    train: Dataset = dataset("train")
    if "test" in listing.records:
        test: Dataset = dataset("test")
    else:
        kept, held = stratified_split(train.labels, test_share, split_seed)
        train, test = Subset(train, kept), Subset(train, held)
    if "validation" in listing.records:
        return Splits(train, dataset("validation"), test)
    return train, test
