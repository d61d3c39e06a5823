"""Where each prototype of a run looks, as `dapl evaluate` measured it: the content of ``metrics/prototypes.json``.

Plain numbers; what they are called, and which of them is bad, is decided in `dapl.metrics.naming`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class PrototypeLook:
    """One prototype, over the images of its classes in the split that was measured."""

    index: int
    on_object: float | None = None
    """Share of its region that lies on the object, mean over the images; None without masks, or when it was removed."""
    parts: dict[str, float] = field(default_factory=dict)
    """By the name of a part: in which share of the images that show the part the prototype is on it."""
    same_spot: list[int] = field(default_factory=list)
    """Other prototypes of its classes whose regions are nearly the same."""
    shared: dict[str, float] = field(default_factory=dict)
    """By the name of a part: the share of the image that region and part have in common, mean over the same images."""


def looks_to_json(looks: Sequence[PrototypeLook], split: str) -> dict[str, Any]:
    """As it is written; `looks_from_json` reads it.

    >>> looks_to_json([PrototypeLook(0, 0.9)], "test")["split"]
    'test'
    """
    return {"split": split, "prototypes": [asdict(look) for look in looks]}


def looks_from_json(values: dict[str, Any]) -> list[PrototypeLook]:
    """What `looks_to_json` wrote.

    >>> looks_from_json(looks_to_json([PrototypeLook(0, 0.9)], "test"))[0].on_object
    0.9
    """
    return [PrototypeLook(**value) for value in values["prototypes"]]
