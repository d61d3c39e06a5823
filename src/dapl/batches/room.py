"""The room that caches take: what a folder holds, and what goes when there is no room for more."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

GB = 2**30
_KINDS = {"features": "features", "jpeg": "images (JPEG)", "images": "images", "annotations": "annotations"}
"""By the file that tells it, the first that is there."""
_FILE = re.compile(r"([0-9a-f]{24})-([a-z]+)[\w-]*\.(?:npy|npz|bin)")


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
