"""The files of a cache: arrays on disk, the room that they take, and what goes when there is no room for more.

A file that holds Python objects, which could run code, is refused. Imports no torch.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dapl.common.errors import DaplError
from dapl.common.files import reserve
from dapl.common.reading import regular_file

_BROKEN = (ValueError, OSError, EOFError, KeyError, TypeError, AttributeError, SyntaxError, zipfile.BadZipFile)
"""What numpy raises on files that are cut short, hold objects, or are something else altogether."""
AGAIN = "delete it, the cache is made anew"
"""What to do about a broken cache."""
GB = 2**30
_KINDS = {"features": "features", "jpeg": "images (JPEG)", "images": "images", "annotations": "annotations"}
"""By the file that tells it, the first that is there."""
_FILE = re.compile(r"([0-9a-f]{24})-([a-z]+)[\w-]*\.(?:npy|npz|bin)")


def open_array(path: Path, mode: Literal["r", "c"] = "r", dtype: type = np.uint8) -> np.ndarray:
    """A .npy file as a memory map: read only, or (``c``) with changes that stay in memory."""
    try:
        found = np.lib.format.open_memmap(regular_file(path, AGAIN), mode=mode)
    except _BROKEN as error:
        raise broken(path, str(error)) from error
    if found.dtype != dtype:
        raise broken(path, f"numbers of type {found.dtype} instead of {np.dtype(dtype)}")
    return found


def new_array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """A .npy file to be filled through a memory map, whose room on the disk is taken before anything is written."""
    made = np.lib.format.open_memmap(path, "w+", dtype, shape)
    reserve(path, path.stat().st_size)
    return made


def flush(*arrays: np.ndarray | None) -> None:
    """What was written through memory maps, to their files."""
    for one in arrays:
        if isinstance(one, np.memmap):
            one.flush()


def read_arrays(path: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """Arrays of a .npz file, read whole."""
    try:
        with np.load(regular_file(path, AGAIN), allow_pickle=False) as file:
            return [np.asarray(file[name]) for name in names]
    except _BROKEN as error:
        raise broken(path, str(error)) from error


def broken(path: Path, reason: str) -> DaplError:
    return DaplError(f"{path}: not an array that dapl wrote ({reason}); {AGAIN}.")


@dataclass(frozen=True)
class CacheEntry:
    """The files of one key: the images of a data set at one size, or the features of one backbone on them."""

    key: str
    kind: str
    files: tuple[Path, ...]
    size: int
    """Bytes, of all files."""
    used: float
    """Seconds since 1970, when it was last opened or made."""

    def remove(self) -> None:
        """Whoever has mapped a file into memory keeps what it sees; others make it anew."""
        for file in self.files:
            file.unlink(missing_ok=True)


def entries(folder: Path) -> list[CacheEntry]:
    """All caches of a folder, the least recently used first; files that are not ours are left alone.

    >>> entries(Path("no such folder"))
    []
    """
    files: dict[str, list[tuple[str, Path, os.stat_result]]] = defaultdict(list)
    if folder.is_dir():
        for found in os.scandir(folder):
            if (match := _FILE.fullmatch(found.name)) is not None:
                try:
                    files[match[1]].append((match[2], Path(found.path), found.stat()))
                except FileNotFoundError:  # another process has just removed it
                    continue
    return sorted((_entry(key, known) for key, known in files.items()), key=lambda entry: (entry.used, entry.key))


def _entry(key: str, known: list[tuple[str, Path, os.stat_result]]) -> CacheEntry:
    names = {name for name, _, _ in known}
    kind = next((kind for name, kind in _KINDS.items() if name in names), "rest")
    paths = tuple(sorted(path for _, path, _ in known))
    return CacheEntry(
        key, kind, paths, sum(stat.st_size for *_, stat in known), max(stat.st_mtime for *_, stat in known)
    )


def mark_used(folder: Path, key: str) -> None:
    """The caches of this key are the last that go."""
    for file in folder.glob(f"{key}-*"):
        try:
            os.utime(file)
        except OSError:  # a folder that may only be read, or a file that has just gone
            return


def make_room(folder: Path, needed: float, limit: float, keep: Collection[str] = ()) -> tuple[bool, list[CacheEntry]]:
    """Remove the least recently used caches until ``needed`` more bytes are within ``limit``; whether they are now.

    Nothing is removed where that would not be enough. What was removed is returned too; the keys of ``keep`` stay.

    >>> make_room(Path("no such folder"), needed=5, limit=10)
    (True, [])
    """
    held = entries(folder)
    over = sum(entry.size for entry in held) + needed - limit
    removable = [entry for entry in held if entry.key not in keep]
    if over > sum(entry.size for entry in removable):
        return False, []
    removed = []
    for entry in removable:
        if over <= 0:
            break
        entry.remove()
        removed.append(entry)
        over -= entry.size
    return True, removed
