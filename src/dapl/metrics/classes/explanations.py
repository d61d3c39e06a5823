"""Explanations over a data set: maps and regions against the mask of the object, and the explanation as a whole.

The whole is judged by whether it is distinct, comprehensive, and where it says it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.classes.base import CountedMean, RegisteredMetric, Summed


class Distinctiveness(Summed):
    """Mean over images of `dapl.metrics.functional.distinctiveness`; images with fewer than two prototypes have none.

    Args:
        side: of the boxes around the peaks, in pixels; 72 as published, for images of 224.

    Shapes of ``update``: points (…, P, 2), kept bool (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = Distinctiveness(side=4)
        >>> metric.update(torch.tensor([[[0, 0], [0, 0]], [[0, 0], [9, 0]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "distinctiveness"
    state = "distinct"

    def __init__(self, side: float = 72, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.side = side

    def update(self, points: Tensor, kept: Tensor | None = None) -> None:
        """Add the peaks of a batch."""
        self._add(F.share_counts(F.distinctiveness(points, self.side, kept).double().flatten()))


class Comprehensiveness(Summed):
    """Mean over images of `dapl.metrics.functional.comprehensiveness`.

    Args:
        threshold: of a map between its lowest and its highest value; 0.6 as in the published code.

    Shapes of ``update``: maps (…, P, h, w), pixel_masks bool (…, H, W), to whose size the maps are brought, kept bool
    (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = Comprehensiveness()
        >>> metric.update(torch.tensor([[[[0.0, 1.0, 5.0, 2.0]]]]), torch.tensor([[[False, True, True, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "comprehensiveness"
    state = "comprehensive"

    def __init__(self, threshold: float = 0.6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.threshold = threshold

    def update(self, maps: Tensor, pixel_masks: Tensor, kept: Tensor | None = None) -> None:
        """Add the maps of a batch."""
        size = (pixel_masks.shape[-2], pixel_masks.shape[-1])
        brought = None if maps.shape[-2:] == pixel_masks.shape[-2:] else size
        found = F.comprehensiveness(maps, pixel_masks.bool(), brought, self.threshold, kept)
        self._add(F.share_counts(found.double().flatten()))


class SpatialMisalignment(RegisteredMetric):
    """PLC, PAC, PRC and AC over a data set, see `dapl.metrics.functional.spatial_misalignment`.

    ``compute`` gives a dictionary with the fields of `dapl.metrics.functional.Misalignment`. The attack is up to the
    caller (`dapl.metrics.functional.attack`): three model passes for each of its steps.

    Shapes of ``update``: regions and attacked_regions bool (…, H, W), scores and attacked_scores (…, P), prototype
    integers (…), rivals bool (…, P), right and attacked_right bool (…).

    Example:
        >>> import torch
        >>> metric = SpatialMisalignment()
        >>> region, moved = torch.tensor([[[True, False]]]), torch.tensor([[[False, True]]])
        >>> scores, attacked = torch.tensor([[4.0, 2.0]]), torch.tensor([[1.0, 2.0]])
        >>> yes, first, rival = torch.tensor([True]), torch.tensor([0]), torch.tensor([[False, True]])
        >>> metric.update(region, moved, scores, attacked, first, rival, yes, yes)
        >>> metric.compute()["activation"], metric.compute()["accuracy"]
        (tensor(0.7500), tensor(0.))
    """

    number = "spatial_misalignment"
    changes: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._zeros("changes", shape=(len(F.Misalignment._fields), 2), dtype=torch.float64)

    def update(
        self,
        regions: Tensor,
        attacked_regions: Tensor,
        scores: Tensor,
        attacked_scores: Tensor,
        prototype: Tensor,
        rivals: Tensor,
        right: Tensor,
        attacked_right: Tensor,
    ) -> None:
        """Add what the attack changed on the images of a batch."""
        terms = F.misalignment_terms(
            regions, attacked_regions, scores, attacked_scores, prototype, rivals, right, attacked_right
        )
        self._count(changes=torch.stack([F.share_counts(term.double().flatten()) for term in terms]))

    def compute(self) -> dict[str, Tensor]:
        means = (self.changes[:, 0] / self.changes[:, 1]).float()
        return dict(zip(F.Misalignment._fields, means, strict=True))


class BackgroundBias(CountedMean):
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
    state = "pooled_maps"

    def update(self, maps: Tensor, masks: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of raw maps (…, P, H, W) and of masks (…, H, W) on their grid."""
        self._add_counts(F.share_counts(F.background_bias(maps, masks, kept).double()))


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
    state = "pooled_regions"

    def update(self, regions: Tensor, pixel_masks: Tensor, kept: Tensor | None = None) -> None:  # type: ignore[override]
        """Add a batch of regions (…, P, H, W) and of masks (…, H, W) at their size."""
        self._add_counts(F.share_counts(F.region_background_share(regions, pixel_masks, kept).double()))


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
