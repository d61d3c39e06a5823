"""Diversity and its two terms over a data set."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from dapl.errors import DaplError
from dapl.metrics import functional as F
from dapl.metrics.classes._mean import ImageMean, Scope, check_number
from dapl.metrics.functional._checks import counted
from dapl.metrics.functional._diversity import gini, mean_over_parts, pair_overlap


class Diversity(ImageMean):
    r"""Diversity over a data set: are the prototypes spatially distinct and spread evenly over the parts?

    .. math:: \text{Diversity} = 1 - \frac{\text{Redundancy} + \text{Imbalance}}{2}

    Scope ``dataset`` takes the mean IoU of a part over its pairs in all images, and the Gini coefficient of the mean
    number of prototypes on a part *where it is visible*: a part that is often hidden is not for that reason uneven.
    `Redundancy` and `Imbalance` are its two terms; in a ``MetricCollection`` the three share one state.

    Args:
        scope: ``image``, ``dataset`` or ``projection``, see `dapl.metrics.classes`.
        num_parts: K, needed by scope ``dataset``, which counts by part.
        kwargs: of ``torchmetrics.Metric``.

    Shapes of ``update``: regions bool (…, P, H, W), assigned bool (…, P, K), visible bool (…, K), kept bool (…, P),
    images integer (…, P), see `dapl.metrics.functional.iou`. ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = Diversity()
        >>> metric.update(torch.eye(2).bool().view(1, 2, 1, 2), torch.eye(2).bool()[None])
        >>> metric.compute()
        tensor(1.)
    """

    higher_is_better = True
    numbers: ClassVar[int] = 3

    iou_sums: Tensor
    part_counts: Tensor

    def __init__(self, scope: Scope = "image", num_parts: int | None = None, **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        if scope == "dataset" and num_parts is None:
            raise DaplError("scope dataset counts by part: give num_parts, the number of parts of the data set.")
        self.num_parts = num_parts
        if num_parts is not None:
            self.add_state("iou_sums", torch.zeros(num_parts, dtype=torch.float64), dist_reduce_fx="sum")
            self.add_state("part_counts", torch.zeros(3, num_parts, dtype=torch.long), dist_reduce_fx="sum")

    def update(
        self,
        regions: Tensor,
        assigned: Tensor,
        visible: Tensor | None = None,
        kept: Tensor | None = None,
        images: Tensor | None = None,
    ) -> None:
        """Add a batch of regions (…, P, H, W) and their assignments (…, P, K)."""
        assigned, visible, kept = counted(assigned, visible, kept)
        if self.num_parts is not None:
            check_number(assigned.shape[-1], self.num_parts, "parts")
        iou_sums, pairs = pair_overlap(regions, assigned, images)
        redundancy, imbalance = mean_over_parts(iou_sums, pairs), F.imbalance(assigned, visible, kept)
        self._add(1 - (redundancy + imbalance) / 2, redundancy, imbalance)
        if self.num_parts is None:
            return
        by_part = (t.reshape(-1, self.num_parts).sum(0) for t in (pairs.long(), assigned.sum(-2), visible))
        self.part_counts = self.part_counts + torch.stack(list(by_part)).to(self.part_counts.device)
        self.iou_sums = self.iou_sums + iou_sums.reshape(-1, self.num_parts).to(self.iou_sums.device).double().sum(0)

    def compute(self) -> Tensor:
        return self._terms()[0]

    def _terms(self) -> Tensor:
        """Diversity, Redundancy, Imbalance."""
        if self.scope != "dataset":
            return (self.sums / self.images).float()
        pairs, assigned, visible = self.part_counts.double()
        redundancy = mean_over_parts(self.iou_sums, pairs)
        imbalance = gini(assigned / visible.clamp(min=1), visible > 0)
        redundancy = redundancy.where(visible.any(), torch.nan)
        return torch.stack((1 - (redundancy + imbalance) / 2, redundancy, imbalance)).float()


class Redundancy(Diversity):
    """The redundancy in `Diversity`: mean IoU of the prototypes assigned to the same part. Same arguments.

    Example:
        >>> import torch
        >>> metric = Redundancy()
        >>> metric.update(torch.ones(1, 2, 1, 2).bool(), torch.ones(1, 2, 1).bool())
        >>> metric.compute()
        tensor(1.)
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        return self._terms()[1]


class Imbalance(Diversity):
    """The imbalance in `Diversity`: Gini coefficient of the number of prototypes a part. Same arguments.

    Example:
        >>> import torch
        >>> metric = Imbalance()
        >>> metric.update(torch.ones(1, 2, 1, 2).bool(), torch.tensor([[[True, False], [True, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        return self._terms()[2]
