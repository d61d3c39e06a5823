"""The parts of a bird and eight looks for each. Row t of every table belongs to one theme, a plausible bird.

The classes. Each starts from a theme of looks.py and takes some of its parts from other themes.

So a class looks natural and yet shares every single look with other classes: only several parts together decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, count

import numpy as np

from dapl.data.toybirds.drawing import RGB

PARTS = ("beak", "eye", "crown", "face", "nape", "throat", "breast", "belly", "back", "wing", "tail", "legs")

THEMES = 8

BLACK, CHARCOAL, SLATE, GREY = (34, 32, 38), (62, 62, 70), (98, 114, 134), (168, 172, 174)
WHITE, CREAM, BUFF, SAND = (246, 244, 238), (243, 230, 198), (226, 192, 142), (204, 168, 120)
BROWN, CHESTNUT, RUFOUS, PINK = (112, 80, 56), (140, 70, 40), (188, 98, 50), (222, 156, 146)
CRIMSON, SCARLET, ORANGE, GOLD, LEMON = (172, 28, 44), (212, 60, 44), (236, 134, 44), (238, 180, 44), (246, 218, 92)
OLIVE, GREEN, TEAL, TURQUOISE = (122, 126, 58), (88, 150, 66), (24, 110, 124), (52, 164, 178)
SKY, COBALT = (92, 152, 206), (44, 84, 168)


@dataclass(frozen=True)
class Look:
    """How one part appears."""

    word: str
    """The adjective it lends to a name."""
    colour: RGB
    form: str = "plain"
    """Shape or pattern, in the words of plumage.py and bird.py."""
    accent: RGB = BLACK
    """The colour of the pattern."""


LOOKS: dict[str, tuple[Look, ...]] = {
    "beak": (
        Look("Grosbeak", ORANGE, "cone"),
        Look("Jay", CHARCOAL, "dagger"),
        Look("Finch", PINK, "stub"),
        Look("Thrush", (196, 160, 92), "thin"),
        Look("Kingfisher", BLACK, "spear"),
        Look("Robin", (120, 112, 104), "thin"),
        Look("Lorikeet", SCARLET, "hook"),
        Look("Sicklebill", (150, 128, 112), "sickle"),
    ),
    "eye": (
        Look("dark", BLACK, "plain"),
        Look("white", WHITE, "ring"),
        Look("dark", BLACK, "plain"),
        Look("cream", CREAM, "ring"),
        Look("yellow", (250, 206, 40), "iris"),
        Look("orange", (236, 120, 30), "ring"),
        Look("red", (206, 40, 36), "ring"),
        Look("amber", (208, 116, 30), "iris"),
    ),
    "crown": (
        Look("Crimson", CRIMSON, "pointed"),
        Look("Azure", SKY, "swept"),
        Look("Black", BLACK),
        Look("Chestnut", CHESTNUT, "streaked", CREAM),
        Look("Teal", TEAL, "speckled", TURQUOISE),
        Look("Slate", SLATE),
        Look("Golden", GOLD, "tuft"),
        Look("Sandy", SAND, "fan", BLACK),
    ),
    "face": (
        Look("Scarlet", SCARLET, "mask", BLACK),
        Look("White", WHITE, "line", BLACK),
        Look("Golden", LEMON),
        Look("Buff", BUFF, "whisker", BROWN),
        Look("Rufous", RUFOUS, "cheek", WHITE),
        Look("Orange", ORANGE),
        Look("Green", GREEN, "line", CHARCOAL),
        Look("Grey", GREY, "brow", WHITE),
    ),
    "nape": (
        Look("Crimson", CRIMSON),
        Look("Blue", SKY),
        Look("Olive", OLIVE),
        Look("Brown", BROWN),
        Look("Teal", TEAL),
        Look("Slate", SLATE),
        Look("Chestnut", CHESTNUT),
        Look("Sandy", SAND),
    ),
    "throat": (
        Look("Black", BLACK),
        Look("White", WHITE, "collar", BLACK),
        Look("Yellow", LEMON),
        Look("Cream", CREAM, "speckled", BROWN),
        Look("White", WHITE),
        Look("Orange", ORANGE),
        Look("Blue", COBALT),
        Look("Ruby", CRIMSON, "speckled", (232, 96, 104)),
    ),
    "breast": (
        Look("Scarlet", SCARLET),
        Look("Grey", GREY),
        Look("Yellow", LEMON),
        Look("Spotted", CREAM, "spots", (92, 62, 42)),
        Look("Rufous", RUFOUS),
        Look("Banded", ORANGE, "band", CHARCOAL),
        Look("Green", GREEN, "scales", OLIVE),
        Look("Streaked", BUFF, "streaks", (120, 78, 48)),
    ),
    "belly": (
        Look("Rosy", (216, 118, 108)),
        Look("White", WHITE),
        Look("Lemon", LEMON),
        Look("Spotted", WHITE, "spots", BROWN),
        Look("Orange", ORANGE),
        Look("Grey", GREY),
        Look("Barred", (206, 208, 112), "bars", OLIVE),
        Look("Barred", CREAM, "bars", CHARCOAL),
    ),
    "back": (
        Look("Brick", (146, 52, 46)),
        Look("Blue", COBALT),
        Look("Olive", OLIVE, "streaks", (74, 76, 38)),
        Look("Brown", BROWN),
        Look("Turquoise", TURQUOISE),
        Look("Slate", SLATE),
        Look("Green", (62, 122, 62), "scales", (120, 172, 86)),
        Look("Sandy", SAND, "bars", BLACK),
    ),
    "wing": (
        Look("Crimson", (128, 40, 44)),
        Look("Blue", (58, 106, 190), "bars", WHITE),
        Look("Black", BLACK, "bars", LEMON),
        Look("Brown", (126, 92, 64), "edged", BUFF),
        Look("Teal", TEAL, "dots", (150, 224, 226)),
        Look("Grey", (84, 96, 112), "bar", WHITE),
        Look("Green", (72, 138, 72), "patch", COBALT),
        Look("Pied", CHARCOAL, "ladder", WHITE),
    ),
    "tail": (
        Look("Long", (140, 34, 44), "long"),
        Look("Blue", COBALT, "banded", WHITE),
        Look("Fork", BLACK, "fork"),
        Look("Brown", (128, 88, 58), "square"),
        Look("Short", TEAL, "short"),
        Look("White", CHARCOAL, "tipped", WHITE),
        Look("Wedge", (64, 128, 84), "wedge", COBALT),
        Look("Rufous", RUFOUS, "fan", BLACK),
    ),
    "legs": (
        Look("Brown", (132, 92, 72)),
        Look("Black", (52, 50, 54)),
        Look("Pink", (226, 150, 130)),
        Look("Pink", (226, 150, 130)),
        Look("Red", (214, 60, 44)),
        Look("Brown", (132, 92, 72)),
        Look("Grey", (136, 146, 156)),
        Look("Yellow", (236, 184, 48)),
    ),
}


_SWAPPED = 0.45  # chance that a part is taken from any theme instead of the class's own
_LEAST_DIFFERENCE = 4  # parts in which any two classes differ
_THEME_STREAM, _CLASS_STREAM = 1, 2  # random streams; dataset.py has those of the images

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
