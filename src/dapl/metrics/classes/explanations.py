"""The explanation of an image as a whole, over a data set: is it distinct, comprehensive, and where it says it is?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.classes.base import RegisteredMetric, Summed


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
