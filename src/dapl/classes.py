"""Classes by the names that people type. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from dapl.errors import DaplError, nearest


def class_index(classes: Sequence[str], name: str | int) -> int:
    """The index of a class by its name, by what follows the number of a CUB name, or by the index itself.

    >>> [class_index(["001.Finch", "002.Owl"], name) for name in ("002.Owl", "owl", "1", 1)]
    [1, 1, 1, 1]
    """
    if isinstance(name, str) and name not in classes:
        short = [label.partition(".")[2].lower() for label in classes]
        lower = [label.lower() for label in classes]
        for known in (lower, short):
            if known.count(name.lower()) == 1:
                return known.index(name.lower())
        if not name.lstrip("-").isdigit():
            raise DaplError(f"there is no class '{name}'{nearest(name, classes)}")
        name = int(name)
    index = name if isinstance(name, int) else classes.index(name)
    if not 0 <= index < len(classes):
        raise DaplError(f"there is no class {index}; there are {len(classes)}, counted from 0.")
    return index
