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

_COLOURS = (
    "black #222026, charcoal #3e3e46, slate #627286, grey #a8acae, white #f6f4ee, cream #f3e6c6, buff #e2c08e, "
    "sand #cca878, brown #705038, chestnut #8c4628, rufous #bc6232, pink #de9c92, crimson #ac1c2c, scarlet #d43c2c, "
    "orange #ec862c, gold #eeb42c, lemon #f6da5c, olive #7a7e3a, green #589642, teal #186e7c, turquoise #34a4b2, "
    "sky #5c98ce, cobalt #2c54a8"
)
_CODES = dict(entry.split() for entry in _COLOURS.split(", "))


@dataclass(frozen=True)
class PartStyle:
    """How one part appears."""

    word: str
    """The adjective it lends to a name."""
    colour: RGB
    form: str
    """Shape or pattern, in the words of bird.py."""
    accent: RGB
    """The colour of the pattern."""


_STYLES = {
    "beak": (
        "Grosbeak orange cone, Jay charcoal dagger, Finch pink stub, Thrush #c4a05c thin, Kingfisher black spear, "
        "Robin #787068 thin, Lorikeet scarlet hook, Sicklebill #968070 sickle"
    ),
    "eye": (
        "dark black, white white ring, dark black, cream cream ring, yellow #face28 iris, orange #ec781e ring, "
        "red #ce2824 ring, amber #d0741e iris"
    ),
    "crown": (
        "Crimson crimson pointed, Azure sky swept, Black black, Chestnut chestnut streaked cream, "
        "Teal teal speckled turquoise, Slate slate, Golden gold tuft, Sandy sand fan"
    ),
    "face": (
        "Scarlet scarlet mask, White white line, Golden lemon, Buff buff whisker brown, Rufous rufous cheek white, "
        "Orange orange, Green green line charcoal, Grey grey brow white"
    ),
    "nape": (
        "Crimson crimson, Blue sky, Olive olive, Brown brown, Teal teal, Slate slate, Chestnut chestnut, Sandy sand"
    ),
    "throat": (
        "Black black, White white collar, Yellow lemon, Cream cream speckled brown, White white, Orange orange, "
        "Blue cobalt, Ruby crimson speckled #e86068"
    ),
    "breast": (
        "Scarlet scarlet, Grey grey, Yellow lemon, Spotted cream spots #5c3e2a, Rufous rufous, "
        "Banded orange band charcoal, Green green scales olive, Streaked buff streaks #784e30"
    ),
    "belly": (
        "Rosy #d8766c, White white, Lemon lemon, Spotted white spots brown, Orange orange, Grey grey, "
        "Barred #ced070 bars olive, Barred cream bars charcoal"
    ),
    "back": (
        "Brick #92342e, Blue cobalt, Olive olive streaks #4a4c26, Brown brown, Turquoise turquoise, Slate slate, "
        "Green #3e7a3e scales #78ac56, Sandy sand bars"
    ),
    "wing": (
        "Crimson #80282c, Blue #3a6abe bars white, Black black bars lemon, Brown #7e5c40 edged buff, "
        "Teal teal dots #96e0e2, Grey #546070 bar white, Green #488a48 patch cobalt, Pied charcoal ladder white"
    ),
    "tail": (
        "Long #8c222c long, Blue cobalt banded white, Fork black fork, Brown #80583a square, Short teal short, "
        "White charcoal tipped white, Wedge #408054 wedge cobalt, Rufous rufous fan"
    ),
    "legs": (
        "Brown #845c48, Black #343236, Pink #e29682, Pink #e29682, Red #d63c2c, Brown #845c48, Grey #88929c, "
        "Yellow #ecb830"
    ),
}
"""For each part, by theme: word, colour (a name or #rrggbb), form (else plain) and accent (else black)."""


def _colour(text: str) -> RGB:
    red, green, blue = bytes.fromhex(_CODES.get(text, text).removeprefix("#"))
    return red, green, blue


def _style(text: str) -> PartStyle:
    given = text.split()
    word, colour, form, accent = given + ["plain", "black"][len(given) - 2 :]
    return PartStyle(word, _colour(colour), form, _colour(accent))


STYLES = {part: tuple(map(_style, row.split(", "))) for part, row in _STYLES.items()}

_SWAPPED = 0.45  # chance that a part is taken from any theme instead of the class's own
_LEAST_DIFFERENCE = 4  # parts in which any two classes differ
_THEME_STREAM, _CLASS_STREAM = 1, 2  # random streams; dataset.py has those of the images

_NAMED_AFTER = {part: f"{part}ed" for part in ("crown", "breast", "back", "throat", "tail", "wing")}
_NAMED_AFTER |= {"belly": "bellied", "nape": "naped", "face": "faced", "legs": "legged"}


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
    words = [f"{styles[part].word}-{suffix}" for part, suffix in _NAMED_AFTER.items()]
    for length in (1, 2, 3):
        for chosen in combinations(words, length):
            yield " ".join((*chosen, styles["beak"].word))
