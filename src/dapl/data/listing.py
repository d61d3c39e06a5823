"""Data that is a list of image files with their annotations: what CUB, folders, COCO and FaceForensics++ are read into.

A reader makes a `Listing` without decoding an image and says what is wrong in it; `FileDataset` reads the images.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from torchvision import tv_tensors

from dapl.common.errors import DaplError, is_text, printable
from dapl.data.images import read_image, read_mask
from dapl.data.sample import SPLITS, Sample, refuse_one_class
from dapl.data.transforms import crop_to_box, in_frame
from dapl.masks.polygons import Box

ImageSize = tuple[int, int]
"""Height and width of an image, upright."""
Crop = Literal["none", "box"]
ON_EDGE = 1.0
"""Pixels by which a visible keypoint may lie outside the image and still be moved onto its edge."""


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with the data, told apart by ``kind`` so that it can be counted."""

    kind: str
    """left out, image, size, mask, no mask, keypoints, box, class."""
    name: str
    """The image, file or class that it is about."""
    text: str
    """One sentence: where, what, and what to do."""


class MaskSource(Protocol):
    """Where the mask of an image comes from."""

    def read(self, size: ImageSize, image: Path) -> tv_tensors.Mask:
        """uint8 H×W in {0, 1}; a `DaplError` where it does not fit the ``size`` of its ``image``."""
        ...

    def identity(self) -> str:
        """Changes whenever the mask would."""
        ...


@dataclass(frozen=True)
class MaskFile:
    path: Path

    def read(self, size: ImageSize, image: Path) -> tv_tensors.Mask:
        return read_mask(self.path, size, image)

    def identity(self) -> str:
        return file_stamp(self.path)


class ExactParts(NamedTuple):
    """Parts of one image whose outlines are known; K parts."""

    points: np.ndarray
    """float32 K×2, (x, y)."""
    masks: np.ndarray
    """bool K×H×W; a part of which no pixel is seen is not visible."""
    box: Box


class PartSource(Protocol):
    """Where exact parts of an image come from."""

    @property
    def path(self) -> Path: ...

    def read(self, size: ImageSize) -> ExactParts: ...

    def identity(self) -> str: ...


@dataclass(frozen=True)
class ImageRecord:
    """One image file and its annotations; K parts."""

    name: str
    path: Path
    label: int
    mask: MaskSource | None = None
    mask_path: Path | None = None
    """Where a mask of it is looked for, and where `dapl masks` writes one."""
    points: np.ndarray | None = None
    """float32 K×2, (x, y); 0 where a part is not visible."""
    visible: np.ndarray | None = None
    """bool K."""
    box: Box | None = None
    exact: PartSource | None = None
    """Instead of ``points`` and ``box``."""
    origin: str = ""
    """Where the annotations stand, for messages: a file, perhaps with a place in it."""
    points_origin: str = ""
    """Where the keypoints stand, if elsewhere."""
    lines: tuple[int, ...] = ()
    """K: the lines that the keypoints stand on, where they do."""
    size: ImageSize | None = None
    """What the annotations say that the image measures."""

    @property
    def files(self) -> list[Path]:
        mask = [self.mask.path] if isinstance(self.mask, MaskFile) else []
        return [self.path, *mask, *([self.exact.path] if self.exact is not None else [])]


@dataclass
class Listing:
    """A data set as its files say, before anything is refused."""

    source: str
    classes: list[str]
    parts: list[str]
    records: dict[str, list[ImageRecord]]
    """By split: train, and validation and test where the data tells them apart."""
    faults: list[Fault] = field(default_factory=list)
    """What was left out, or is wrong, as far as can be said without decoding an image."""
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and not wrong."""
    masks: Path | None = None
    """Folder that masks are looked for in."""
    mend: str = "put them there"
    """What to do about files that are missing."""
    stray: float = 0.0
    """Share of the longer side by which a visible keypoint may lie outside and be taken for invisible."""

    def __iter__(self) -> Iterator[ImageRecord]:
        for split in SPLITS:
            yield from self.records.get(split, ())

    def __len__(self) -> int:
        return sum(len(records) for records in self.records.values())

    def __repr__(self) -> str:
        counts = ", ".join(f"{split} {len(records)}" for split, records in self.records.items())
        return f"Listing({self.source}: {len(self.classes)} classes, {counts}, {len(self.faults)} faults)"

    def dataset(self, split: str = "train", crop: Crop = "none") -> FileDataset:
        """One split as a data set; ``crop="box"`` leaves only the annotated box of each image, as ProtoPNet does."""
        if split not in self.records:
            raise DaplError(f"{self.source}: has no split {split!r}; give one of {', '.join(self.records)}.")
        return FileDataset(self, split, crop)


class FileDataset:
    """The records of one split as a `Dataset`."""

    def __init__(self, listing: Listing, split: str, crop: Crop = "none") -> None:
        if crop not in get_args(Crop):
            raise DaplError(f"unknown crop {crop!r}; give one of {', '.join(get_args(Crop))}.")
        self.records = listing.records[split]
        self.crop, self.stray = crop, listing.stray
        self.classes: Sequence[str] = listing.classes
        self.parts: Sequence[str] = listing.parts
        self.labels: Sequence[int] = [record.label for record in self.records]
        self.names: Sequence[str] = [record.name for record in self.records]
        self.has_masks = bool(self.records) and all(record.mask is not None for record in self.records)
        self.warnings: Sequence[str] = [fault.text for fault in listing.faults] if split == "train" else []
        self.fingerprint = self._fingerprint()
        self._description = f"{split} of {listing.source}"

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"FileDataset({self._description}: {len(self)} images, {len(self.classes)} classes)"

    def __getitem__(self, index: int) -> Sample:
        sample, faults = self.examine(index)
        if faults or sample is None:
            raise DaplError(faults[0].text)
        return sample

    def examine(self, index: int) -> tuple[Sample | None, list[Fault]]:
        """The sample as far as it can be read, and all that is wrong with it."""
        record = self.records[index]
        faults: list[Fault] = []
        try:
            image = read_image(record.path)
            size: ImageSize = tuple(image.shape[-2:])
            exact = None if record.exact is None else record.exact.read(size)
        except DaplError as error:
            return None, [Fault("image", record.name, str(error))]
        mask, part_masks = self._mask_of(record, size, faults), None
        if exact is None:
            points, visible = self._points_of(record, size, faults)
        else:
            points, visible = in_frame(torch.from_numpy(exact.points), torch.from_numpy(exact.masks).any((1, 2)), size)
            part_masks = tv_tensors.Mask(torch.from_numpy(exact.masks.astype(np.uint8)))
            record = replace(record, box=exact.box)
        box = _box_of(record, size, faults)
        sample = Sample(image, record.label, record.name, mask, points, visible, part_masks, box)
        return crop_to_box(sample) if self.crop == "box" and not faults else sample, faults

    def _mask_of(self, record: ImageRecord, size: ImageSize, faults: list[Fault]) -> tv_tensors.Mask | None:
        if record.size is not None and record.size != size:
            text = (
                f"{record.origin}: says that {record.name} is {record.size[1]}×{record.size[0]}, but the image is"
                f" {size[1]}×{size[0]} (width×height, upright by EXIF), so what is annotated does not fit; annotate the"
                f" upright image, or put the image back that was annotated."
            )
            faults.append(Fault("mask" if record.mask is not None else "size", record.name, text))
            return None
        if record.mask is None:
            return None
        try:
            return record.mask.read(size, record.path)
        except DaplError as error:
            faults.append(Fault("mask", record.name, str(error)))
            return None

    def _points_of(
        self, record: ImageRecord, size: ImageSize, faults: list[Fault]
    ) -> tuple[tv_tensors.KeyPoints, torch.Tensor] | tuple[None, None]:
        """Up to a pixel outside is moved onto the edge; what lies too far out is a fault and becomes invisible."""
        if not self.parts:
            return None, None
        if record.points is None or record.visible is None:
            nowhere = torch.zeros(len(self.parts), 2)
            return in_frame(nowhere, torch.zeros(len(self.parts), dtype=torch.bool), size)
        end = np.array([size[1], size[0]], dtype=np.float32)
        outside = np.maximum(-record.points, record.points - end).max(axis=1) * record.visible
        for part in np.flatnonzero(outside > max(ON_EDGE, self.stray * max(size))).tolist():
            x, y = record.points[part].tolist()
            where = record.points_origin or record.origin
            line = f", line {record.lines[part]}" if record.lines else ""
            text = (
                f"{where}{line}: {self.parts[part]} is marked visible at ({x:g}, {y:g}), outside {record.name}, which"
                f" is {size[1]}×{size[0]} (width×height, upright by EXIF); mend it, or mark it as not visible."
            )
            faults.append(Fault("keypoints", record.name, text))
        on_edge = np.where((outside <= ON_EDGE)[:, None], record.points.clip(0, end), record.points)
        return in_frame(torch.from_numpy(on_edge.astype(np.float32)), torch.from_numpy(record.visible), size)

    def _fingerprint(self) -> str:
        """From the annotations of each image and the size and time of its files: no image is read."""
        hashed = hashlib.blake2b(json.dumps([self.classes, self.parts, self.crop]).encode(), digest_size=16)
        for record in self.records:
            line = [record.name, record.label, record.box, record.size, file_stamp(record.path)]
            line += [source.identity() for source in (record.mask, record.exact) if source is not None]
            hashed.update(json.dumps(line).encode())
            if record.points is not None and record.visible is not None:
                hashed.update(record.points.tobytes() + record.visible.tobytes())
        return hashed.hexdigest()


def _box_of(record: ImageRecord, size: ImageSize, faults: list[Fault]) -> tv_tensors.BoundingBoxes | None:
    """Clipped to the image; a box of which nothing is left is a fault."""
    if record.box is None:
        return None
    end = np.array([size[1], size[0]])
    written = np.array(record.box, dtype=np.float32).reshape(2, 2)
    box = written.clip(0, end)
    far = (written < -end).any() or (written > 2 * end).any()
    empty = (box[1] - box[0] < 1).any()
    if far or empty:
        x1, y1, x2, y2 = record.box
        how = "lies" if empty else "reaches far"
        text = (
            f"{record.origin}: the box ({x1:g}, {y1:g}) to ({x2:g}, {y2:g}) {how} outside {record.name}, which is"
            f" {size[1]}×{size[0]}; mend it."
        )
        faults.append(Fault("box", record.name, text))
        return None
    corners = torch.from_numpy(box.astype(np.float32).reshape(1, 4))
    return tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size)  # type: ignore[call-overload]


def file_stamp(path: Path) -> str:
    """Name, size and time of a file: another stamp, another content."""
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
                listing.faults.append(Fault("class", name, f"{listing.source}: class {name} has no {split} image."))
    listing.classes = [listing.classes[label] for label in learned]


def name_missing_masks(listing: Listing) -> None:
    """Where some images have a mask, each one that has none is a fault."""
    bare = [record for record in listing if record.mask is None]
    if len(bare) < len(listing):
        for record in bare:
            text = f"{record.path}: has no mask, unlike others; `dapl masks` makes those that are missing."
            listing.faults.append(Fault("no mask", record.name, text))


def require_every_class(listing: Listing, mend: str) -> None:
    """Refuse a class without an image in one of the splits; ``mend`` says what to do."""
    for split, records in listing.records.items():
        empty = set(range(len(listing.classes))) - {record.label for record in records}
        if empty:
            name = listing.classes[min(empty)]
            raise DaplError(f"{listing.source}: class {name} has no {split} image; {mend}")


_LONGEST_NAME = 500


def _refuse_unreadable_names(listing: Listing) -> None:
    """Names go into files, tables and pages, where each has to be text."""
    for kind, names in (("class", listing.classes), ("part", listing.parts), ("image", [one.name for one in listing])):
        for name in names:
            if len(name) > (_LONGEST_NAME if kind != "image" else 8 * _LONGEST_NAME):
                raise DaplError(f"{listing.source}: a {kind} has a name of {len(name):,} characters; shorten it.")
            if not is_text(name):
                raise DaplError(
                    f"{listing.source}: the name of the {kind} {printable(name)} is not text in UTF-8; rename it."
                )


def refuse_unusable(listing: Listing) -> None:
    """What cannot be trained on at all: too few classes, files that are not there, masks for some images only."""
    _refuse_unreadable_names(listing)
    train = listing.records["train"]
    if not train:
        raise DaplError(listing.faults[0].text if listing.faults else f"{listing.source}: holds no training image.")
    refuse_one_class(listing.source, [listing.classes[label] for label in sorted({record.label for record in train})])
    empty = next((split for split, records in listing.records.items() if not records), None)
    if empty is not None:
        raise DaplError(f"{listing.source}: holds no {empty} image of a known class; add some, or take it out.")
    missing = [file for record in listing for file in record.files if not os.path.exists(file)]
    if missing:
        raise DaplError(
            f"{missing[0]}: no such file, though {listing.source} names it ({len(missing)} missing among"
            f" {len(listing)} images); {listing.mend}."
        )
    bare = [record for record in listing if record.mask is None]
    if bare and len(bare) < len(listing):
        raise DaplError(
            f"{listing.source}: {len(bare)} of {len(listing)} images have no mask, the first {bare[0].name};"
            f" `dapl masks` makes those that are missing."
        )
