"""Consistency, Stability, Purity, the size of explanations and faithfulness over a data set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.classes.base import RegisteredMetric, Summed, check_number
from dapl.metrics.functional.purity import PurityTable


class Consistency(RegisteredMetric):
    """Consistency over the test images, see `dapl.metrics.functional.consistency`. No extra model pass.

    Args:
        num_prototypes: P.
        num_parts: K.
        threshold: 0.8 as published.

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

    number = "consistency"
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


class Stability(RegisteredMetric):
    """Stability over the test images, see `dapl.metrics.functional.stability`. One extra pass, on perturbed images.

    Args:
        num_prototypes: P.

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

    number = "stability"
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


class Purity(RegisteredMetric):
    """Mean purity of the prototypes, see `dapl.metrics.functional.purity`. One pass over the *training* images.

    State is the ``top`` best images of each prototype; processes merge theirs. Each image is to be given once.

    Args:
        num_prototypes: P.
        num_parts: G, after left and right were merged.
        top: 10 as published.

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

    number = "purity"
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


class ExplanationSize(Summed):
    """Mean number of prototypes in an explanation, see `dapl.metrics.functional.explanation_size`; no extra pass.

    Args:
        share: 0.1 as in QuanProto.

    Shapes of ``update``: contributions (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = ExplanationSize()
        >>> metric.update(torch.tensor([[5.0, 0.5, 1.0], [1.0, 1.0, 1.0]]))
        >>> metric.compute()
        tensor(2.5000)
    """

    number = "explanation_size"
    state = "sizes"

    def __init__(self, share: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.share = share

    def update(self, contributions: Tensor) -> None:
        """Add a batch of contributions (…, P)."""
        self._add(F.share_counts(F.explanation_size(contributions, self.share).double().flatten()))


class Faithfulness(Summed):
    """Similarity lost with the shown region against a control, see `dapl.metrics.functional.faithfulness`.

    Two extra model passes for each (image, prototype) measured, four with the share of the region's own pixels.
    ``compute`` gives a dictionary with the fields of `dapl.metrics.functional.SimilarityLoss`.

    Shapes of ``update``: before, blurred, random, alone, nothing (…), the scores of the same prototypes; measured bool
    (…).

    Example:
        >>> import torch
        >>> metric = Faithfulness()
        >>> metric.update(torch.tensor([5.0, 4.0]), torch.tensor([2.0, 3.0]), torch.tensor([4.5, 2.5]))
        >>> metric.compute()["difference"]
        tensor(1.)
    """

    number = "faithfulness"
    state = "losses"
    terms = F.LOSS_TERMS

    def update(
        self,
        before: Tensor,
        blurred: Tensor,
        random: Tensor,
        measured: Tensor | None = None,
        alone: Tensor | None = None,
        nothing: Tensor | None = None,
    ) -> None:
        """Add the scores of a batch; the last two together, or neither of them."""
        self._add(F.loss_counts(before, blurred, random, measured, alone, nothing))

    def compute(self) -> dict[str, Tensor]:
        return {name: value.float() for name, value in F.similarity_loss(self.sums)._asdict().items()}
