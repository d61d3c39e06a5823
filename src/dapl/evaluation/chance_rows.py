"""The rows of chance: what trivial maps got, as an object, JSON and text."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any

from dapl.metrics.registry import NUMBERS, given_by, shown

_HEADING, _COLUMNS = 12, 7
"""Characters of a heading per line, and columns side by side: a table of more goes on below."""


@dataclass(frozen=True)
class Chance:
    """Numbers of trivial maps by the name of the row; ``chance.rows["constant maps"]["coverage"]``.

    >>> Chance(10, {"constant maps": {"coverage": 0.0, "diversity": 0.5}}).numbers()
    ['coverage', 'diversity']
    """

    prototypes: int
    """Per class."""
    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    """What could not be had is left out."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """Under ``tau`` the thresholds that were tried, under the name of a row its Coverage at each."""
    missing: dict[str, str] = field(default_factory=dict)
    """Rows that the data does not allow, with the reason."""

    def numbers(self, metrics: Collection[str] | None = None) -> list[str]:
        """Names of the numbers that some row has, in the order of the tables; only of these metrics."""
        there = {name for row in self.rows.values() for name in row}
        return [name for name in NUMBERS if name in there and (metrics is None or given_by(name).name in metrics)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def chance_table(chance: Chance, own: Mapping[str, float] | None = None, metrics: Iterable[str] | None = None) -> str:
    """One line per row, one column per metric; ``own``, the numbers of the model, stand above.

    >>> rows = {"constant maps": {"coverage": 0.0}, "random discs in the mask": {"coverage": 0.913, "diversity": 0.674}}
    >>> print(chance_table(Chance(10, rows), {"coverage": 0.589}))
    what chance gets on these images (10 prototypes per class, no model)
                              Coverage  Diversity
    this model                   0.589          –
    constant maps                0.000          –
    random discs in the mask     0.913      0.674
    """
    wanted = None if metrics is None else frozenset(metrics)
    names = [name for name in chance.numbers(wanted) if given_by(name).name == name]
    lines = [f"what chance gets on these images ({chance.prototypes} prototypes per class, no model)"]
    if names:
        rows = {"this model": own} if own is not None else {}
        for start in range(0, len(names), _COLUMNS):
            lines += [*([""] if start else []), *_aligned(names[start : start + _COLUMNS], {**rows, **chance.rows})]
    reasons: dict[str, list[str]] = {}
    for row, reason in chance.missing.items():
        reasons.setdefault(reason, []).append(row)
    if not chance.rows and len(reasons) == 1:
        return "\n".join([*lines, f"not measured: {next(iter(reasons))}"])
    return "\n".join([*lines, *(f"left out: {'; '.join(rows)}: {reason}" for reason, rows in reasons.items())])


def chance_sentence(kept: Any) -> str:
    """What stands beside Coverage and Diversity where there is no room for a table; ``kept`` as metrics.json has it.

    >>> chance_sentence({"rows": {"smooth noise in the mask": {"coverage": 0.976, "diversity": 0.738}}})
    'Without any model, on the same images: smooth noise in the mask has Coverage 0.976 and Diversity 0.738.'
    >>> chance_sentence(None)
    ''
    """
    rows = kept.get("rows") if isinstance(kept, Mapping) else None
    said = []
    for name in ("smooth noise in the mask", "random discs in the mask", "random discs in the image"):
        row = rows.get(name) if isinstance(rows, Mapping) else None
        numbers = [row.get(number) for number in ("coverage", "diversity")] if isinstance(row, Mapping) else [None]
        if all(isinstance(number, float) for number in numbers):
            said.append(f"{name} has Coverage {numbers[0]:.3f} and Diversity {numbers[1]:.3f}")
    return f"Without any model, on the same images: {', '.join(said)}." if said else ""


def _aligned(names: list[str], rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    headings = [wrap(NUMBERS[name].heading, _HEADING, break_long_words=False) for name in names]
    height = max(map(len, headings))
    headings = [[""] * (height - len(heading)) + heading for heading in headings]
    cells = {row: [_cell(name, found.get(name)) for name in names] for row, found in rows.items()}
    first = max(map(len, rows))
    widths = [
        max(len(text) for text in (*heading, *(line[place] for line in cells.values())))
        for place, heading in enumerate(headings)
    ]
    lines = [["", *(heading[line] for heading in headings)] for line in range(height)]
    lines += [[row, *line] for row, line in cells.items()]
    return [
        "  ".join((f"{line[0]:<{first}}", *(f"{text:>{width}}" for text, width in zip(line[1:], widths, strict=True))))
        for line in lines
    ]


def _cell(name: str, value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else shown(name, value, 3)
