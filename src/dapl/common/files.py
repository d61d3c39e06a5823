"""Paths as a config writes them, and writing so that a reader never sees half a file or half a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it takes its place, on failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path, check: Callable[[Path], None] = lambda folder: None) -> Iterator[Path]:
    """Yields an empty folder beside ``folder``; on success it takes its place, on failure nothing has changed.

    ``check(folder)`` raises where what is there must stay; it is asked before the work and again before the exchange.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "report"
    >>> with replacing_folder(target) as new:
    ...     _ = (new / "index.html").write_text("whole")
    ...     target.exists()
    False
    >>> [path.name for path in target.iterdir()]
    ['index.html']
    """
    check(folder)
    new, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{which}.tmp") for which in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        check(folder)  # something may have come there in the meantime
        _exchange(new, folder, old)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(new: Path, folder: Path, old: Path) -> None:
    """``new`` takes the place of ``folder``; should that fail, what was there is put back."""
    if folder.exists():
        os.replace(folder, old)
    try:
        os.replace(new, folder)
    except OSError:
        if old.exists():
            os.replace(old, folder)
        raise


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def file_digest(path: Path) -> str:
    """Of the content of a file: two files with the same digest hold the same bytes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "weights"
    >>> _ = file.write_bytes(b"one")
    >>> len(file_digest(file))
    24
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()  # type: ignore[arg-type]


def expand_path(value: str, field: str) -> Path:
    """~ and $VARIABLES; a variable that is not set is an error that names the field."""
    expanded = os.path.expanduser(os.path.expandvars(value))
    if "$" in expanded:
        variable = expanded[expanded.index("$") + 1 :].split("/")[0].strip("{}")
        raise DaplError(
            f"{field}: the environment variable {variable} is not set; set it, or pass --{field} with a path."
        )
    return Path(expanded)
