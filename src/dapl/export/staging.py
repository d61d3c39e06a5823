"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dapl.errors import DaplError
from dapl.export.layout import NAMES


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yields an empty folder beside ``folder``; on success it takes its place, on failure nothing has changed.

    Only an earlier export may be replaced: a folder with anything else in it is refused.
    """
    check_replaceable(folder)
    stage, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{what}.tmp") for what in ("new", "old"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    try:
        yield stage
        check_replaceable(folder)  # it may have come while we worked
        _swap(stage, folder, old)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    foreign = [] if not folder.is_dir() else sorted(path.name for path in folder.iterdir() if path.name not in NAMES)
    if not folder.is_dir() or foreign:
        what = f"holds {foreign[0]}, which no export does" if foreign else "is not a folder"
        raise DaplError(f"{folder}: {what}; name a new folder with --out.")


def _swap(stage: Path, folder: Path, old: Path) -> None:
    """``stage`` takes the place of ``folder``; should that fail, what was there is put back."""
    if not folder.exists():
        os.replace(stage, folder)
        return
    os.replace(folder, old)
    try:
        os.replace(stage, folder)
    except OSError:
        os.replace(old, folder)
        raise
