"""Keypoints from a CSV file in long form: one row a picture and part, columns image, part, x, y and maybe visible."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dapl.data.listed import Fault
from dapl.errors import DaplError

COLUMNS = ("image", "part", "x", "y")
_YES, _NO = ("1", "true", "yes", "2"), ("0", "false", "no", "-1")


@dataclass(frozen=True)
class KeypointTable:
    parts: list[str]
    """In the order in which the file first names them."""
    points: dict[str, tuple[np.ndarray, np.ndarray]]
    """By picture: float32 K×2 and bool K; 0 where a part is not visible or has no row."""
    lines: dict[str, tuple[int, ...]]
    """By picture, the line of each part; 0 where it has none."""
    faults: list[Fault]
    """Rows that were left out."""


def read_keypoints(path: Path, pictures: Collection[str]) -> KeypointTable:
    """A row that cannot be used is left out and named; a file without the columns is refused."""
    rows, lines = _rows(path)
    found: dict[str, dict[str, tuple[float, float] | None]] = {}
    lines_of: dict[str, dict[str, int]] = {}
    parts: dict[str, None] = {}
    faults: list[Fault] = []
    unknown: dict[str, list[int]] = {}
    for line, row in zip(lines, rows, strict=True):
        image, part = (row.get("image") or "").strip().replace("\\", "/"), (row.get("part") or "").strip()
        if image not in pictures:
            unknown.setdefault(image, []).append(line)
            continue
        wrong = _fault_of(image, part, found)
        point: tuple[float, float] | None = None
        if wrong is None:
            try:
                point = _point(row)
            except ValueError as error:
                wrong = str(error)
        if wrong is not None:
            faults.append(Fault("left out", image, f"{path}, line {line}: left out, {wrong}."))
            continue
        parts.setdefault(part)
        found.setdefault(image, {})[part] = point
        lines_of.setdefault(image, {})[part] = line
    faults += [_no_such_picture(path, image, where) for image, where in unknown.items()]
    order = list(parts)
    points = {image: _arrays(seen, order) for image, seen in found.items()}
    where = {image: tuple(seen.get(part, 0) for part in order) for image, seen in lines_of.items()}
    return KeypointTable(order, points, where, faults)


def _rows(path: Path) -> tuple[list[dict[str, str]], list[int]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write the mark, others do not
    except (OSError, UnicodeDecodeError) as error:
        raise DaplError(f"{path}: cannot be read as text in UTF-8 ({error}); see docs/own-data.md.") from error
    header = text.split("\n", 1)[0]
    reader = csv.DictReader(text.splitlines(), delimiter=";" if ";" in header and "," not in header else ",")
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise DaplError(
            f"{path}, line 1: the column {missing[0]} is missing; the columns are {', '.join(COLUMNS)} and, where some"
            f" parts are hidden, visible."
        )
    rows, lines = [], []
    for row in reader:
        rows.append(row)
        lines.append(reader.line_num)
    return rows, lines


def _no_such_picture(path: Path, image: str, lines: list[int]) -> Fault:
    """One for all rows of it."""
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    text = (
        f"{path}, line {lines[0]}{more}: left out, there is no picture {image!r} (paths are below the root, as in"
        f" train/finch/1.jpg)."
    )
    return Fault("left out", image, text)


def _fault_of(image: str, part: str, found: dict[str, dict]) -> str | None:
    if not part:
        return "the name of the part is missing"
    if part in found.get(image, {}):
        return f"{part} of {image} was given before"
    return None


def _point(row: dict[str, str]) -> tuple[float, float] | None:
    """None for a part that cannot be seen: visible says so, or the coordinates are empty."""
    flag = (row.get("visible") or "").strip().lower()
    written = [(row.get(name) or "").strip() for name in ("x", "y")]
    if flag and flag not in (*_YES, *_NO):
        raise ValueError(f"visible is {flag!r}, neither 0 nor 1")
    if flag in _NO or (not flag and not any(written)):
        return None
    try:
        x, y = (float(value) for value in written)
    except ValueError:
        raise ValueError(f"({', '.join(written)}) is not a point") from None
    if not (math.isfinite(x) and math.isfinite(y)):
        raise ValueError(f"({x}, {y}) is not a point")
    return x, y


def _arrays(seen: dict[str, tuple[float, float] | None], parts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    points = np.zeros((len(parts), 2), np.float32)
    visible = np.zeros(len(parts), bool)
    for index, part in enumerate(parts):
        point = seen.get(part)
        if point is not None:
            points[index], visible[index] = point, True
    return points, visible
