"""Numbers as functions of sums over rows (images, or classes in scope projection).

Every number of the table is some function of columns summed over rows. With the rows weighted by ones it is the number
itself, by how often a resample drew them the bootstrap, by the membership of a class the number of that class: one
matrix product each, and memory stays at a few numbers a row.

95 % intervals: what the numbers would have been on other images of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.metrics.functional.coverage import harmonic_mean
from dapl.metrics.functional.diversity import gini, mean_over_parts


@dataclass(frozen=True)
class Statistic:
    name: str
    columns: Tensor
    """float64 n×F."""
    finish: Callable[[Tensor], Tensor]
    """Sums …×F → …; NaN where no row has a value."""
    highest: float = 1.0
    lowest: float = 0.0
    """No value lies beyond these two."""
    biased: bool = False
    """Resamples give larger or smaller values on the whole, as of anything that is not a mean."""

    def values(self, weights: Tensor) -> Tensor:
        """Under R weightings of the rows (float64 R×n): R numbers."""
        return self.finish(weights @ self.columns)


@dataclass(frozen=True)
class ClassStatistic:
    """A mean over prototypes, each of which has its value from the rows of its own class."""

    name: str
    columns: Tensor
    """n×F, of any dtype: turned into float64 a class at a time."""
    labels: Tensor
    """long n."""
    classes: int
    finish: Callable[[Tensor, int], Tensor]
    """(sums R×F over the rows of a class, the class) → R×M, NaN for a prototype without a value."""
    highest: float = 1.0
    lowest: float = 0.0
    biased: bool = True

    def values(self, weights: Tensor) -> Tensor:
        """Under R weightings of the rows (float64 R×n): R numbers."""
        found = []
        for label in range(self.classes):
            rows = (self.labels == label).nonzero().flatten()
            if len(rows):
                found.append(self.finish(weights[:, rows] @ self.columns[rows].double(), label))
        return torch.cat(found, dim=1).double().nanmean(1)


AnyStatistic = Statistic | ClassStatistic


def mean(name: str, values: Tensor, highest: float = 1.0, lowest: float = 0.0) -> Statistic:
    """Of the rows (n) that have a value."""
    has_value = ~values.isnan()
    columns = torch.stack((values.nan_to_num(0.0), has_value), dim=1).double()
    return Statistic(name, columns, lambda sums: sums[..., 0] / sums[..., 1], highest, lowest)


def balanced_accuracy(right: Tensor, labels: Tensor, classes: int) -> Statistic:
    """The mean accuracy of the classes that occur. right, labels: n."""
    member = torch.nn.functional.one_hot(labels, classes).double()

    def finish(sums: Tensor) -> Tensor:
        hits, numbers = sums.split(classes, dim=-1)
        return (hits / numbers).nanmean(-1)

    return Statistic("balanced_accuracy", torch.cat((member * right.double().unsqueeze(1), member), dim=1), finish)


def calibration_error(right: Tensor, confidence: Tensor, bins: int) -> Statistic:
    """ECE: Σ_b (n_b / n) · |accuracy_b − mean confidence_b| over equal bins (Guo et al., 2017). Both n."""
    index = (confidence.double() * bins).ceil().long().sub_(1).clamp_(0, bins - 1)  # bins (0, 1/b], (1/b, 2/b], …
    member = torch.nn.functional.one_hot(index, bins).double()
    gap = member * (right.double() - confidence.double()).unsqueeze(1)

    def finish(sums: Tensor) -> Tensor:
        gaps, numbers = sums.split(bins, dim=-1)
        return gaps.abs().sum(-1) / numbers.sum(-1)

    return Statistic("ece", torch.cat((gap, member), dim=1), finish, biased=True)


def coverage_of_rows(hit: Tensor, kept: Tensor, parts_hit: Tensor, visible: Tensor) -> dict[str, Tensor]:
    """Coverage, precision and recall from counts of any shape; NaN where no part is visible."""
    precision = (hit / kept.clamp(min=1)).where(visible > 0, torch.nan)
    recall = parts_hit / visible  # 0/0 is NaN
    return {"coverage": harmonic_mean(precision, recall), "precision": precision, "recall": recall}


def diversity_of_rows(on_part: Tensor, iou_on_part: Tensor, visible: Tensor) -> dict[str, Tensor]:
    """Diversity, redundancy and imbalance of n rows from counts by part, all n×K; NaN where no part is visible."""
    redundancy = mean_over_parts(iou_on_part, on_part * (on_part - 1) / 2).where(visible.any(1), torch.nan)
    imbalance = gini(on_part, visible)
    return {"diversity": 1 - (redundancy + imbalance) / 2, "redundancy": redundancy, "imbalance": imbalance}


def pooled_coverage(hit: Tensor, kept: Tensor, parts_hit: Tensor, visible: Tensor) -> list[Statistic]:
    """Scope dataset: precision over all (image, prototype), recall over all (image, visible part). All n."""
    kept = kept * (visible > 0)  # prototypes of an image without parts had nothing to hit
    columns = torch.stack((hit, kept, parts_hit, visible), dim=1).double()
    return [
        Statistic(name, columns, lambda sums, name=name: coverage_of_rows(*sums.unbind(-1))[name])  # type: ignore[misc]
        for name in ("coverage", "precision", "recall")
    ]


def pooled_diversity(on_part: Tensor, iou_on_part: Tensor, visible: Tensor) -> list[Statistic]:
    """Scope dataset: IoU over all the pairs of a part, Gini of the mean number of prototypes where it is visible."""
    parts = on_part.shape[1]
    pairs = on_part * (on_part - 1) / 2
    columns = torch.cat((on_part, iou_on_part, pairs, visible), dim=1).double()

    def terms(sums: Tensor) -> dict[str, Tensor]:
        number, ious, pairs, seen = sums.split(parts, dim=-1)
        redundancy = mean_over_parts(ious, pairs).where((seen > 0).any(-1), torch.nan)
        imbalance = gini(number / seen.clamp(min=1), seen > 0)
        return {"diversity": 1 - (redundancy + imbalance) / 2, "redundancy": redundancy, "imbalance": imbalance}

    return [
        Statistic(name, columns, lambda sums, name=name: terms(sums)[name], biased=True)  # type: ignore[misc]
        for name in ("diversity", "redundancy", "imbalance")
    ]


def values(statistics: Sequence[AnyStatistic], weights: Tensor) -> dict[str, Tensor]:
    """Each statistic under R weightings of the rows (float64 R×n): R numbers."""
    return {statistic.name: statistic.values(weights) for statistic in statistics}


_WEIGHTS_AT_ONCE = 2**21
"""16 MB of float64, whatever the number of rows and resamples."""
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


@dataclass(frozen=True)
class Number:
    """A value and its 95 % interval, NaN where it has none: nothing could be measured, or no image decides it."""

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
