"""95 % intervals: what the numbers would have been on other pictures of the same kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.evaluation.statistics import AnyStatistic, values

_WEIGHTS_AT_ONCE = 2**21
"""16 MB of float64, whatever the number of rows and resamples."""
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


@dataclass(frozen=True)
class Number:
    """A value and its 95 % interval, NaN where it has none: nothing could be measured, or no picture decides it."""

    value: float
    low: float = math.nan
    high: float = math.nan


def with_intervals(statistics: Sequence[AnyStatistic], resamples: int, seed: int) -> dict[str, Number]:
    """Each statistic of the same n rows, with the interval of the percentile bootstrap over rows.

    That of a biased statistic is moved by the bias, the mean of the resamples − the value: the calibration error,
    larger in nearly every resample, would else lie outside its own interval.
    """
    if not statistics:
        return {}
    rows = len(statistics[0].columns)
    whole = values(statistics, torch.ones(1, rows, dtype=torch.float64))
    drawn = [values(statistics, weights) for weights in resample_weights(rows, resamples, seed)]
    numbers = {}
    for statistic in statistics:
        value = whole[statistic.name][0]
        samples = torch.cat([chunk[statistic.name] for chunk in drawn])
        ends = samples.nanquantile(_ENDS) - (samples.nanmean() - value if statistic.biased else 0.0)
        low, high = ends.clamp(statistic.lowest, statistic.highest).tolist()
        numbers[statistic.name] = Number(value.item(), low, high)
    return numbers


def resample_weights(rows: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """How often each resample (drawn with replacement) holds each row: float64 r×n, chunk by chunk."""
    generator = torch.Generator().manual_seed(seed)
    step = max(1, _WEIGHTS_AT_ONCE // rows)
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        drawn = torch.randint(rows, (count, rows), generator=generator)
        drawn += torch.arange(count).unsqueeze(1) * rows
        yield torch.bincount(drawn.flatten(), minlength=count * rows).view(count, rows).double()
