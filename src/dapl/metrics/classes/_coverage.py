"""Coverage and its two terms over a data set."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.classes._mean import ImageMean, Scope
from dapl.metrics.functional._checks import counted
from dapl.metrics.functional._coverage import harmonic_mean


class Coverage(ImageMean):
    r"""Coverage over a data set: do the prototypes lie on parts, and on all of them?

    .. math:: \text{Coverage} = \frac{2 \cdot \text{Precision} \cdot \text{Recall}}{\text{Precision} + \text{Recall}}

    Scope ``dataset`` takes Precision over all (image, prototype) and Recall over all (image, visible part).
    `PartPrecision` and `PartRecall` are its two terms; in a ``MetricCollection`` the three share one state.

    Args:
        scope: ``image``, ``dataset`` or ``projection``, see `dapl.metrics.classes`.
        kwargs: of ``torchmetrics.Metric``.

    Shapes of ``update``: assigned bool (…, P, K), visible bool (…, K), kept bool (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = Coverage()
        >>> metric.update(torch.tensor([[[True, False], [True, False]], [[True, False], [False, True]]]))
        >>> metric.compute()
        tensor(0.8333)
    """

    higher_is_better = True
    numbers: ClassVar[int] = 3

    counts: Tensor

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        self.add_state("counts", torch.zeros(4, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, P, K)."""
        precision, recall = F.precision(assigned, visible, kept), F.recall(assigned, visible, kept)
        self._add(harmonic_mean(precision, recall), precision, recall)
        assigned, visible, kept = counted(assigned, visible, kept)
        kept = kept & visible.any(-1, keepdim=True)  # prototypes of an image without parts had nothing to hit
        counts = (assigned.any(-1).sum(), kept.sum(), assigned.any(-2).sum(), visible.sum())
        self.counts = self.counts + torch.stack(counts).to(self.counts.device)

    def compute(self) -> Tensor:
        return self._terms()[0]

    def _terms(self) -> Tensor:
        """Coverage, Precision, Recall."""
        if self.scope != "dataset":
            return (self.sums / self.images).float()
        prototypes_hit, prototypes, parts_hit, parts = self.counts.double()
        precision, recall = prototypes_hit / prototypes.clamp(min=1), parts_hit / parts  # NaN if no part was visible
        precision = precision.where(parts > 0, torch.nan)
        return torch.stack((harmonic_mean(precision, recall), precision, recall)).float()


class PartPrecision(Coverage):
    """The precision in `Coverage`: the share of prototypes that lie on a part. Same arguments.

    Example:
        >>> import torch
        >>> metric = PartPrecision()
        >>> metric.update(torch.tensor([[[True, False], [False, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    def compute(self) -> Tensor:
        return self._terms()[1]


class PartRecall(Coverage):
    """The recall in `Coverage`: the share of visible parts that a prototype lies on. Same arguments.

    Example:
        >>> import torch
        >>> metric = PartRecall()
        >>> metric.update(torch.tensor([[[True, False], [True, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    def compute(self) -> Tensor:
        return self._terms()[2]
