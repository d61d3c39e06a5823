"""What the torchmetrics classes share: direction and bounds from the registry, states that are sums and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from dapl.common.errors import DaplError
from dapl.metrics.registry import NUMBERS

Scope = Literal["image", "dataset", "projection"]


class RegisteredMetric(Metric):
    """A number of `dapl.metrics.registry`, which knows its direction and its bounds."""

    full_state_update = False
    is_differentiable = False
    number: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "number" in vars(cls):
            entry = NUMBERS[cls.number]
            cls.higher_is_better = None if entry.better is None else entry.better == "higher"
            low, high = (bound if math.isfinite(bound) else None for bound in entry.bounds)
            cls.plot_lower_bound, cls.plot_upper_bound = low, high

    def _zeros(self, *names: str, shape: Sequence[int] = (), dtype: torch.dtype = torch.long) -> None:
        for name in names:
            self.add_state(name, torch.zeros(tuple(shape), dtype=dtype), dist_reduce_fx="sum")

    def _count(self, **counts: Tensor) -> None:
        """Add to states; done last in an update, so that a refused batch leaves no trace."""
        for name, count in counts.items():
            state = getattr(self, name)
            setattr(self, name, state + count.to(device=state.device, dtype=state.dtype))

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value, or a sequence of values over time; returns matplotlib's figure and axes."""
        return self._plot(val, ax)


class Summed(RegisteredMetric):
    """A number made of a few sums: the first over the second, where a class does not say otherwise."""

    state: ClassVar[str]
    """Name of the sums, one per class: a ``MetricCollection`` may take two metrics with the same names for one."""
    terms: ClassVar[int] = 2

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._zeros(self.state, shape=(self.terms,), dtype=torch.float64)

    @property
    def sums(self) -> Tensor:
        return getattr(self, self.state)

    def _add(self, counts: Tensor) -> None:
        self._count(**{self.state: counts.reshape(-1, self.terms).sum(0)})

    def compute(self) -> Any:
        return (self.sums[0] / self.sums[1]).float()


class ImageMean(RegisteredMetric):
    """A mean over images of one or more terms; images whose terms are NaN are skipped and counted."""

    terms: ClassVar[int] = 1
    term: ClassVar[int] = 0
    """Which of the terms ``compute`` gives."""
    sums: Tensor
    images: Tensor
    skipped: Tensor

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if scope not in get_args(Scope):
            raise DaplError(f"scope must be one of {', '.join(get_args(Scope))}, but is {scope!r}.")
        self.scope = scope
        self._zeros("sums", shape=(self.terms,), dtype=torch.float64)
        self._zeros("images", "skipped")

    def _add(self, *values: Tensor) -> None:
        """Add the terms (…) of the images; those that are NaN in the first have none."""
        table = torch.stack(values, dim=-1).reshape(-1, self.terms).double()
        has_value = ~table[:, 0].isnan()
        self._count(sums=table[has_value].sum(0), images=has_value.sum(), skipped=(~has_value).sum())

    def compute(self) -> Tensor:
        found = self._pooled() if self.scope == "dataset" else self.sums / self.images
        return found[self.term].float()

    def _pooled(self) -> Tensor:
        """The terms in scope ``dataset``: from counts of all images together."""
        raise NotImplementedError


class CountedMean(ImageMean):
    """Terms made of a few counts: those of every image averaged, or in scope ``dataset`` those of all counts added up.

    The first count over the second, where a class does not say otherwise.
    """

    state: ClassVar[str]
    """Name of the counts, one per class, as in `Summed`."""
    columns: ClassVar[int] = 2

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        self._zeros(self.state, shape=(self.columns,), dtype=torch.float64)

    def _terms(self, counts: Tensor) -> Sequence[Tensor]:
        return [counts[..., 0] / counts[..., 1]]

    def _add_counts(self, counts: Tensor) -> None:
        """Add counts (…, columns) of images."""
        self._add(*self._terms(counts))
        self._count(**{self.state: counts.reshape(-1, self.columns).sum(0)})

    def _pooled(self) -> Tensor:
        return torch.stack(list(self._terms(getattr(self, self.state))))


def check_number(got: int, wanted: int, what: str) -> None:
    if got != wanted:
        raise DaplError(f"this metric was made for {wanted} {what}, but the batch has {got}.")
