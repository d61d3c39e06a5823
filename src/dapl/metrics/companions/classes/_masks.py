"""Regions and maps against object masks, over a data set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.metrics import companions as F
from dapl.metrics.companions.classes._base import Companion


class ObjectOverlap(Companion):
    """Share of the object that a region covers, averaged over prototypes and then images; no extra model pass.

    See `dapl.metrics.companions.object_overlap`. Background overlap is `dapl.metrics.RegionBackgroundShare`.

    Shapes of ``update``: regions bool (…, P, H, W), pixel_masks (…, H, W) at their size, kept bool (…, P).

    Example:
        >>> import torch
        >>> metric = ObjectOverlap()
        >>> metric.update(torch.tensor([[[[1, 1, 0]]]]).bool(), torch.tensor([[[1.0, 0.0, 1.0]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = None
    overlap_sum: Tensor
    overlap_images: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._zeros("overlap_sum", dtype=torch.float64)
        self._zeros("overlap_images")

    def update(self, regions: Tensor, pixel_masks: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of regions (…, P, H, W) and of masks (…, H, W) at their size."""
        values = F.object_overlap(regions, pixel_masks, kept).nanmean(-1)
        self._count(overlap_sum=values.double().nansum(), overlap_images=(~values.isnan()).sum())

    def compute(self) -> Tensor:
        return (self.overlap_sum / self.overlap_images).float()


class OutsideInsideRelevanceRatio(Companion):
    """OIRR, the mean over all (image, prototype) for which it is finite; no extra model pass.

    See `dapl.metrics.companions.outside_inside_relevance_ratio`. Those without activation inside the object are
    infinite: one would swallow the mean, so they are counted in ``oirr_infinite`` instead.

    Shapes of ``update``: maps (…, P, H, W), masks (…, H, W) on the same grid, kept bool (…, P).

    Example:
        >>> import torch
        >>> metric = OutsideInsideRelevanceRatio()
        >>> metric.update(torch.tensor([[[[4.0, 2.0]], [[0.0, 1.0]]]]), torch.tensor([[[1.0, 0.0]]]))
        >>> metric.compute(), metric.oirr_infinite
        (tensor(0.5000), tensor(1))
    """

    higher_is_better = False
    plot_upper_bound = None
    oirr_sum: Tensor
    oirr_cases: Tensor
    oirr_infinite: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._zeros("oirr_sum", dtype=torch.float64)
        self._zeros("oirr_cases", "oirr_infinite")

    def update(self, maps: Tensor, masks: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of maps (…, P, H, W) and of masks (…, H, W) on their grid."""
        values = F.outside_inside_relevance_ratio(maps, masks, kept).double()
        finite = values.isfinite()
        total = values.where(finite, 0.0).sum()
        self._count(oirr_sum=total, oirr_cases=finite.sum(), oirr_infinite=values.isinf().sum())

    def compute(self) -> Tensor:
        return (self.oirr_sum / self.oirr_cases).float()
