"""Values for the page: plain, short, and without a path of the machine."""

from __future__ import annotations

import math
import re
from typing import Any

_MACHINE_PATH = re.compile(r"^(~|/|[A-Za-z]:[\\/]|\\\\|file:)")


def rounded(value: float | None, digits: int = 4) -> float | None:
    """None for what is not a number."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def name_of(text: str) -> str:
    """A path of the machine becomes its last name; other texts, as names below a data set's root, stay."""
    if not _MACHINE_PATH.match(text):
        return text
    names = [name for name in re.split(r"[\\/]", text) if name]
    return f"…/{names[-1]}" if names else "…"


def without_paths(value: Any) -> Any:
    """The same for every text in lists and mappings."""
    if isinstance(value, str):
        return name_of(value)
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    return value
