"""Arrays of a cache, mapped into memory. A file that holds Python objects, which could run code, is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal

import numpy as np

from dapl.errors import DaplError

_BROKEN = (ValueError, OSError, EOFError, KeyError, TypeError, AttributeError, SyntaxError, zipfile.BadZipFile)
"""What numpy raises on files that are cut short, hold objects, or are something else altogether."""


def open_array(path: Path, mode: Literal["r", "c"] = "r", dtype: type = np.uint8) -> np.ndarray:
    """A .npy file as a memory map: read only, or (``c``) with changes that stay in memory."""
    try:
        found = np.lib.format.open_memmap(path, mode=mode)
    except _BROKEN as error:
        raise broken(path, str(error)) from error
    if found.dtype != dtype:
        raise broken(path, f"numbers of type {found.dtype} instead of {np.dtype(dtype)}")
    return found


def read_arrays(path: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """Arrays of a .npz file, read whole."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return [np.asarray(file[name]) for name in names]
    except _BROKEN as error:
        raise broken(path, str(error)) from error


def broken(path: Path, reason: str) -> DaplError:
    return DaplError(f"{path}: not an array that dapl wrote ({reason}); delete it, the cache is made anew.")
