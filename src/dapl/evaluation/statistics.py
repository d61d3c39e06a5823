"""Numbers as functions of sums over rows (images, or classes in scope projection), and their 95 % intervals.

Every number of the table is some function of columns summed over rows. With the rows weighted by ones it is the number
itself, by how often a resample drew them the bootstrap, by the membership of a class the number of that class: one
matrix product each, and memory stays at a few numbers per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.metrics.registry import NUMBERS


@dataclass(frozen=True)
class Statistic:
    """One or more numbers that are functions of the same sums."""

    columns: Tensor
    """n×F, of any dtype."""
    finish: Callable[[Tensor], Mapping[str, Tensor]]
    """float64 sums R×F → R×… for each number; NaN where no row has a value."""
    biased: bool = False
    """Whether resamples give larger or smaller values on the whole, as for anything that is not a mean."""
    with_interval: bool = True

    def values(self, weights: Tensor) -> Mapping[str, Tensor]:
        """The numbers under R weightings of the rows (float64 R×n)."""
        return self.finish(weights @ self.columns.double())


@dataclass(frozen=True)
class ClassStatistic:
    """A mean over prototypes, each of which has its value from the rows of its own class."""

    name: str
    columns: Tensor
    """n×F, of any dtype: turned into float64 one class at a time."""
    labels: Tensor
    """long n."""
    classes: int
    finish: Callable[[Tensor, int], Tensor]
    """(sums R×F over the rows of a class, the class) → R×M, NaN for a prototype without a value."""
    biased: bool = True
    with_interval: bool = True
    """Whether it is worth its resamples: a null that is itself a mean over random draws is not."""

    def values(self, weights: Tensor) -> Mapping[str, Tensor]:
        """The number under R weightings of the rows (float64 R×n)."""
        found = []
        for label in range(self.classes):
            rows = (self.labels == label).nonzero().flatten()
            if len(rows):
                found.append(self.finish(weights[:, rows] @ self.columns[rows].double(), label))
        return {self.name: torch.cat(found, dim=1).double().nanmean(1)}


AnyStatistic = Statistic | ClassStatistic


def mean(**rows: Tensor) -> Statistic:
    """For each name the mean over the rows (n) that have a value."""
    pairs = [pair for values in rows.values() for pair in (values.nan_to_num(0.0), ~values.isnan())]

    def finish(sums: Tensor) -> dict[str, Tensor]:
        totals, numbers = sums[..., 0::2], sums[..., 1::2]
        return dict(zip(rows, (totals / numbers).unbind(-1), strict=True))

    return Statistic(torch.stack([column.double() for column in pairs], dim=1), finish)


def ratio(name: str, counts: Tensor) -> Statistic:
    """The first of the columns over the second."""
    return Statistic(counts, lambda sums: {name: sums[..., 0] / sums[..., 1]})


def balanced_accuracy(right: Tensor, labels: Tensor, classes: int) -> Statistic:
    """The mean accuracy of the classes that occur. right, labels: n."""
    member = torch.nn.functional.one_hot(labels, classes).double()

    def finish(sums: Tensor) -> dict[str, Tensor]:
        hits, numbers = sums.split(classes, dim=-1)
        return {"balanced_accuracy": (hits / numbers).nanmean(-1)}

    return Statistic(torch.cat((member * right.double().unsqueeze(1), member), dim=1), finish)


def calibration_error(right: Tensor, confidence: Tensor, bins: int) -> Statistic:
    """ECE: Σ_b (n_b / n) · |accuracy_b − mean confidence_b| over equal bins (Guo et al., 2017). Both n."""
    index = (confidence.double() * bins).ceil().long().sub_(1).clamp_(0, bins - 1)  # bins (0, 1/b], (1/b, 2/b], …
    member = torch.nn.functional.one_hot(index, bins).double()
    gap = member * (right.double() - confidence.double()).unsqueeze(1)

    def finish(sums: Tensor) -> dict[str, Tensor]:
        gaps, numbers = sums.split(bins, dim=-1)
        return {"ece": gaps.abs().sum(-1) / numbers.sum(-1)}

    return Statistic(torch.cat((gap, member), dim=1), finish, biased=True)


_WEIGHTS_AT_ONCE = 2**19
"""4 MB of float64, and as much again for each step on the way to them, whatever the number of rows and resamples."""
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


@dataclass(frozen=True)
class Number:
    """A value and its 95 % interval, NaN where it has none: nothing could be measured, or no image decides it.

    >>> Number(0.589, 0.57, 0.61)
    Number(value=0.589, low=0.57, high=0.61)
    """

    value: float
    low: float = math.nan
    high: float = math.nan


def values(statistics: Sequence[AnyStatistic], weights: Tensor) -> dict[str, Tensor]:
    """All numbers under R weightings of the rows (float64 R×n): R×… each."""
    return {name: value for statistic in statistics for name, value in statistic.values(weights).items()}


def with_intervals(statistics: Sequence[AnyStatistic], resamples: int, seed: int) -> dict[str, Number]:
    """Numbers of any rows; statistics of equally many rows are resampled together."""
    found: dict[str, Number] = {}
    for rows in dict.fromkeys(len(statistic.columns) for statistic in statistics):
        same = [statistic for statistic in statistics if len(statistic.columns) == rows]
        resampled = [statistic for statistic in same if statistic.with_interval]
        for name, ends in intervals(resampled, resamples, seed).items() if resampled else ():
            found[name] = Number(*(end.item() for end in ends))
        for statistic in same:
            if not statistic.with_interval:
                value = statistic.values(torch.ones(1, rows, dtype=torch.float64))
                found |= {name: Number(one[0].item()) for name, one in value.items()}
    return found


def intervals(
    statistics: Sequence[AnyStatistic], resamples: int, seed: int
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Value, low and high end, each …, of statistics of the same n rows by the percentile bootstrap over rows.

    The interval of a biased statistic is moved by the bias, the mean of the resamples − the value: the calibration
    error, larger in nearly every resample, would else lie outside its own interval.
    """
    rows = len(statistics[0].columns)
    drawn = [values(statistics, weights) for weights in resample_weights(rows, resamples, seed)]
    found = {}
    for statistic in statistics:
        for name, value in statistic.values(torch.ones(1, rows, dtype=torch.float64)).items():
            samples = torch.cat([chunk[name] for chunk in drawn])
            ends = samples.nanquantile(_ENDS.to(samples), dim=0)
            if statistic.biased:
                ends = ends - (samples.nanmean(0) - value[0])
            low, high = ends.clamp(*(NUMBERS[name].bounds if name in NUMBERS else (0.0, 1.0)))
            found[name] = (value[0], low, high)
    return found


def resample_weights(rows: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """How often each resample (drawn with replacement) holds each row: float64 r×n, chunk by chunk."""
    generator = torch.Generator().manual_seed(seed)
    step = max(1, _WEIGHTS_AT_ONCE // rows)
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        drawn = torch.randint(rows, (count, rows), generator=generator)
        drawn += torch.arange(count).unsqueeze(1) * rows
        yield torch.bincount(drawn.flatten(), minlength=count * rows).view(count, rows).double()
