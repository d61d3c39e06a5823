"""Maps and regions against the mask of the object, over a data set."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.classes.base import ImageMean, Scope, Summed


class BackgroundBias(ImageMean):
    r"""The paper's background bias B on the raw maps, averaged over the prototypes that count and over images.

    .. math:: B(p_j, x, m) = \frac{\sum_{h,w} (1 - m[h,w]) \cdot a_j[h,w]}{\sum_{h,w} a_j[h,w]}

    Scope ``dataset`` is the mean over all (image, prototype). Prototypes without any activation are left out, an image
    in which all are is skipped.

    Args:
        scope: ``image``, ``dataset`` or ``projection``, see `dapl.metrics.classes`.

    Shapes of ``update``: maps (…, P, H, W), masks (…, H, W) on the same grid, kept bool (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = BackgroundBias()
        >>> metric.update(torch.tensor([[[[3.0, 1.0]], [[0.0, 2.0]]]]), torch.tensor([[[1.0, 0.5]]]))
        >>> metric.compute()
        tensor(0.3125)
    """

    number = "background_bias"
    pooled: ClassVar[str] = "pooled_maps"
    """Name of the state (sum, number): a `MetricCollection` may take two metrics with the same names for one."""

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        self._zeros(self.pooled, shape=(2,), dtype=torch.float64)

    def update(self, maps: Tensor, masks: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of raw maps (…, P, H, W) and of masks (…, H, W) on their grid."""
        self._add_shares(F.background_bias(maps, masks, kept))

    def _add_shares(self, shares: Tensor) -> None:
        shares = shares.double()
        self._add(shares.nanmean(-1))
        self._count(**{self.pooled: F.share_counts(shares).reshape(-1, 2).sum(0)})

    def _pooled(self) -> Tensor:
        total, number = getattr(self, self.pooled)
        return (total / number).unsqueeze(0)


class RegionBackgroundShare(BackgroundBias):
    r"""As `BackgroundBias`, on the activation regions: the share of a region's pixels that lie on background.

    Shapes of ``update``: regions bool (…, P, H, W), pixel_masks (…, H, W) at their size, kept bool (…, P).

    Example:
        >>> import torch
        >>> metric = RegionBackgroundShare()
        >>> metric.update(torch.tensor([[[[1, 1, 0]]]]).bool(), torch.tensor([[[1.0, 0.0, 0.0]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "region_background_share"
    pooled: ClassVar[str] = "pooled_regions"

    def update(self, regions: Tensor, pixel_masks: Tensor, kept: Tensor | None = None) -> None:  # type: ignore[override]
        """Add a batch of regions (…, P, H, W) and of masks (…, H, W) at their size."""
        self._add_shares(F.region_background_share(regions, pixel_masks, kept))


class ObjectOverlap(Summed):
    """Share of the object that a region covers, averaged over prototypes and then images; no extra model pass.

    See `dapl.metrics.functional.object_overlap`. Background overlap is `dapl.metrics.RegionBackgroundShare`.

    Shapes of ``update``: regions bool (…, P, H, W), pixel_masks (…, H, W) at their size, kept bool (…, P).

    Example:
        >>> import torch
        >>> metric = ObjectOverlap()
        >>> metric.update(torch.tensor([[[[1, 1, 0]]]]).bool(), torch.tensor([[[1.0, 0.0, 1.0]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "object_overlap"
    state = "overlaps"

    def update(self, regions: Tensor, pixel_masks: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of regions (…, P, H, W) and of masks (…, H, W) at their size."""
        of_images = F.object_overlap(regions, pixel_masks, kept).double().nanmean(-1)
        self._add(F.share_counts(of_images.flatten()))


class OutsideInsideRelevanceRatio(Summed):
    """OIRR, the mean over all (image, prototype) for which it is finite; no extra model pass.

    See `dapl.metrics.functional.outside_inside_relevance_ratio`. Those without activation inside the object are
    infinite: one would swallow the mean, so they are counted in ``oirr_infinite`` instead.

    Shapes of ``update``: maps (…, P, H, W), masks (…, H, W) on the same grid, kept bool (…, P).

    Example:
        >>> import torch
        >>> metric = OutsideInsideRelevanceRatio()
        >>> metric.update(torch.tensor([[[[4.0, 2.0]], [[0.0, 1.0]]]]), torch.tensor([[[1.0, 0.0]]]))
        >>> metric.compute(), metric.oirr_infinite
        (tensor(0.5000), tensor(1))
    """

    number = "oirr"
    state = "ratios"
    terms = 3

    @property
    def oirr_infinite(self) -> Tensor:
        """How many (image, prototype) have no activation inside the object."""
        return self.sums[2].long()

    def update(self, maps: Tensor, masks: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of maps (…, P, H, W) and of masks (…, H, W) on their grid."""
        self._add(F.oirr_counts(F.outside_inside_relevance_ratio(maps, masks, kept)))
