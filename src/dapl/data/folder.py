"""A folder of class folders: ROOT/<class>/*.jpg, or ROOT/train/<class>/*.jpg where it has splits of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dapl.data.keypoint_table import read_keypoints
from dapl.data.listed import SPLITS, Fault, Listing, MaskFile, Record, drop_unlearned_classes
from dapl.errors import DaplError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jp2")
"""Of the files that are taken for pictures, in small or capital letters."""
FOLDERS_OF_SPLITS = {split: split for split in SPLITS} | {"val": "validation", "valid": "validation"}
MASKS, KEYPOINTS = "masks", "keypoints.csv"
_IGNORED = ("thumbs.db", "desktop.ini")
LAYOUT = "expected ROOT/<class>/<picture>, or ROOT/train/<class>/<picture> with ROOT/test and ROOT/val beside it"


def read_folder(root: Path, masks: Path | None = None, keypoints: Path | None = None) -> Listing:
    """All pictures below ``root``, with their masks and keypoints.

    Masks are looked for in ``masks`` (default: ROOT/masks, if there) under the path of their picture below the root,
    keypoints in ``keypoints`` (default: ROOT/keypoints.csv, if there). Names of pictures are those paths; classes are
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
    if mask_folder is not None:
        _add_masks(listing, mask_folder)
    listing.masks = mask_folder or root / MASKS
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
    if not any(name in FOLDERS_OF_SPLITS for name in by_name):
        _leave_out_loose_pictures(root, root, faults)
        return {"train": inner}
    if "train" not in by_name:
        raise DaplError(f"{root}: has {', '.join(sorted(by_name))}, but no folder train; {LAYOUT}.")
    folders: dict[str, list[Path]] = {}
    for name, path in sorted(by_name.items()):
        split = FOLDERS_OF_SPLITS.get(name)
        if split is None:
            if any(_is_picture(file) for file in path.rglob("*")) and name != "parts":
                text = f"{path}: left out, since it stands beside train and is neither val nor test."
                faults.append(Fault("left out", name, text))
            continue
        if split in folders:
            raise DaplError(f"{root}: has two folders for {split} (val, valid or validation); leave one.")
        _leave_out_loose_pictures(root, path, faults)
        folders[split] = _folders(path, masks)
    return {split: folders[split] for split in SPLITS if split in folders}


def _folders(folder: Path, masks: Path | None) -> list[Path]:
    found = (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(path for path in found if masks is None or path.resolve() != masks.resolve())


def _leave_out_loose_pictures(root: Path, folder: Path, faults: list[Fault]) -> None:
    loose = sorted(path for path in folder.iterdir() if path.is_file() and _is_picture(path))
    if loose:
        name = loose[0].relative_to(root).as_posix()
        text = (
            f"{folder}: {len(loose)} pictures in no class folder are left out, the first {loose[0].name}; put them into"
            f" the folder of their class."
        )
        faults.append(Fault("left out", name, text))


def _records(root: Path, folder: Path, label: int, faults: list[Fault]) -> list[Record]:
    """The pictures of one class folder, and of folders in it."""
    records = []
    for inside, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            path = Path(inside, file)
            name = path.relative_to(root).as_posix()
            if file.startswith(".") or file.lower() in _IGNORED:
                continue
            if _is_picture(path):
                records.append(Record(name, path, label))
            else:
                text = f"{path}: left out, not a picture by its name ({', '.join(SUFFIXES)})."
                faults.append(Fault("left out", name, text))
    return records


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


# --- masks ----------------------------------------------------------------------------------------------------------


def _add_masks(listing: Listing, folder: Path) -> None:
    files = _mask_files(folder)
    used: set[Path] = set()
    bare: list[Record] = []
    for records in listing.records.values():
        for index, record in enumerate(records):
            path = _mask_of(record.name, files)
            if path is None:
                bare.append(record)
            else:
                used.add(path)
                records[index] = replace(record, mask=MaskFile(path))
    if used:
        for record in bare:
            text = f"{record.path}: has no mask in {folder}, unlike others; `dapl masks` makes those that are missing."
            listing.faults.append(Fault("no mask", record.name, text))
    unused = sorted(path for group in files.values() for path in group if path not in used)
    if unused:
        listing.notes.append(f"{folder}: {len(unused)} masks belong to no picture, the first {unused[0]}")


def _mask_files(folder: Path) -> dict[str, list[Path]]:
    """Pictures below ``folder`` by their path without the suffix."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if _is_picture(path):
            files.setdefault(path.relative_to(folder).with_suffix("").as_posix(), []).append(path)
    return files


def _mask_of(name: str, files: dict[str, list[Path]]) -> Path | None:
    """Of a.jpg: a.jpg.png, else a.png, else a.jpg, else a with any other suffix of a picture."""
    exact = files.get(name, [])
    if exact:
        return exact[0]
    suffix = PurePosixPath(name).suffix

    def preference(path: Path) -> tuple[bool, bool]:
        return path.suffix.lower() != ".png", path.suffix != suffix

    return min(files.get(str(PurePosixPath(name).with_suffix("")), []), key=preference, default=None)


# --- keypoints ------------------------------------------------------------------------------------------------------


def _add_keypoints(listing: Listing, path: Path) -> None:
    table = read_keypoints(path, {record.name for record in listing})
    listing.parts = table.parts
    listing.faults += table.faults
    for records in listing.records.values():
        for index, record in enumerate(records):
            if record.name in table.points:
                points, visible = table.points[record.name]
                records[index] = replace(
                    record, points=points, visible=visible, origin=str(path), lines=table.lines[record.name]
                )
