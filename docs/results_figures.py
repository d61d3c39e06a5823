"""A number over seeds, a row of them, and the words that a page of results may say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapl.common.tables import Row, Spread
from dapl.metrics.registry import NUMBERS


class ResultsError(Exception):
    """A page asks for what was not measured, or says what does not hold."""


def enumerated(words: Sequence[str]) -> str:
    """
    >>> enumerated(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def seed_text(seeds: Sequence[int]) -> str:
    """
    >>> seed_text([0, 1]), seed_text([3])
    ('seeds 0 and 1', 'seed 3')
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {enumerated([str(seed) for seed in seeds])}"


@dataclass(frozen=True)
class Figure:
    """A number over seeds; as text its mean, ``spread`` with the deviation, ``interval`` with that of its runs."""

    name: str
    values: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...] = ()
    """95 % bootstrap intervals over images, one per run; empty where none were kept."""

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float | None:
        """The deviation of a sample (n − 1)."""
        if len(self.values) < 2:
            return None
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1))

    @property
    def chance(self) -> float:
        """Half the width of a run's 95 % interval, the mean over runs: what the choice of test images alone does."""
        if not self.intervals:
            raise ResultsError(f"{self.name}: no interval was kept")
        return math.fsum(high - low for low, high in self.intervals) / (2 * len(self.intervals))

    def __str__(self) -> str:
        return f"{self.text(self.mean)}{self.unit}"

    @property
    def spread(self) -> str:
        """``89.5 ± 0.5 %``; the mean alone of a single run."""
        deviation = "" if self.deviation is None else f" ± {self.text(self.deviation)}"
        return f"{self.text(self.mean)}{deviation}{self.unit}"

    @property
    def interval(self) -> str:
        """``89.3 % [86.7, 91.9]`` of a single run; of several the outermost ends."""
        if not self.intervals:
            return str(self)
        low, high = min(low for low, _ in self.intervals), max(high for _, high in self.intervals)
        return f"{self} [{self.text(low)}, {self.text(high)}]"

    @property
    def listed(self) -> str:
        """The value of each seed, ``0.877, 0.931 and 0.950``."""
        return f"{enumerated([self.text(value) for value in self.values])}{self.unit}"

    @property
    def range(self) -> str:
        """From the lowest seed to the highest, ``0.877 to 0.950``."""
        return f"{self.text(min(self.values))} to {self.text(max(self.values))}{self.unit}"

    @property
    def percentage(self) -> str:
        """A share in percent, ``57 %``."""
        return f"{100 * self.mean:.0f} %"

    @property
    def percent(self) -> bool:
        return self.name in NUMBERS and NUMBERS[self.name].percent

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""

    def text(self, value: float) -> str:
        if self.name == "prototypes_kept":
            return f"{value:.0f}"
        return f"{100 * value:.1f}" if self.percent else f"{value:.3f}"


@dataclass(frozen=True)
class Difference:
    """How far one row is from another, and whether more than chance: the page says words that the numbers carry."""

    value: float
    images: float
    """What the choice of test images may do: √(a² + b²) of half the rows' intervals, as if they were independent."""
    seeds: float | None
    """What the choice of seeds may do: half the 95 % interval of the mean paired difference; None of one seed."""
    percent: bool

    @classmethod
    def of(cls, one: Figure, other: Figure) -> Difference:
        """On the seeds that both have: the first ones of the longer row."""
        pairs = Figure(one.name, tuple(a - b for a, b in zip(one.values, other.values, strict=False)))
        count = len(pairs.values)
        seeds = None if pairs.deviation is None else STUDENT[count - 1] * pairs.deviation / math.sqrt(count)
        return cls(pairs.mean, math.hypot(one.chance, other.chance), seeds, one.percent)

    @property
    def chance(self) -> float:
        return math.hypot(self.images, self.seeds or 0.0)

    @property
    def beyond(self) -> bool:
        """Whether it is more than chance."""
        return abs(self.value) > self.chance

    @property
    def side(self) -> str:
        return "above" if self.value > 0 else "below"

    def __str__(self) -> str:
        """``1.8 points above``, ``0.020 below``."""
        return f"{self._text(abs(self.value))}{' points' if self.percent else ''} {self.side}"

    def verdict(self, what: str) -> str:
        """``1.8 points above the black box (± 5.2: chance may do it)``."""
        may = "more than chance" if self.beyond else "chance may do it"
        return f"{self} {what} (± {self._text(self.chance)}: {may})"

    @property
    def signed(self) -> str:
        """``+1.8 ± 5.2`` for a table."""
        sign = "+" if self.value > 0 else "−"
        return f"{sign}{self._text(abs(self.value))} ± {self._text(self.chance)}"

    def agrees(self, side: str) -> str:
        """Whether it is on the side that was claimed: ``yes``, ``no``, or ``not decided`` where chance may do it."""
        if not self.beyond:
            return "not decided"
        return "yes" if self.side == side else "no"

    def _text(self, value: float) -> str:
        return f"{100 * value:.1f}" if self.percent else f"{value:.3f}"


STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % quantile of Student's t by degrees of freedom."""


class System:
    """One row: ``row.coverage`` is a `Figure`, ``row.run(0).coverage`` that of one seed."""

    def __init__(self, values: Row, runs: Sequence[Mapping[str, Any]], source: str) -> None:
        self.values, self.runs, self.source = values, runs, source

    def __getattr__(self, name: str) -> Figure:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self.values.get(name)
        if not isinstance(found, Spread):
            raise ResultsError(f"{self.source}: {self.values.get('name', 'the row')} has no {name}")
        numbers = [run["numbers"].get(name) or {} for run in self.runs]
        intervals = tuple((number["low"], number["high"]) for number in numbers if number.get("low") is not None)
        return Figure(name, found.values, intervals)

    def __contains__(self, name: str) -> bool:
        return isinstance(self.values.get(name), Spread)

    def run(self, seed: int) -> System:
        """The same of one seed."""
        chosen = [run for run in self.runs if run["seed"] == seed]
        if not chosen:
            raise ResultsError(f"{self.source}: {self.values.get('name')} has no seed {seed}")
        numbers = {name: number["value"] for name, number in chosen[0]["numbers"].items()}
        values = {name: Spread(value, None, (value,)) for name, value in numbers.items() if value is not None}
        return System({"name": f"{self.values['name']}, seed {seed}", **values}, chosen, self.source)
