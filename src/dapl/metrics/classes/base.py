"""What the metrics share: the mean over images, kept as sums and counts.

What the companions share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from dapl.common.errors import DaplError

Scope = Literal["image", "dataset", "projection"]


class ImageMean(Metric):
    """A mean over images of one or more numbers an image; images whose numbers are NaN are skipped and counted."""

    full_state_update = False
    is_differentiable = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0
    numbers: ClassVar[int] = 1

    sums: Tensor
    images: Tensor
    skipped: Tensor

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if scope not in get_args(Scope):
            raise DaplError(f"scope must be one of {', '.join(get_args(Scope))}, but is {scope!r}.")
        self.scope = scope
        self.add_state("sums", torch.zeros(self.numbers, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("images", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("skipped", torch.tensor(0), dist_reduce_fx="sum")

    def _add(self, *values: Tensor) -> None:
        """Add the numbers (…) of the images; those that are NaN in the first have none."""
        table = torch.stack(values, dim=-1).reshape(-1, self.numbers).to(self.sums.device).double()
        has_value = ~table[:, 0].isnan()
        self.sums = self.sums + table[has_value].sum(0)
        self.images = self.images + has_value.sum()
        self.skipped = self.skipped + (~has_value).sum()

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Plot the value, or a sequence of values over time; returns matplotlib's figure and axes."""
        return self._plot(val, ax)


def check_number(got: int, wanted: int, what: str) -> None:
    if got != wanted:
        raise DaplError(f"this metric was made for {wanted} {what}, but the batch has {got}.")


class Companion(Metric):
    """Sums and counts by name; a number, its direction and bounds, a plot."""

    full_state_update = False
    is_differentiable = False
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0

    def _count(self, **counts: Tensor) -> None:
        """Add to states; done last in an update, so that a refused batch leaves no trace."""
        for name, count in counts.items():
            state = getattr(self, name)
            setattr(self, name, state + count.to(device=state.device, dtype=state.dtype))

    def _zeros(self, *names: str, shape: Sequence[int] = (), dtype: torch.dtype = torch.long) -> None:
        for name in names:
            self.add_state(name, torch.zeros(tuple(shape), dtype=dtype), dist_reduce_fx="sum")

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value, or a sequence of values over time; returns matplotlib's figure and axes."""
        return self._plot(val, ax)
