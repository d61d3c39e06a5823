"""The annotation files of CUB-200-2011, each read once into arrays; a bad line is named with its file and number.

CUB-200-2011 (Wah et al., 2011) in its published layout: 200 birds, official split, boxes, 15 keypoints, masks.
"""

from __future__ import annotations

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import difflib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn, get_args

import numpy as np
import torch
from torchvision import tv_tensors

from dapl.common.errors import DaplError
from dapl.data.images import read_image, read_mask
from dapl.data.sample import Sample
from dapl.data.transforms import crop_to_box, in_frame

LAYOUT = (
    "the published layout of CUB-200-2011 has images.txt, image_class_labels.txt, train_test_split.txt, classes.txt,"
    " bounding_boxes.txt, parts/parts.txt, parts/part_locs.txt and images/ (the Caltech-UCSD Birds page offers it as"
    " CUB_200_2011.tgz; segmentations.tgz, for the masks, is apart)"
)
PART_LOCATIONS = "parts/part_locs.txt"


@dataclass(frozen=True)
class Annotations:
    """One row an image, in the order of images.txt; n images, K parts."""

    classes: list[str]
    parts: list[str]
    names: list[str]
    """Paths below images/."""
    labels: np.ndarray
    """int n: index into ``classes``."""
    train: np.ndarray
    """bool n: in the official training split."""
    boxes: np.ndarray
    """float32 n×4, XYXY."""
    keypoints: np.ndarray
    """float32 n×K×2, (x, y)."""
    visible: np.ndarray
    """bool n×K."""
    part_lines: np.ndarray
    """int n×K: the line of part_locs.txt that a keypoint came from."""
    digest: str
    """Of the bytes of all files."""


def read_annotations(root: Path) -> Annotations:
    """All seven files below ``root``."""
    if not root.is_dir():
        raise DaplError(f"{root}: no such folder; {LAYOUT}.")
    hashed = hashlib.blake2b(digest_size=16)
    images = _read_names(root / "images.txt", hashed)
    classes = _read_names(root / "classes.txt", hashed)
    parts = _read_names(root / "parts" / "parts.txt", hashed)
    ids = np.array(list(images))
    labels = _read_flags(root / "image_class_labels.txt", hashed, ids, allowed=np.array(list(classes)), what="class")
    train = _read_flags(root / "train_test_split.txt", hashed, ids, allowed=np.array([0, 1]), what="split flag")
    keypoints, visible, part_lines = _read_parts(root / PART_LOCATIONS, hashed, ids, np.array(list(parts)))
    return Annotations(
        classes=list(classes.values()),
        parts=list(parts.values()),
        names=list(images.values()),
        labels=labels,
        train=train == 1,
        boxes=_read_boxes(root / "bounding_boxes.txt", hashed, ids),
        keypoints=keypoints,
        visible=visible,
        part_lines=part_lines,
        digest=hashed.hexdigest(),
    )


def _read_flags(path: Path, hashed: hashlib.blake2b, ids: np.ndarray, allowed: np.ndarray, what: str) -> np.ndarray:
    """For each image, the index of its value in ``allowed``."""
    table = _read_numbers(path, hashed, columns=2)
    values = _positions(path, table[:, 1], allowed, what)
    return values[_row_of_each(path, _positions(path, table[:, 0], ids, "image"), ids)]


def _read_boxes(path: Path, hashed: hashlib.blake2b, ids: np.ndarray) -> np.ndarray:
    table = _read_numbers(path, hashed, columns=5)
    flat = (table[:, 3:] <= 0).any(axis=1)
    if flat.any():
        _fail(path, int(flat.argmax()), "the box has no width or no height")
    rows = _row_of_each(path, _positions(path, table[:, 0], ids, "image"), ids)
    corner, size = table[rows, 1:3], table[rows, 3:5]
    return np.concatenate([corner, corner + size], axis=1).astype(np.float32)


def _read_parts(
    path: Path, hashed: hashlib.blake2b, ids: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = _read_numbers(path, hashed, columns=5)
    flag = ~np.isin(table[:, 4], (0, 1))
    if flag.any():
        _fail(path, int(flag.argmax()), "visible must be 0 or 1")
    image, part = _positions(path, table[:, 0], ids, "image"), _positions(path, table[:, 1], parts, "part")
    rows = _row_of_each(path, image * len(parts) + part, np.repeat(ids, len(parts))).reshape(len(ids), len(parts))
    visible = table[rows, 4] == 1
    return table[rows, 2:4].astype(np.float32) * visible[..., None], visible, rows + 1


def _read_names(path: Path, hashed: hashlib.blake2b) -> dict[int, str]:
    """``<number> <name>`` a line; a name may hold spaces ("left eye")."""
    names: dict[int, str] = {}
    for row, line in enumerate(_lines(path, hashed)):
        number, _, name = line.strip().partition(" ")
        if not number.isdecimal() or not name:
            _fail(path, row, f"expected a number and a name, found {line[:60]!r}")
        if int(number) in names:
            _fail(path, row, f"the number {number} was used before")
        names[int(number)] = name.strip()
    name, times = Counter(names.values()).most_common(1)[0]
    if times > 1:
        raise DaplError(f"{path}: the name {name!r} stands there {times} times; names must be unique.")
    return names


def _read_numbers(path: Path, hashed: hashlib.blake2b, columns: int) -> np.ndarray:
    """float64 lines×columns; row i is line i + 1."""
    lines = _lines(path, hashed)
    try:
        table = np.loadtxt(lines, dtype=np.float64, ndmin=2, comments=None)
    except ValueError:
        table = np.empty((0, 0))
    if table.shape == (len(lines), columns) and np.isfinite(table).all():
        return table
    for row, line in enumerate(lines):  # only now, for the message: a loop over 177 thousand lines is slow
        if not _is_numbers(line, columns):
            _fail(path, row, f"expected {columns} numbers, found {line[:60]!r}")
    raise AssertionError(f"{path}: unreadable, but each line is good")


def _is_numbers(line: str, columns: int) -> bool:
    try:
        values = [float(word) for word in line.split()]
    except ValueError:
        return False
    return len(values) == columns and bool(np.isfinite(values).all())


def _lines(path: Path, hashed: hashlib.blake2b) -> list[str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DaplError(f"{path}: cannot be read ({error.strerror}); {LAYOUT}.") from None
    hashed.update(content)
    try:
        lines = content.decode("utf-8").rstrip().split("\n")
    except UnicodeDecodeError as error:
        _fail(path, content[: error.start].count(b"\n"), "not text in UTF-8")
    if lines == [""]:
        raise DaplError(f"{path}: is empty; {LAYOUT}.")
    return lines


def _positions(path: Path, values: np.ndarray, known: np.ndarray, what: str) -> np.ndarray:
    """Where each value stands in ``known``."""
    order = np.argsort(known)
    found = order[np.searchsorted(known[order], values).clip(max=len(known) - 1)]
    unknown = known[found] != values
    if unknown.any():
        row = int(unknown.argmax())
        _fail(path, row, f"there is no {what} {values[row]:g}")
    return found


def _row_of_each(path: Path, slots: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Row r fills slot ``slots[r]``: the row of each slot, all filled once. ``ids`` names the image of a slot."""
    rows = np.full(len(ids), -1)
    rows[slots] = np.arange(len(slots))
    repeated = rows[slots] != np.arange(len(slots))
    if repeated.any():
        row = int(repeated.argmax())
        _fail(path, int(rows[slots[row]]), f"says again what line {row + 1} says")
    if (rows < 0).any():
        raise DaplError(f"{path}: has no line for image {ids[int((rows < 0).argmax())]}; the file is not complete.")
    return rows


def _fail(path: Path, row: int, message: str) -> NoReturn:
    raise DaplError(f"{path}, line {row + 1}: {message}; restore the file as it was published, or mend the line.")


Split = Literal["train", "test"]
Crop = Literal["none", "box"]

ON_EDGE = 1.0
"""Pixels by which a visible keypoint may lie outside the image and still be moved onto its edge."""
BEYOND_EDGE = 0.05
"""Share of the longer side by which it may lie outside and be taken for invisible. One of the 141,407 visible keypoints
of the published data does (the breast of Pacific_Loon_0034_75438, 3 % below the image); farther out is an error."""


class Cub200:
    """The images of one official split as a `Dataset`.

    ``classes`` is None for all, a step n for those whose 0-based index is a multiple of n (10: the classes 1, 11, 21 …
    191, "CUB-20"), or a list of class names ("001.Black_footed_Albatross" or "Black_footed_Albatross") and 1-based
    numbers. Labels count from 0 in the order of classes.txt, however the list is ordered.

    Masks are looked for in ``root/segmentations`` and in ``root/../segmentations`` (where the archive unpacks); without
    either, ``has_masks`` is False. ``crop="box"`` leaves only the annotated box of each image, as ProtoPNet does.
    Boxes that reach beyond the image (30 of the published ones do, by up to 20 pixels) are clipped to it.
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
                f" line (and check that the annotations belong to images of this size)."
            )
        on_edge = np.where((outside <= ON_EDGE)[:, None], points.clip(0, end), points)
        return in_frame(torch.from_numpy(on_edge), torch.from_numpy(visible), frame)

    def _box_of(self, index: int, frame: tuple[int, int]) -> tv_tensors.BoundingBoxes:
        box = self._boxes[index].reshape(2, 2).clip(0, [frame[1], frame[0]])
        if (box[1] - box[0] < 1).any():
            x1, y1, x2, y2 = self._boxes[index].tolist()
            raise DaplError(
                f"{self.root / 'bounding_boxes.txt'}: the box of {self.names[index]}, ({x1:g}, {y1:g}) to"
                f" ({x2:g}, {y2:g}), lies outside the image, which is {frame[1]}×{frame[0]}; mend its line."
            )
        return tv_tensors.BoundingBoxes(
            torch.from_numpy(box.astype(np.float32).reshape(1, 4)), format="XYXY", canvas_size=frame
        )

    def _check_root(self) -> None:
        inner = self.root / "CUB_200_2011"
        if inner.is_dir() and not (self.root / "images.txt").exists():
            raise DaplError(f"{self.root}: holds CUB in its folder CUB_200_2011; give {inner}.")

    def _fingerprint(self, digest: str, split: Split) -> str:
        """From all annotations and the size and time of each file: 0.03 s; to read the images takes a minute."""
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
