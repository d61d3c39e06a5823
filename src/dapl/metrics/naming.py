"""What a prototype is called, and whether it is background: the one rule for sheets, pages, cards and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BACKGROUND_ABOVE = 0.5
"""A region, a prototype or a whole explanation is background where more of it than this lies off the object."""
CLEAR_FROM = 0.5
"""A part names a prototype that is on it in at least this share of the images that show the part."""
ALSO_FROM = 0.4
"""A second part is named from this share on."""
SLIVER = 0.2
"""A part names nothing where the region has less in common with it than this share of what it has with another part."""
SAME_FROM = 0.5
"""Two prototypes look at the same spot when the mean IoU of their regions is at least this."""
_NAMED = 2

Parts = tuple[tuple[str, float], ...]
"""Names of parts with their shares, the largest first."""


def lies_on_background(share: float | None) -> bool:
    """The rule: whether more than half of something lies off the object. ``share``: how much of it does, in [0, 1].

    What is not known (None, NaN) is not background.

    >>> lies_on_background(0.79), lies_on_background(0.5), lies_on_background(None)
    (True, False, False)
    """
    return share is not None and share > BACKGROUND_ABOVE


def background_share(shares: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """How much of what several regions stand for lies off the object: the mean of their shares, by weight.

    ``shares``: of each region, what lies off the object; one that is not known (None, NaN) is left out. ``weights``:
    what each counts, e.g. the contributions of the prototypes to a logit (one below 0 counts as its size); None: all
    count the same. Returns None where nothing is known.

    >>> background_share([1.0, 0.0, None], weights=[3.0, 1.0, 5.0])
    0.75
    """
    weights = [1.0] * len(shares) if weights is None else weights
    known = [(s, abs(w)) for s, w in zip(shares, weights, strict=True) if s is not None and s == s]
    total = sum(weight for _, weight in known)
    return sum(share * weight for share, weight in known) / total if total else None


def background_warning(share: float | None) -> str | None:
    """The warning for reasons that rest on background, a clause with what to do; None where they do not.

    ``share``: of what the reasons rest on, how much lies off the object: the region background share of a model, or
    `background_share` of the regions of one prediction.

    >>> background_warning(0.79).split(";")[0]
    '79% of what the reasons rest on lies off the object: the model looks at background'
    """
    if share is None or not lies_on_background(share):
        return None
    return (
        f"{share:.0%} of what the reasons rest on lies off the object: the model looks at background; look at the "
        "masks with dapl prepare check, train with a foreground loss or a larger weight of it, or on images with more "
        "varied backgrounds"
    )


def is_background(on_object: float | None) -> bool:
    """Whether a prototype is background, by how much of its regions lies on the object; None: nobody knows.

    >>> is_background(0.3), is_background(0.5), is_background(None)
    (True, False, False)
    """
    return on_object is not None and lies_on_background(1 - on_object)


def clear_parts(shares: Mapping[str, float], shared: Mapping[str, float] | None = None) -> Parts:
    """The parts that name a prototype, what most of its region lies on first; none where no part is clear.

    A small part, and a sliver of one that is nearly hidden, is soon covered by a region that lies on another part: what
    a region has little in common with does not name it, however often it covers that.

    Args:
        shares: by part, in which share of the images that show it the prototype is on it.
        shared: by part, the mean area that region and part have in common; None: the shares alone decide.

    >>> clear_parts({"tail": 0.1, "nape": 0.4, "face": 0.9})
    (('face', 0.9), ('nape', 0.4))
    >>> clear_parts({"tail": 0.3, "nape": 0.4})
    ()
    >>> clear_parts({"beak": 1.0, "back": 0.9, "wing": 0.6}, {"beak": 0.001, "back": 0.03, "wing": 0.01})
    (('back', 0.9), ('wing', 0.6))
    """
    area = {name: shared.get(name, 0.0) for name in shares} if shared else {}
    most = max(area.values(), default=0.0)
    real = [name for name in shares if not area or area[name] >= SLIVER * most]
    ordered = sorted(real, key=lambda name: (-area.get(name, 0.0), -shares[name]))
    first = next((name for name in ordered if shares[name] >= CLEAR_FROM), None)
    if first is None:
        return ()
    others = [name for name in ordered if name != first and shares[name] >= ALSO_FROM]
    return tuple((name, shares[name]) for name in [first, *others][:_NAMED])


def part_text(parts: Sequence[tuple[str, float]]) -> str | None:
    """The name for a person to read; None where there is none.

    >>> part_text([("face", 0.9), ("nape", 0.4)])
    'face 90 %, nape 40 %'
    """
    return ", ".join(f"{plain_name(name)} {share_text(share)}" for name, share in parts) or None


def plain_name(part: str) -> str:
    """The name of a part as people write it.

    >>> plain_name("left_wing")
    'left wing'
    """
    return part.replace("_", " ")


def share_text(share: float) -> str:
    """A share for a person to read, rounded down, so that what is less than half never reads as half.

    >>> share_text(0.4976)
    '49 %'
    """
    return f"{math.floor(100 * share + 1e-9)} %"


def groups_of(neighbours: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Prototypes that look at the same spot, in groups: everyone that can be reached over neighbours.

    >>> groups_of({0: [2], 1: [], 2: [0, 7], 7: [2]})
    [[0, 2, 7]]
    """
    groups, seen = [], set()
    for first in sorted(neighbours):
        reached, waiting = {first}, [first]
        while waiting:
            for other in neighbours.get(waiting.pop(), ()):
                if other not in reached and other in neighbours:
                    reached.add(other)
                    waiting.append(other)
        if first not in seen and len(reached) > 1:
            groups.append(sorted(reached))
        seen |= reached
    return groups
