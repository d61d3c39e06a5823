"""Parts × heads: how often the prototype of a head is assigned to a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from dapl.metrics.classes._mean import check_number
from dapl.metrics.functional._checks import counted


class PartAssignment(Metric):
    r"""How often head h is assigned to part k, of the images in which the part is visible and the prototype kept.

    .. math:: S_{kh} = \frac{\#\{x : p_h \text{ assigned to part}_k\}}{\#\{x : p_h \text{ kept, part}_k \text{ seen}\}}

    NaN where that never happened. The counts themselves are in ``assigned`` and ``seen``, both (K, N).

    Args:
        num_parts: K.
        num_heads: N, the number of prototypes a class.
        parts: the names of the parts, for the plot.
        kwargs: of ``torchmetrics.Metric``.

    Shapes of ``update``: assigned bool (…, N, K), visible bool (…, K), kept bool (…, N). ``compute``: (K, N).

    Example:
        >>> import torch
        >>> metric = PartAssignment(num_parts=2, num_heads=2)
        >>> metric.update(torch.tensor([[[1, 0], [1, 0]], [[1, 0], [0, 1]]]).bool())
        >>> metric.compute()
        tensor([[1.0000, 0.5000],
                [0.0000, 0.5000]])
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = None
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    assigned: Tensor
    seen: Tensor

    def __init__(self, num_parts: int, num_heads: int, parts: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if parts is not None:
            check_number(len(parts), num_parts, "parts")
        self.num_parts, self.num_heads = num_parts, num_heads
        self.parts = list(parts) if parts is not None else [str(k) for k in range(num_parts)]
        for state in ("assigned", "seen"):
            self.add_state(state, torch.zeros(num_parts, num_heads, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, N, K)."""
        assigned, visible, kept = counted(assigned, visible, kept)
        check_number(assigned.shape[-1], self.num_parts, "parts")
        check_number(assigned.shape[-2], self.num_heads, "heads")
        self.assigned = self.assigned + self._by_part(assigned)
        self.seen = self.seen + self._by_part(kept.unsqueeze(-1) & visible.unsqueeze(-2))

    def _by_part(self, flags: Tensor) -> Tensor:
        """Number of images, (K, N), in which a flag of (…, N, K) is up."""
        return flags.reshape(-1, self.num_heads, self.num_parts).sum(0).mT.to(self.seen.device)

    def compute(self) -> Tensor:
        return (self.assigned.double() / self.seen).float()

    def plot(self, val: Tensor | None = None, ax: Any = None) -> Any:
        """Parts × heads as a picture of shares; returns matplotlib's figure and axes."""
        import matplotlib.pyplot as plt

        shares = (self.compute() if val is None else val).detach().cpu().numpy()
        if ax is None:
            _, ax = plt.subplots(figsize=(2 + 0.4 * self.num_heads, 1 + 0.3 * self.num_parts), layout="constrained")
        image = ax.imshow(shares, vmin=self.plot_lower_bound, vmax=self.plot_upper_bound, cmap="viridis", aspect="auto")
        ax.set(xlabel="head", xticks=range(self.num_heads), yticks=range(self.num_parts), yticklabels=self.parts)
        ax.figure.colorbar(image, ax=ax, label="share of images")
        return ax.figure, ax
