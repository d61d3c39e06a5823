"""CUB-200-2011 (Wah et al., 2011) in its published layout: 200 birds, official split, boxes, 15 keypoints, masks.

Each file of annotations is read once into arrays; a bad line is named with its file and number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from dapl.common.errors import DaplError
from dapl.common.reading import read_bytes
from dapl.data.listing import ImageRecord, Listing, MaskFile, name_missing_masks, require_every_class
from dapl.data.sample import choose_classes

LAYOUT = (
    "the published layout of CUB-200-2011 has images.txt, image_class_labels.txt, train_test_split.txt, classes.txt,"
    " bounding_boxes.txt, parts/parts.txt, parts/part_locs.txt and images/ (the Caltech-UCSD Birds page offers it as"
    " CUB_200_2011.tgz; segmentations.tgz, for the masks, is apart)"
)
BEYOND_EDGE = 0.05
"""Share of the longer side by which a keypoint may lie outside and be taken for invisible. One of the 141,407 visible
keypoints of the published data does (the breast of Pacific_Loon_0034_75438, 3 % below the image)."""


def read_cub(root: str | Path, classes: int | Sequence[str | int] | None = None) -> Listing:
    """The images of the official splits, train and test.

    ``classes``: all (None), every n-th (an integer: 10 takes the classes 1, 11, 21 … 191, "CUB-20"), or a list of names
    and of numbers from 1. Labels count from 0 in the order of classes.txt, however the list is ordered.

    Masks are looked for in ``root/segmentations`` and in ``root/../segmentations`` (where the archive unpacks).

    >>> read_cub("CUB_200_2011").dataset("test", crop="box")  # doctest: +SKIP
    FileDataset(test of CUB_200_2011: 5794 images, 200 classes)
    """
    root = Path(root)
    if (inner := root / "CUB_200_2011").is_dir() and not (root / "images.txt").exists():
        raise DaplError(f"{root}: holds CUB in its folder CUB_200_2011; give {inner}.")
    if not root.is_dir():
        raise DaplError(f"{root}: no such folder; {LAYOUT}.")
    images, names, parts = (_read_names(root / file) for file in ("images.txt", "classes.txt", "parts/parts.txt"))
    ids = np.array(list(images))
    labels = _read_flags(root / "image_class_labels.txt", ids, np.array(list(names)), "class")
    train = _read_flags(root / "train_test_split.txt", ids, np.array([0, 1]), "split flag") == 1
    box_file, point_file, folder = root / "bounding_boxes.txt", root / "parts/part_locs.txt", root / "images"
    boxes = _read_boxes(box_file, ids).tolist()
    points, visible, lines = _read_parts(point_file, ids, np.array(list(parts)))
    chosen = choose_classes(list(names.values()), classes)
    masks, beside = root / "segmentations", root.resolve().parent / "segmentations"
    if beside.is_dir() and not masks.is_dir():
        masks = beside
    listing = Listing(
        source=str(root),
        classes=[list(names.values())[label] for label in chosen],
        parts=list(parts.values()),
        records={"train": [], "test": []},
        masks=masks,
        mend="unpack the archive again, or take the lines out of all text files",
        stray=BEYOND_EDGE,
    )
    number = {label: index for index, label in enumerate(chosen)}
    for row, name in enumerate(images.values()):
        if labels[row] in number:
            mask = masks / f"{name.rpartition('.')[0]}.png"
            record = ImageRecord(
                name=name,
                path=folder / name,
                label=number[labels[row]],
                mask=MaskFile(mask) if os.path.isfile(mask) else None,
                mask_path=mask,
                points=points[row],
                visible=visible[row],
                box=tuple(boxes[row]),
                origin=str(box_file),
                points_origin=str(point_file),
                lines=tuple(lines[row]),
            )
            listing.records["train" if train[row] else "test"].append(record)
    name_missing_masks(listing)
    mend = "add some (image_class_labels.txt, train_test_split.txt), or leave the class out with `classes`."
    require_every_class(listing, mend)
    return listing


def _read_flags(path: Path, ids: np.ndarray, allowed: np.ndarray, what: str) -> np.ndarray:
    """For each image, the index of its value in ``allowed``."""
    table = _read_numbers(path, columns=2)
    values = _positions(path, table[:, 1], allowed, what)
    return values[_row_of_each(path, _positions(path, table[:, 0], ids, "image"), ids)]


def _read_boxes(path: Path, ids: np.ndarray) -> np.ndarray:
    table = _read_numbers(path, columns=5)
    flat = (table[:, 3:] <= 0).any(axis=1)
    if flat.any():
        _fail(path, int(flat.argmax()), "the box has no width or no height")
    rows = _row_of_each(path, _positions(path, table[:, 0], ids, "image"), ids)
    corner, size = table[rows, 1:3], table[rows, 3:5]
    return np.concatenate([corner, corner + size], axis=1).astype(np.float32)


def _read_parts(path: Path, ids: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Points n×K×2, whether they are visible n×K, and the line that each stands on."""
    table = _read_numbers(path, columns=5)
    flag = ~np.isin(table[:, 4], (0, 1))
    if flag.any():
        _fail(path, int(flag.argmax()), "visible must be 0 or 1")
    image, part = _positions(path, table[:, 0], ids, "image"), _positions(path, table[:, 1], parts, "part")
    rows = _row_of_each(path, image * len(parts) + part, np.repeat(ids, len(parts))).reshape(len(ids), len(parts))
    visible = table[rows, 4] == 1
    return table[rows, 2:4].astype(np.float32) * visible[..., None], visible, (rows + 1).tolist()


def _read_names(path: Path) -> dict[int, str]:
    """``<number> <name>`` per line; a name may hold spaces ("left eye")."""
    names: dict[int, str] = {}
    for row, line in enumerate(_lines(path)):
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


def _read_numbers(path: Path, columns: int) -> np.ndarray:
    """float64 lines×columns; row i is line i + 1."""
    lines = _lines(path)
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


def _lines(path: Path) -> list[str]:
    content = read_bytes(path, LAYOUT)
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
