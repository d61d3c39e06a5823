"""The classes. Each starts from a theme of looks.py and takes some of its parts from other themes.

So a class looks natural and yet shares every single look with other classes: only several parts together decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, count

import numpy as np

from dapl.data.toybirds.looks import LOOKS, PARTS, THEMES, Look

_SWAPPED = 0.45  # chance that a part is taken from any theme instead of the class's own
_LEAST_DIFFERENCE = 4  # parts in which any two classes differ
_THEME_STREAM, _CLASS_STREAM = 1, 2  # random streams; dataset.py has those of the pictures

_NAMED_AFTER = (
    ("crown", "crowned"),
    ("breast", "breasted"),
    ("back", "backed"),
    ("throat", "throated"),
    ("tail", "tailed"),
    ("wing", "winged"),
    ("belly", "bellied"),
    ("nape", "naped"),
    ("face", "faced"),
    ("legs", "legged"),
)


@dataclass(frozen=True)
class Species:
    """One class."""

    name: str
    looks: dict[str, Look]
    """The look of each of `PARTS`."""
    plumpness: float
    head_size: float


def differing_parts(first: Species, second: Species) -> int:
    return sum(first.looks[part] != second.looks[part] for part in PARTS)


@lru_cache(maxsize=16)
def species_of(seed: int, classes: int) -> tuple[Species, ...]:
    """The first ``classes`` species of ``seed``; a longer list begins with the shorter one."""
    themes = np.random.default_rng(np.random.SeedSequence((seed, _THEME_STREAM))).permutation(THEMES)
    found: list[Species] = []
    for index in range(classes):
        taken = {species.name for species in found}
        for attempt in count():
            rng = np.random.default_rng(np.random.SeedSequence((seed, _CLASS_STREAM, index, attempt)))
            looks = _choose_looks(rng, int(themes[index % THEMES]))
            name = next((name for name in _names(looks) if name not in taken), None)
            plumpness, head_size = float(rng.uniform(0.9, 1.12)), float(rng.uniform(0.92, 1.1))
            if name is None:
                continue
            candidate = Species(name, looks, plumpness, head_size)
            if all(differing_parts(candidate, other) >= _LEAST_DIFFERENCE for other in found):
                found.append(candidate)
                break
    return tuple(found)


def _choose_looks(rng: np.random.Generator, theme: int) -> dict[str, Look]:
    swapped = rng.random(len(PARTS)) < _SWAPPED
    others = rng.integers(THEMES, size=len(PARTS))
    chosen = np.where(swapped, others, theme)
    return {part: LOOKS[part][int(row)] for part, row in zip(PARTS, chosen, strict=True)}


def _names(looks: dict[str, Look]) -> Iterator[str]:
    """Ever longer names made of what is seen: 'Crimson-crowned Finch', …, 'Crimson-crowned Spotted-breasted Finch'."""
    words = [f"{looks[part].word}-{suffix}" for part, suffix in _NAMED_AFTER]
    for length in (1, 2, 3):
        for chosen in combinations(words, length):
            yield " ".join((*chosen, looks["beak"].word))
