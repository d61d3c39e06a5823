"""What a campaign found, as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

FAULTS = ("traceback", "hang", "exit code", "no sentence", "half-written", "lost", "wrote outside", "memory")
"""What may go wrong, in the order of the table."""


@dataclass
class Tally:
    """The cases of one kind, and what went wrong in them."""

    name: str
    cases: int = 0
    refused: int = 0
    """Ended with a sentence and exit code 2."""
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0
    """Of processor time, this process and all that it started."""

    def add(self, found: list[tuple[str, str]], refused: bool = False, cases: int = 1) -> None:
        """``found``: the kind of each fault, and a line that says what happened."""
        self.cases += cases
        self.refused += refused
        for kind, text in found:
            self.faults[kind] += 1
            self.examples.append(f"{self.name}: {kind}: {text}")


def table(tallies: list[Tally]) -> str:
    """Markdown, one row per kind of case.

    >>> print(table([Tally("images", 10, 4, seconds=2.2)]))
    | what was tried | cases | refused in a sentence | tracebacks | hangs | other faults | CPU seconds | |
    |---|---|---|---|---|---|---|---|
    | images | 10 | 4 | 0 | 0 | 0 | 2 |  |
    | **all** | **10** | **4** | **0** | **0** | **0** | **2** | |
    """
    lines = [
        "| what was tried | cases | refused in a sentence | tracebacks | hangs | other faults | CPU seconds | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    sums = [0.0] * 6
    for one in tallies:
        others = sum(count for kind, count in one.faults.items() if kind not in ("traceback", "hang"))
        numbers = [one.cases, one.refused, one.faults["traceback"], one.faults["hang"], others, one.seconds]
        sums = [total + number for total, number in zip(sums, numbers, strict=True)]
        lines.append(f"| {one.name} | {' | '.join(f'{number:,.0f}' for number in numbers)} | {one.note} |")
    lines.append(f"| **all** | {' | '.join(f'**{number:,.0f}**' for number in sums)} | |")
    return "\n".join(lines)
