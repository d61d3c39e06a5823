"""CUB-200-2011 (Wah et al., 2011) in its published layout: 200 birds, official split, boxes, 15 keypoints, masks."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

import dapl._torchvision  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import torch
from torchvision import tv_tensors

from dapl.data.cub_files import PART_LOCATIONS, read_annotations
from dapl.data.images import read_image, read_mask
from dapl.data.sample import Sample
from dapl.data.transforms import crop_to_box, in_frame
from dapl.errors import DaplError

Split = Literal["train", "test"]
Crop = Literal["none", "box"]

ON_EDGE = 1.0
"""Pixels by which a visible keypoint may lie outside the picture and still be moved onto its edge."""
BEYOND_EDGE = 0.05
"""Share of the longer side by which it may lie outside and be taken for invisible. One of the 141,407 visible keypoints
of the published data does (the breast of Pacific_Loon_0034_75438, 3 % below the picture); farther out is an error."""


class Cub200:
    """The pictures of one official split as a `Dataset`.

    ``classes`` is None for all, a step n for those whose 0-based index is a multiple of n (10: the classes 1, 11, 21 …
    191, "CUB-20"), or a list of class names ("001.Black_footed_Albatross" or "Black_footed_Albatross") and 1-based
    numbers. Labels count from 0 in the order of classes.txt, however the list is ordered.

    Masks are looked for in ``root/segmentations`` and in ``root/../segmentations`` (where the archive unpacks); without
    either, ``has_masks`` is False. ``crop="box"`` leaves only the annotated box of each picture, as ProtoPNet does.
    Boxes that reach beyond the picture (30 of the published ones do, by up to 20 pixels) are clipped to it.
    """

    def __init__(
        self,
        root: str | Path,
        split: Split = "train",
        classes: int | Sequence[str | int] | None = None,
        crop: Crop = "none",
    ) -> None:
        if split not in get_args(Split):
            raise DaplError(f"CUB has no split {split!r}; give one of {', '.join(get_args(Split))}.")
        if crop not in get_args(Crop):
            raise DaplError(f"unknown crop {crop!r}; give one of {', '.join(get_args(Crop))}.")
        self.root = Path(root)
        self.crop = crop
        self._check_root()
        annotations = read_annotations(self.root)
        chosen = choose_classes(annotations.classes, classes)
        rows = np.flatnonzero((annotations.train == (split == "train")) & np.isin(annotations.labels, chosen))
        empty = set(chosen) - set(annotations.labels[rows].tolist())
        if empty:
            raise DaplError(
                f"{self.root}: class {annotations.classes[min(empty)]} has no {split} image (image_class_labels.txt,"
                f" train_test_split.txt); add some, or leave the class out with `classes`."
            )
        self.classes: Sequence[str] = [annotations.classes[label] for label in chosen]
        self.parts: Sequence[str] = annotations.parts
        self.labels: Sequence[int] = np.searchsorted(chosen, annotations.labels[rows]).tolist()
        self.names: Sequence[str] = [annotations.names[row] for row in rows]
        self._boxes = annotations.boxes[rows]
        self._keypoints = annotations.keypoints[rows]
        self._visible = annotations.visible[rows]
        self._part_lines = annotations.part_lines[rows]
        beside = (self.root / "segmentations", self.root.resolve().parent / "segmentations")
        self._masks = next((folder for folder in beside if folder.is_dir()), None)
        self.has_masks = self._masks is not None
        self.fingerprint = self._fingerprint(annotations.digest, split)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        name = self.names[index]
        path = self.root / "images" / name
        image = read_image(path)
        frame: tuple[int, int] = tuple(image.shape[-2:])
        keypoints, visible = self._keypoints_of(index, frame)
        sample = Sample(
            image=image,
            label=self.labels[index],
            name=name,
            mask=None if self._masks is None else read_mask(self._masks / _mask_name(name), frame, path),
            keypoints=keypoints,
            visible=visible,
            box=self._box_of(index, frame),
        )
        return crop_to_box(sample) if self.crop == "box" else sample

    def _keypoints_of(self, index: int, frame: tuple[int, int]) -> tuple[tv_tensors.KeyPoints, torch.Tensor]:
        end = np.array([frame[1], frame[0]], dtype=np.float32)
        points, visible = self._keypoints[index], self._visible[index]
        outside = np.maximum(-points, points - end).max(axis=1) * visible
        if (outside > max(ON_EDGE, BEYOND_EDGE * max(frame))).any():
            part = int(outside.argmax())
            x, y = points[part].tolist()
            raise DaplError(
                f"{self.root / PART_LOCATIONS}, line {self._part_lines[index, part]}: {self.parts[part]} is marked"
                f" visible at ({x:g}, {y:g}), outside {self.names[index]}, which is {frame[1]}×{frame[0]}; mend the"
                f" line (and check that the annotations belong to pictures of this size)."
            )
        on_edge = np.where((outside <= ON_EDGE)[:, None], points.clip(0, end), points)
        return in_frame(torch.from_numpy(on_edge), torch.from_numpy(visible), frame)

    def _box_of(self, index: int, frame: tuple[int, int]) -> tv_tensors.BoundingBoxes:
        box = self._boxes[index].reshape(2, 2).clip(0, [frame[1], frame[0]])
        if (box[1] - box[0] < 1).any():
            x1, y1, x2, y2 = self._boxes[index].tolist()
            raise DaplError(
                f"{self.root / 'bounding_boxes.txt'}: the box of {self.names[index]}, ({x1:g}, {y1:g}) to"
                f" ({x2:g}, {y2:g}), lies outside the picture, which is {frame[1]}×{frame[0]}; mend its line."
            )
        return tv_tensors.BoundingBoxes(
            torch.from_numpy(box.astype(np.float32).reshape(1, 4)), format="XYXY", canvas_size=frame
        )

    def _check_root(self) -> None:
        inner = self.root / "CUB_200_2011"
        if inner.is_dir() and not (self.root / "images.txt").exists():
            raise DaplError(f"{self.root}: holds CUB in its folder CUB_200_2011; give {inner}.")

    def _fingerprint(self, digest: str, split: Split) -> str:
        """From all annotations and the size and time of each file: 0.03 s; to read the pictures takes a minute."""
        hashed = hashlib.blake2b(f"cub {digest} {split} {self.crop} {self.classes}".encode(), digest_size=16)
        _add_files(hashed, self.root / "images", self.names)
        if self._masks is not None:
            _add_files(hashed, self._masks, [_mask_name(name) for name in self.names])
        return hashed.hexdigest()


def choose_classes(names: Sequence[str], wanted: int | Sequence[str | int] | None) -> list[int]:
    """Ascending 0-based indices of the ``wanted`` classes; see `Cub200`."""
    if wanted is None:
        return list(range(len(names)))
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted < 1:
            raise DaplError(f"classes: a step of {wanted} takes no class; give 1 or more (10 takes every tenth).")
        return list(range(0, len(names), wanted))
    if isinstance(wanted, str | bool) or not wanted:
        raise DaplError(f"classes: {wanted!r} is neither a step nor a list of class names or numbers (one or more).")
    chosen = [_class_index(names, one) for one in wanted]
    if len(set(chosen)) < len(chosen):
        twice = next(index for index in chosen if chosen.count(index) > 1)
        raise DaplError(f"classes: {names[twice]} is listed twice.")
    return sorted(chosen)


def _class_index(names: Sequence[str], wanted: str | int) -> int:
    if isinstance(wanted, int):
        if not 1 <= wanted <= len(names):
            raise DaplError(f"classes: there is no class number {wanted}; they run from 1 to {len(names)}.")
        return wanted - 1
    known = {name.partition(".")[2]: index for index, name in enumerate(names) if "." in name}
    known.update({name: index for index, name in enumerate(names)})
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "classes.txt lists the names."
        raise DaplError(f"classes: there is no class {wanted!r}; {hint}")
    return known[wanted]


def _mask_name(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(".png"))


def _add_files(hashed: hashlib.blake2b, root: Path, names: Iterable[str]) -> None:
    """The size and time of each named file goes into the hash; all must be there."""
    folders: dict[str, dict[str, os.stat_result]] = {}
    missing = []
    for name in names:
        folder, _, file = name.rpartition("/")
        if folder not in folders:
            folders[folder] = _list_folder(root / folder)
        found = folders[folder].get(file)
        if found is None:
            missing.append(name)
        else:
            hashed.update(f"{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    if missing:
        raise DaplError(
            f"{root / missing[0]}: no such file, though images.txt lists it ({len(missing)} missing in all);"
            f" unpack the archive again, or take the lines out of all text files."
        )


def _list_folder(folder: Path) -> dict[str, os.stat_result]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat() for entry in entries if entry.is_file()}
    except OSError:  # not there: its files will be missed by name
        return {}
