"""Times as ratios within one run: two ways of doing something take turns, so that a noisy machine hits both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ratio:
    """How long ``what`` takes, as a multiple of ``beside``."""

    what: str
    beside: str
    value: float
    spread: tuple[float, float]
    goal: str

    def row(self) -> str:
        low, high = self.spread
        return f"| {self.what} | {self.beside} | {self.value:.3g} | {low:.3g} … {high:.3g} | {self.goal} |"


def show(ratios: Iterable[Ratio]) -> list[Ratio]:
    """Print the table, each row as soon as it is measured."""
    print("| what | beside | ratio (median) | range | goal |\n|---|---|---|---|---|")
    found = []
    for each in ratios:
        print(each.row(), flush=True)
        found.append(each)
    return found


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many of them compute a pass within it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def ratio(
    what: str, beside: str, goal: str, call: Callable[[], object], other: Callable[[], object], turns: int = 5
) -> Ratio:
    """Median over turns of time(call)/time(other), each turn timing both, after one that is not counted."""
    call()
    other()
    values = []
    for turn in range(turns):
        pair = (call, other) if turn % 2 == 0 else (other, call)
        times = {way: seconds(way) for way in pair}
        values.append(times[call] / times[other])
    return Ratio(what, beside, statistics.median(values), (min(values), max(values)), goal)
