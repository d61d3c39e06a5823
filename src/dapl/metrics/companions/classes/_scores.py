"""What is made of scores alone: the size of explanations, and faithfulness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.metrics import companions as F
from dapl.metrics.companions._faithfulness import loss_sums, similarity_loss
from dapl.metrics.companions.classes._base import Companion


class ExplanationSize(Companion):
    """Mean number of prototypes in an explanation, see `dapl.metrics.companions.explanation_size`; no extra pass.

    Args:
        share: 0.1 as in QuanProto.
        kwargs: of ``torchmetrics.Metric``.

    Shapes of ``update``: contributions (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = ExplanationSize()
        >>> metric.update(torch.tensor([[5.0, 0.5, 1.0], [1.0, 1.0, 1.0]]))
        >>> metric.compute()
        tensor(2.5000)
    """

    higher_is_better = False
    plot_upper_bound = None
    sizes: Tensor
    explanations: Tensor

    def __init__(self, share: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.share = share
        self._zeros("sizes", "explanations")

    def update(self, contributions: Tensor) -> None:
        """Add a batch of contributions (…, P)."""
        sizes = F.explanation_size(contributions, self.share)
        self._count(sizes=sizes.sum(), explanations=torch.tensor(sizes.numel()))

    def compute(self) -> Tensor:
        return (self.sizes.double() / self.explanations).float()


class Faithfulness(Companion):
    """Similarity lost with the shown region against a random one, see `dapl.metrics.companions.faithfulness`.

    Two extra model passes for each (image, prototype) measured. ``compute`` gives a dictionary with the fields of
    `dapl.metrics.companions.SimilarityLoss`.

    Shapes of ``update``: before, blurred, random (…), the scores of the same prototypes; measured bool (…).

    Example:
        >>> import torch
        >>> metric = Faithfulness()
        >>> metric.update(torch.tensor([5.0, 4.0]), torch.tensor([2.0, 3.0]), torch.tensor([4.5, 2.5]))
        >>> metric.compute()["difference"]
        tensor(1.)
    """

    higher_is_better = True
    plot_lower_bound = None
    plot_upper_bound = None
    losses: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._zeros("losses", shape=(4,), dtype=torch.float64)

    def update(self, before: Tensor, blurred: Tensor, random: Tensor, measured: Tensor | None = None) -> None:
        """Add the scores of a batch."""
        self._count(losses=loss_sums(before, blurred, random, measured))

    def compute(self) -> dict[str, Tensor]:
        return similarity_loss(self.losses)._asdict()
