"""Consistency, Stability and Purity over a data set: do prototypes stay with their parts?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.metrics import companions as F
from dapl.metrics.classes._mean import check_number
from dapl.metrics.companions._purity_table import PurityTable
from dapl.metrics.companions.classes._base import Companion


class Consistency(Companion):
    """Consistency over the test images, see `dapl.metrics.companions.consistency`. No extra model pass.

    Args:
        num_prototypes: P.
        num_parts: K.
        threshold: 0.8 as published.
        kwargs: of ``torchmetrics.Metric``.

    Shapes of ``update``: corresponding bool (B, M, K) for the M prototypes of each image's class, visible bool (B, K),
    prototypes integers (B, M), kept bool (B, M). ``compute``: a scalar. ``hits`` and ``seen``, (P, K), are the counts.

    Example:
        >>> import torch
        >>> metric = Consistency(num_prototypes=2, num_parts=1)
        >>> corresponding, visible = torch.tensor([[[True], [True]], [[True], [False]]]), torch.ones(2, 1).bool()
        >>> metric.update(corresponding, visible, prototypes=torch.tensor([[0, 1], [0, 1]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = True
    hits: Tensor
    seen: Tensor

    def __init__(self, num_prototypes: int, num_parts: int, threshold: float = 0.8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_prototypes, self.num_parts, self.threshold = num_prototypes, num_parts, threshold
        self._zeros("hits", "seen", shape=(num_prototypes, num_parts))

    def update(self, corresponding: Tensor, visible: Tensor, prototypes: Tensor, kept: Tensor | None = None) -> None:
        """Add the images of a batch."""
        check_number(corresponding.shape[-1], self.num_parts, "parts")
        hits, seen = F.count_parts(corresponding, visible, prototypes, self.num_prototypes, kept)
        self._count(hits=hits, seen=seen)

    def compute(self) -> Tensor:
        return F.consistency(self.hits, self.seen, self.threshold)


class Stability(Companion):
    """Stability over the test images, see `dapl.metrics.companions.stability`. One extra pass, on perturbed images.

    Args:
        num_prototypes: P.
        kwargs: of ``torchmetrics.Metric``.

    Shapes of ``update``: corresponding and perturbed bool (B, M, K), prototypes integers (B, M), visible bool (B, K),
    kept bool (B, M). ``compute``: a scalar. ``stable`` and ``shown``, (P), are the counts.

    Example:
        >>> import torch
        >>> metric = Stability(num_prototypes=1)
        >>> before, after = torch.tensor([[[True]], [[True]]]), torch.tensor([[[True]], [[False]]])
        >>> metric.update(before, after, prototypes=torch.tensor([[0], [0]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = True
    stable: Tensor
    shown: Tensor

    def __init__(self, num_prototypes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_prototypes = num_prototypes
        self._zeros("stable", "shown", shape=(num_prototypes,))

    def update(
        self,
        corresponding: Tensor,
        perturbed: Tensor,
        prototypes: Tensor,
        visible: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> None:
        """Add the images of a batch."""
        stable, shown = F.count_stable(corresponding, perturbed, prototypes, self.num_prototypes, visible, kept)
        self._count(stable=stable, shown=shown)

    def compute(self) -> Tensor:
        return F.stability(self.stable, self.shown)


class Purity(Companion):
    """Mean purity of the prototypes, see `dapl.metrics.companions.purity`. One pass over the *training* images.

    State is the ``top`` best images of each prototype; processes merge theirs. Each image is to be given once.

    Args:
        num_prototypes: P.
        num_parts: G, after left and right were merged.
        top: 10 as published.
        kwargs: of ``torchmetrics.Metric``.

    Shapes of ``update``: scores (B, P), present bool (B, P, G), visible bool (B, G), images integers (B), the number of
    each image in the data set, which settles ties, kept bool (P) or (B, P). ``compute``: a scalar, the mean over the
    prototypes for which `per_prototype` is a number.

    Example:
        >>> import torch
        >>> metric = Purity(num_prototypes=1, num_parts=1, top=2)
        >>> scores, present = torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([[[True]], [[True]], [[False]]])
        >>> metric.update(scores, present, torch.ones(3, 1).bool(), images=torch.tensor([0, 1, 2]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = True
    best: Tensor

    def __init__(self, num_prototypes: int, num_parts: int, top: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = PurityTable(num_prototypes, num_parts, top)
        self.add_state("best", self.table.empty(), dist_reduce_fx=self.table.merge)

    def update(
        self, scores: Tensor, present: Tensor, visible: Tensor, images: Tensor, kept: Tensor | None = None
    ) -> None:
        """Add the images of a batch."""
        batch = self.table.rows(scores, present, visible, images, kept).to(self.best.device)
        self.best = self.table.best(torch.cat((self.best, batch), dim=1))

    def per_prototype(self) -> Tensor:
        """(P); NaN for prototypes that are not kept or whose images show no part. Of this process alone."""
        return self.table.purity(self.best)

    def compute(self) -> Tensor:
        return self.per_prototype().nanmean()
