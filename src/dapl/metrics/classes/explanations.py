"""The explanation of an image as a whole, over a data set: is it distinct, is it comprehensive?"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.classes.base import Summed


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
