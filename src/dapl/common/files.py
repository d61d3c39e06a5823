"""Paths as a config writes them, and writing so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
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


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def expand_path(value: str, field: str) -> Path:
    """~ and $VARIABLES; a variable that is not set is an error that names the field."""
    expanded = os.path.expanduser(os.path.expandvars(value))
    if "$" in expanded:
        variable = expanded[expanded.index("$") + 1 :].split("/")[0].strip("{}")
        raise DaplError(
            f"{field}: the environment variable {variable} is not set; set it, or pass --{field} with a path."
        )
    return Path(expanded)
