"""Which masks of a folder were made by a program, and by which: what is measured with them is as true as they are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

LOG = "made.jsonl"
"""In the folder of masks: a line for each mask that was made, how and from what."""


def made_note(folder: Path) -> str | None:
    """A sentence for whoever reads shares on the object; None where no mask of the folder was made.

    >>> made_note(Path("masks-of-a-person")) is None
    True
    """
    try:
        lines = (folder / LOG).read_text(encoding="utf-8").splitlines()
        methods = Counter(str(json.loads(line)["method"]) for line in lines)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not methods:
        return None
    by = " and ".join(name for name, _ in methods.most_common())
    return (
        f"The masks of {sum(methods.values()):,} images were made by a program ({by}), not drawn by a person: how much "
        "lies on the object is known only as well as these masks are right. To look at them: dapl prepare check."
    )
