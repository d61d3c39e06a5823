"""What the companions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


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
