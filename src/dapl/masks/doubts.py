"""Reasons to doubt a mask: how it looks (a speck, more than half of the image, several pieces), and who made it.

What is measured with masks is as true as they are, so a reader is told where a program made them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dapl.common.errors import DaplError
from dapl.common.reading import parse_json, read_text

SPECK = 0.01
"""A mask with less of the image than this holds a speck. Of CUB's 11,788 masks hardly one does."""
LARGE = 0.5
"""A mask with more of the image than this holds half of it: the ground, or the mask is inverted."""
LARGEST_PIECE = 0.8
"""A mask whose largest piece has less of the foreground than this holds several objects."""
_SIDE = 512
"""Masks are looked at with this many pixels per side, at most."""

KINDS = {"speck": "a speck", "large": "more than half of the image", "pieces": "several pieces"}


@dataclass(frozen=True)
class MaskDoubt:
    """Why a mask should be looked at."""

    kind: str
    """One of `KINDS`."""
    badness: float
    """In (0, 1]: how far beyond the threshold, to show the worst first."""
    text: str

    def __str__(self) -> str:
        return self.text


def mask_doubt(mask: np.ndarray) -> MaskDoubt | None:
    """What is strange about a mask (bool H×W); None where nothing is. An empty one is a speck.

    >>> mask = np.zeros((20, 20), bool)
    >>> mask[4:10, 4:10] = mask[12:18, 12:18] = True
    >>> str(mask_doubt(mask))
    'several pieces, the largest with 50% of it'
    """
    from scipy.ndimage import label

    step = max(1, -(-max(mask.shape) // _SIDE))
    share = float(mask.mean())
    if share < SPECK:
        return MaskDoubt("speck", 1 - share / SPECK, f"a speck, {share:.2%} of the image")
    if share > LARGE:
        return MaskDoubt("large", (share - LARGE) / (1 - LARGE), f"{share:.0%} of the image")
    small = mask[::step, ::step]
    pieces, count = label(small, structure=np.ones((3, 3)))
    if count < 2:
        return None
    largest = float(np.bincount(pieces.ravel())[1:].max() / small.sum())
    if largest >= LARGEST_PIECE:
        return None
    return MaskDoubt("pieces", 1 - largest / LARGEST_PIECE, f"several pieces, the largest with {largest:.0%} of it")


def doubt_counts(kinds: list[str]) -> str:
    """How many of each kind, in words.

    >>> doubt_counts(["pieces", "speck", "pieces"])
    '1 × a speck, 2 × several pieces'
    """
    return ", ".join(f"{kinds.count(kind)} × {name}" for kind, name in KINDS.items() if kind in kinds)


MADE_LOG = "made.jsonl"
"""In the folder of masks: a line for each mask that was made, how and from what."""


def made_note(folder: Path) -> str | None:
    """A sentence for whoever reads shares on the object; None where no mask of the folder was made.

    >>> made_note(Path("masks-of-a-person")) is None
    True
    """
    file, advice = folder / MADE_LOG, "Make the masks again."
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
