"""The classes: the parts of a bird, eight styles for each, and how a species is put together from them.

Row t of every table belongs to one theme, a plausible bird. A species starts from a theme and takes some of its parts
from other themes. So it looks natural and yet shares every single style with others: several parts together decide.
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
class PartStyle:
    """How one part appears."""

    word: str
    """The adjective it lends to a name."""
    colour: RGB
    form: str = "plain"
    """Shape or pattern, in the words of plumage.py and bird.py."""
    accent: RGB = BLACK
    """The colour of the pattern."""


STYLES: dict[str, tuple[PartStyle, ...]] = {
    "beak": (
        PartStyle("Grosbeak", ORANGE, "cone"),
        PartStyle("Jay", CHARCOAL, "dagger"),
        PartStyle("Finch", PINK, "stub"),
        PartStyle("Thrush", (196, 160, 92), "thin"),
        PartStyle("Kingfisher", BLACK, "spear"),
        PartStyle("Robin", (120, 112, 104), "thin"),
        PartStyle("Lorikeet", SCARLET, "hook"),
        PartStyle("Sicklebill", (150, 128, 112), "sickle"),
    ),
    "eye": (
        PartStyle("dark", BLACK, "plain"),
        PartStyle("white", WHITE, "ring"),
        PartStyle("dark", BLACK, "plain"),
        PartStyle("cream", CREAM, "ring"),
        PartStyle("yellow", (250, 206, 40), "iris"),
        PartStyle("orange", (236, 120, 30), "ring"),
        PartStyle("red", (206, 40, 36), "ring"),
        PartStyle("amber", (208, 116, 30), "iris"),
    ),
    "crown": (
        PartStyle("Crimson", CRIMSON, "pointed"),
        PartStyle("Azure", SKY, "swept"),
        PartStyle("Black", BLACK),
        PartStyle("Chestnut", CHESTNUT, "streaked", CREAM),
        PartStyle("Teal", TEAL, "speckled", TURQUOISE),
        PartStyle("Slate", SLATE),
        PartStyle("Golden", GOLD, "tuft"),
        PartStyle("Sandy", SAND, "fan", BLACK),
    ),
    "face": (
        PartStyle("Scarlet", SCARLET, "mask", BLACK),
        PartStyle("White", WHITE, "line", BLACK),
        PartStyle("Golden", LEMON),
        PartStyle("Buff", BUFF, "whisker", BROWN),
        PartStyle("Rufous", RUFOUS, "cheek", WHITE),
        PartStyle("Orange", ORANGE),
        PartStyle("Green", GREEN, "line", CHARCOAL),
        PartStyle("Grey", GREY, "brow", WHITE),
    ),
    "nape": (
        PartStyle("Crimson", CRIMSON),
        PartStyle("Blue", SKY),
        PartStyle("Olive", OLIVE),
        PartStyle("Brown", BROWN),
        PartStyle("Teal", TEAL),
        PartStyle("Slate", SLATE),
        PartStyle("Chestnut", CHESTNUT),
        PartStyle("Sandy", SAND),
    ),
    "throat": (
        PartStyle("Black", BLACK),
        PartStyle("White", WHITE, "collar", BLACK),
        PartStyle("Yellow", LEMON),
        PartStyle("Cream", CREAM, "speckled", BROWN),
        PartStyle("White", WHITE),
        PartStyle("Orange", ORANGE),
        PartStyle("Blue", COBALT),
        PartStyle("Ruby", CRIMSON, "speckled", (232, 96, 104)),
    ),
    "breast": (
        PartStyle("Scarlet", SCARLET),
        PartStyle("Grey", GREY),
        PartStyle("Yellow", LEMON),
        PartStyle("Spotted", CREAM, "spots", (92, 62, 42)),
        PartStyle("Rufous", RUFOUS),
        PartStyle("Banded", ORANGE, "band", CHARCOAL),
        PartStyle("Green", GREEN, "scales", OLIVE),
        PartStyle("Streaked", BUFF, "streaks", (120, 78, 48)),
    ),
    "belly": (
        PartStyle("Rosy", (216, 118, 108)),
        PartStyle("White", WHITE),
        PartStyle("Lemon", LEMON),
        PartStyle("Spotted", WHITE, "spots", BROWN),
        PartStyle("Orange", ORANGE),
        PartStyle("Grey", GREY),
        PartStyle("Barred", (206, 208, 112), "bars", OLIVE),
        PartStyle("Barred", CREAM, "bars", CHARCOAL),
    ),
    "back": (
        PartStyle("Brick", (146, 52, 46)),
        PartStyle("Blue", COBALT),
        PartStyle("Olive", OLIVE, "streaks", (74, 76, 38)),
        PartStyle("Brown", BROWN),
        PartStyle("Turquoise", TURQUOISE),
        PartStyle("Slate", SLATE),
        PartStyle("Green", (62, 122, 62), "scales", (120, 172, 86)),
        PartStyle("Sandy", SAND, "bars", BLACK),
    ),
    "wing": (
        PartStyle("Crimson", (128, 40, 44)),
        PartStyle("Blue", (58, 106, 190), "bars", WHITE),
        PartStyle("Black", BLACK, "bars", LEMON),
        PartStyle("Brown", (126, 92, 64), "edged", BUFF),
        PartStyle("Teal", TEAL, "dots", (150, 224, 226)),
        PartStyle("Grey", (84, 96, 112), "bar", WHITE),
        PartStyle("Green", (72, 138, 72), "patch", COBALT),
        PartStyle("Pied", CHARCOAL, "ladder", WHITE),
    ),
    "tail": (
        PartStyle("Long", (140, 34, 44), "long"),
        PartStyle("Blue", COBALT, "banded", WHITE),
        PartStyle("Fork", BLACK, "fork"),
        PartStyle("Brown", (128, 88, 58), "square"),
        PartStyle("Short", TEAL, "short"),
        PartStyle("White", CHARCOAL, "tipped", WHITE),
        PartStyle("Wedge", (64, 128, 84), "wedge", COBALT),
        PartStyle("Rufous", RUFOUS, "fan", BLACK),
    ),
    "legs": (
        PartStyle("Brown", (132, 92, 72)),
        PartStyle("Black", (52, 50, 54)),
        PartStyle("Pink", (226, 150, 130)),
        PartStyle("Pink", (226, 150, 130)),
        PartStyle("Red", (214, 60, 44)),
        PartStyle("Brown", (132, 92, 72)),
        PartStyle("Grey", (136, 146, 156)),
        PartStyle("Yellow", (236, 184, 48)),
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
    styles: dict[str, PartStyle]
    """The style of each of `PARTS`."""
    plumpness: float
    head_size: float


def differing_parts(first: Species, second: Species) -> int:
    return sum(first.styles[part] != second.styles[part] for part in PARTS)


@lru_cache(maxsize=16)
def species_of(seed: int, classes: int) -> tuple[Species, ...]:
    """The first ``classes`` species of ``seed``; a longer list begins with the shorter one."""
    themes = np.random.default_rng(np.random.SeedSequence((seed, _THEME_STREAM))).permutation(THEMES)
    found: list[Species] = []
    for index in range(classes):
        taken = {species.name for species in found}
        for attempt in count():
            rng = np.random.default_rng(np.random.SeedSequence((seed, _CLASS_STREAM, index, attempt)))
            styles = _choose_styles(rng, int(themes[index % THEMES]))
            name = next((name for name in _names(styles) if name not in taken), None)
            plumpness, head_size = float(rng.uniform(0.9, 1.12)), float(rng.uniform(0.92, 1.1))
            if name is None:
                continue
            candidate = Species(name, styles, plumpness, head_size)
            if all(differing_parts(candidate, other) >= _LEAST_DIFFERENCE for other in found):
                found.append(candidate)
                break
    return tuple(found)


def _choose_styles(rng: np.random.Generator, theme: int) -> dict[str, PartStyle]:
    swapped = rng.random(len(PARTS)) < _SWAPPED
    others = rng.integers(THEMES, size=len(PARTS))
    chosen = np.where(swapped, others, theme)
    return {part: STYLES[part][int(row)] for part, row in zip(PARTS, chosen, strict=True)}


def _names(styles: dict[str, PartStyle]) -> Iterator[str]:
    """Ever longer names made of what is seen: 'Crimson-crowned Finch', …, 'Crimson-crowned Spotted-breasted Finch'."""
    words = [f"{styles[part].word}-{suffix}" for part, suffix in _NAMED_AFTER]
    for length in (1, 2, 3):
        for chosen in combinations(words, length):
            yield " ".join((*chosen, styles["beak"].word))
