"""The annotation files of CUB-200-2011, each read once into arrays; a bad line is named with its file and number."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from dapl.errors import DaplError

LAYOUT = (
    "the published layout of CUB-200-2011 has images.txt, image_class_labels.txt, train_test_split.txt, classes.txt,"
    " bounding_boxes.txt, parts/parts.txt, parts/part_locs.txt and images/ (the Caltech-UCSD Birds page offers it as"
    " CUB_200_2011.tgz; segmentations.tgz, for the masks, is apart)"
)
PART_LOCATIONS = "parts/part_locs.txt"


@dataclass(frozen=True)
class Annotations:
    """One row a picture, in the order of images.txt; n pictures, K parts."""

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
