"""Which masks of a folder were made by a program, and by which: what is measured with them is as true as they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dapl.common.errors import DaplError
from dapl.common.reading import parse_json, read_text

LOG = "made.jsonl"
"""In the folder of masks: a line for each mask that was made, how and from what."""


def made_note(folder: Path) -> str | None:
    """A sentence for whoever reads shares on the object; None where no mask of the folder was made.

    >>> made_note(Path("masks-of-a-person")) is None
    True
    """
    file, advice = folder / LOG, "Make the masks again."
    try:
        lines = read_text(file, advice).splitlines() if file.exists() else []
        methods = Counter(str(parse_json(line, file, advice)["method"]) for line in lines)
    except (OSError, DaplError, KeyError, TypeError):  # what cannot be read says nothing of who drew the masks
        return None
    if not methods:
        return None
    by = " and ".join(name for name, _ in methods.most_common())
    return (
        f"The masks of {sum(methods.values()):,} images were made by a program ({by}), not drawn by a person: how much "
        "lies on the object is known only as well as these masks are right. To look at them: dapl prepare check."
    )
