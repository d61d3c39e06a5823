"""A folder of class folders: ROOT/<class>/*.jpg, or ROOT/train/<class>/*.jpg where it has splits of its own.

Keypoints come from a CSV file with one row per image and part; its columns are image, part, x, y and maybe visible.
"""

from __future__ import annotations

import csv
import math
import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dapl.common.errors import DaplError, is_text, printable
from dapl.common.reading import LARGEST_DATA, read_text
from dapl.data.listing import (
    Fault,
    ImageRecord,
    Listing,
    MaskFile,
    drop_unlearned_classes,
    name_missing_masks,
)
from dapl.data.sample import SPLIT_OF, SPLITS

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jp2")
"""Files with these are taken for images, in small or capital letters."""
MASKS, KEYPOINTS = "masks", "keypoints.csv"
_IGNORED = ("thumbs.db", "desktop.ini")
COLUMNS = ("image", "part", "x", "y")
_YES, _NO = ("1", "true", "yes", "2"), ("0", "false", "no", "-1")
LAYOUT = "expected ROOT/<class>/<image>, or ROOT/train/<class>/<image> with ROOT/test and ROOT/val beside it"


def read_folder(root: Path, masks: Path | None = None, keypoints: Path | None = None) -> Listing:
    """All images below ``root``, with their masks and keypoints.

    Masks are looked for in ``masks`` (default: ROOT/masks, if there) under the path of their image below the root,
    keypoints in ``keypoints`` (default: ROOT/keypoints.csv, if there). Names of images are those paths; classes are
    numbered in the order of their names.
    """
    if not root.is_dir():
        raise DaplError(f"{root}: no such folder; {LAYOUT}.")
    mask_folder = _given_or_there(masks, root / MASKS, "data.masks")
    table = _given_or_there(keypoints, root / KEYPOINTS, "data.keypoints")
    faults: list[Fault] = []
    folders = _folders_of_splits(root, mask_folder, faults)
    classes = sorted({path.name for kinds in folders.values() for path in kinds})
    records = {
        split: [record for path in kinds for record in _records(root, path, classes.index(path.name), faults)]
        for split, kinds in folders.items()
    }
    listing = Listing(str(root), classes, [], records, faults)
    drop_unlearned_classes(listing)
    listing.masks = mask_folder or root / MASKS
    _add_masks(listing, listing.masks)
    if table is not None:
        _add_keypoints(listing, table)
    return listing


def _given_or_there(given: Path | None, default: Path, field: str) -> Path | None:
    if given is not None and not given.exists():
        raise DaplError(f"{field}: there is no {given}; give a path that exists, or none.")
    return given or (default if default.exists() else None)


def _folders_of_splits(root: Path, masks: Path | None, faults: list[Fault]) -> dict[str, list[Path]]:
    """The class folders of each split; all of them are "train" where the root has no folder of that name."""
    inner = _folders(root, masks)
    by_name = {path.name.lower(): path for path in inner}
    if not any(name in SPLIT_OF for name in by_name):
        _leave_out_loose_images(root, root, faults)
        return {"train": inner}
    if "train" not in by_name:
        raise DaplError(f"{root}: has {', '.join(sorted(by_name))}, but no folder train; {LAYOUT}.")
    folders: dict[str, list[Path]] = {}
    for name, path in sorted(by_name.items()):
        split = SPLIT_OF.get(name)
        if split is None:
            if any(_is_image(file) for file in path.rglob("*")) and name != "parts":
                text = f"{path}: left out, since it stands beside train and is neither val nor test."
                faults.append(Fault("left out", name, text))
            continue
        if split in folders:
            raise DaplError(f"{root}: has two folders for {split} (val, valid or validation); leave one.")
        _leave_out_loose_images(root, path, faults)
        folders[split] = _folders(path, masks)
    return {split: folders[split] for split in SPLITS if split in folders}


def _folders(folder: Path, masks: Path | None) -> list[Path]:
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    for path in found:
        if not is_text(path.name):
            raise DaplError(f"{printable(path)}: the name of this folder is not text in UTF-8; rename it.")
    return sorted(path for path in found if masks is None or path.resolve() != masks.resolve())


def _leave_out_loose_images(root: Path, folder: Path, faults: list[Fault]) -> None:
    loose = sorted(path for path in folder.iterdir() if path.is_file() and _is_image(path))
    if loose:
        name = printable(loose[0].relative_to(root).as_posix())
        text = (
            f"{folder}: {len(loose)} images in no class folder are left out, the first "
            f"{printable(loose[0].name)}; put them into the folder of their class."
        )
        faults.append(Fault("left out", name, text))


def _records(root: Path, folder: Path, label: int, faults: list[Fault]) -> list[ImageRecord]:
    """The images of one class folder, and of folders in it."""
    records = []
    for inside, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(inside)
        below = here.relative_to(root).as_posix()
        for file in sorted(files):
            path, name = here / file, f"{below}/{file}"
            if file.startswith(".") or file.lower() in _IGNORED:
                continue
            if not is_text(name):
                text = f"{printable(path)}: left out, its name is not text in UTF-8; rename it."
                faults.append(Fault("left out", printable(name), text))
            elif _is_image(path):
                records.append(ImageRecord(name, path, label))
            else:
                text = f"{path}: left out, not an image by its name ({', '.join(SUFFIXES)})."
                faults.append(Fault("left out", name, text))
    return records


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


# --- masks ----------------------------------------------------------------------------------------------------------


def _add_masks(listing: Listing, folder: Path) -> None:
    """The mask of a.jpg is written to a.png, but to a.jpg.png where there is an a.webp beside it."""
    files = _mask_files(folder)
    used: set[Path] = set()
    bare_names = {record.name: _without_suffix(record.name) for record in listing}
    times = Counter(bare_names.values())
    for records in listing.records.values():
        for index, record in enumerate(records):
            bare = bare_names[record.name]
            target = folder / (f"{record.name}.png" if times[bare] > 1 else f"{bare}.png")
            found = _mask_of(record.name, bare, files)
            records[index] = replace(record, mask=MaskFile(found) if found else None, mask_path=target)
            used |= {found} if found else set()
    name_missing_masks(listing)
    unused = sorted(path for group in files.values() for path in group if path not in used)
    if unused:
        listing.notes.append(f"{folder}: {len(unused)} masks belong to no image, the first {unused[0]}")


def _mask_files(folder: Path) -> dict[str, list[Path]]:
    """Images below ``folder`` by their path without the suffix."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if _is_image(path) and is_text(str(name)):  # an image with another name is left out, too
            files.setdefault(name.with_suffix("").as_posix(), []).append(path)
    return files


def _mask_of(name: str, bare: str, files: dict[str, list[Path]]) -> Path | None:
    """For a.jpg (``bare``: a) it is a.jpg.png, else a.png, else a.jpg, else a with any other suffix of an image."""
    suffix = name.removeprefix(bare)
    found = files.get(name, []) or sorted(
        files.get(bare, []), key=lambda path: (path.suffix.lower() != ".png", path.suffix != suffix)
    )
    return found[0] if found else None


def _without_suffix(name: str) -> str:
    """Of the name of an image, which always has one."""
    return posixpath.splitext(name)[0]


# --- keypoints ------------------------------------------------------------------------------------------------------


_Row = tuple[int, tuple[float, float] | None]
"""Line and point; None for a part that cannot be seen."""


def _add_keypoints(listing: Listing, path: Path) -> None:
    """Parts are numbered in the order in which the table first names them; one without a row is not visible."""
    found, listing.parts = _read_keypoints(path, {record.name for record in listing}, listing.faults)
    for records in listing.records.values():
        for index, record in enumerate(records):
            if record.name in found:
                rows = [found[record.name].get(part, (0, None)) for part in listing.parts]
                records[index] = replace(
                    record,
                    points=np.array([point or (0, 0) for _, point in rows], np.float32),
                    visible=np.array([point is not None for _, point in rows]),
                    points_origin=str(path),
                    lines=tuple(line for line, _ in rows),
                )


def _read_keypoints(
    path: Path, images: Collection[str], faults: list[Fault]
) -> tuple[dict[str, dict[str, _Row]], list[str]]:
    """By image and part, and the names of the parts; a row that cannot be used is left out and named."""
    found: dict[str, dict[str, _Row]] = {}
    parts: dict[str, None] = {}
    unknown: dict[str, list[int]] = {}
    for line, row in _table_rows(path):
        image, part = (row.get("image") or "").strip().replace("\\", "/"), (row.get("part") or "").strip()
        if image not in images:
            unknown.setdefault(image, []).append(line)
            continue
        try:
            if not part:
                raise ValueError("the name of the part is missing")
            if part in found.get(image, {}):
                raise ValueError(f"{part} of {image} was given before")
            found.setdefault(image, {})[part] = (line, _point(row))
            parts.setdefault(part)
        except ValueError as error:
            faults.append(Fault("left out", image, f"{path}, line {line}: left out, {error}."))
    for image, lines in unknown.items():
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        text = f"{path}, line {lines[0]}{more}: left out, there is no image {image!r}"
        faults.append(Fault("left out", image, f"{text} (paths are below the root, as in train/finch/1.jpg)."))
    return found, list(parts)


def _table_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and row; a file without the columns is refused."""
    lines = read_text(path, "see docs/own-data.md", LARGEST_DATA).splitlines()
    header = lines[0] if lines else ""
    reader = csv.DictReader(lines, delimiter=";" if ";" in header and "," not in header else ",")
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    except csv.Error as error:
        raise DaplError(f"{path}, line 1: not the head of a table ({error}); see docs/own-data.md.") from error
    if missing:
        raise DaplError(
            f"{path}, line 1: the column {missing[0]} is missing; the columns are {', '.join(COLUMNS)} and, where some"
            f" parts are hidden, visible."
        )
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DaplError(f"{path}, line {reader.line_num + 1}: not a row of a table ({error}); mend it.") from error


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
        if math.isfinite(x) and math.isfinite(y):
            return x, y
    except ValueError:
        pass
    raise ValueError(f"({', '.join(written)}) is not a point")
