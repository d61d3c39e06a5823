"""Classes by the names that people type. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from dapl.common.errors import DaplError, nearest


def class_index(classes: Sequence[str], name: str | int) -> int:
    """The index of a class by its name, by what follows the number of a CUB name, by the index itself, or by a part of
    the name that no other class has.

    >>> [class_index(["001.Red_Finch", "002.Grey_Owl"], name) for name in ("002.Grey_Owl", "grey_owl", "1", 1, "owl")]
    [1, 1, 1, 1, 1]
    """
    if isinstance(name, str) and name not in classes:
        wanted, lower = name.lower(), [label.lower() for label in classes]
        whole = [index for index, label in enumerate(lower) if wanted and wanted in (label, label.partition(".")[2])]
        if len(whole) == 1:
            return whole[0]
        if not name.lstrip("-").isdigit():
            return _with_part(classes, name)
        name = int(name)
    index = name if isinstance(name, int) else classes.index(name)
    if not 0 <= index < len(classes):
        raise DaplError(f"there is no class {index}; there are {len(classes)}, counted from 0.")
    return index


def _with_part(classes: Sequence[str], part: str) -> int:
    found = [index for index, label in enumerate(classes) if part and part.lower() in label.lower()]
    if len(found) > 1:
        raise DaplError(
            f"'{part}' is in the names of several classes: {', '.join(classes[i] for i in found[:5])}; say which."
        )
    if not found:
        raise DaplError(f"there is no class '{part}'{nearest(part, classes)}")
    return found[0]
