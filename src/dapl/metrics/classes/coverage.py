"""Prototypes and parts over a data set: Coverage, Diversity, their terms, and which head is assigned to which part.

Also one prototype for one part (one-to-one Coverage, parts per prototype), islands, and part identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics import functional as F
from dapl.metrics.classes.base import CountedMean, ImageMean, RegisteredMetric, Scope, check_number
from dapl.metrics.functional.checks import counted
from dapl.metrics.functional.diversity import counts_of_regions


class Coverage(CountedMean):
    r"""Coverage over a data set: do the prototypes lie on parts, and on all of them?

    .. math:: \text{Coverage} = \frac{2 \cdot \text{Precision} \cdot \text{Recall}}{\text{Precision} + \text{Recall}}

    Scope ``dataset`` takes Precision over all (image, prototype) and Recall over all (image, visible part).
    `PartPrecision` and `PartRecall` are its two terms; in a ``MetricCollection`` the three share one state.

    Args:
        scope: ``image``, ``dataset`` or ``projection``, see `dapl.metrics.classes`.

    Shapes of ``update``: assigned bool (…, P, K), visible bool (…, K), kept bool (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = Coverage()
        >>> metric.update(torch.tensor([[[True, False], [True, False]], [[True, False], [False, True]]]))
        >>> metric.compute()
        tensor(0.8333)
    """

    number = "coverage"
    terms: ClassVar[int] = 3
    state = "counts"
    columns = 4

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, P, K)."""
        self._add_counts(F.coverage_counts(assigned, visible, kept))

    def _terms(self, counts: Tensor) -> Sequence[Tensor]:
        return F.coverage_terms(counts)


class PartPrecision(Coverage):
    """The precision in `Coverage`: the share of prototypes that lie on a part. Same arguments.

    Example:
        >>> import torch
        >>> metric = PartPrecision()
        >>> metric.update(torch.tensor([[[True, False], [False, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "precision"
    term: ClassVar[int] = 1


class PartRecall(Coverage):
    """The recall in `Coverage`: the share of visible parts that a prototype lies on. Same arguments.

    Example:
        >>> import torch
        >>> metric = PartRecall()
        >>> metric.update(torch.tensor([[[True, False], [True, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "recall"
    term: ClassVar[int] = 2


class Diversity(ImageMean):
    r"""Diversity over a data set: are the prototypes spatially distinct and spread evenly over the parts?

    .. math:: \text{Diversity} = 1 - \frac{\text{Redundancy} + \text{Imbalance}}{2}

    Scope ``dataset`` takes `dapl.metrics.functional.diversity_terms` of the counts of all images together.
    `Redundancy` and `Imbalance` are its two terms; in a ``MetricCollection`` the three share one state.

    Args:
        scope: ``image``, ``dataset`` or ``projection``, see `dapl.metrics.classes`.
        num_parts: K, needed by scope ``dataset``, which counts by part.

    Shapes of ``update``: regions bool (…, P, H, W), assigned bool (…, P, K), visible bool (…, K), kept bool (…, P),
    images integer (…, P), see `dapl.metrics.functional.iou`. ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = Diversity()
        >>> metric.update(torch.eye(2).bool().view(1, 2, 1, 2), torch.eye(2).bool()[None])
        >>> metric.compute()
        tensor(1.)
    """

    number = "diversity"
    terms: ClassVar[int] = 3
    part_sums: Tensor

    def __init__(self, scope: Scope = "image", num_parts: int | None = None, **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        if scope == "dataset" and num_parts is None:
            raise DaplError("scope dataset counts by part: give num_parts, the number of parts of the data set.")
        self.num_parts = num_parts
        if num_parts is not None:
            self._zeros("part_sums", shape=(4, num_parts), dtype=torch.float64)

    def update(
        self,
        regions: Tensor,
        assigned: Tensor,
        visible: Tensor | None = None,
        kept: Tensor | None = None,
        images: Tensor | None = None,
    ) -> None:
        """Add a batch of regions (…, P, H, W) and their assignments (…, P, K)."""
        if self.num_parts is not None:
            check_number(assigned.shape[-1], self.num_parts, "parts")
        counts = counts_of_regions(regions, assigned, visible, kept, images)
        self._add(*F.diversity_terms(counts))
        if self.num_parts is not None:
            self._count(part_sums=counts.reshape(-1, 4, self.num_parts).double().sum(0))

    def _pooled(self) -> Tensor:
        return torch.stack(F.diversity_terms(self.part_sums))


class Redundancy(Diversity):
    """The redundancy in `Diversity`: mean IoU of the prototypes assigned to the same part. Same arguments.

    Example:
        >>> import torch
        >>> metric = Redundancy()
        >>> metric.update(torch.ones(1, 2, 1, 2).bool(), torch.ones(1, 2, 1).bool())
        >>> metric.compute()
        tensor(1.)
    """

    number = "redundancy"
    term: ClassVar[int] = 1


class Imbalance(Diversity):
    """The imbalance in `Diversity`: Gini coefficient of the number of prototypes per part. Same arguments.

    Example:
        >>> import torch
        >>> metric = Imbalance()
        >>> metric.update(torch.ones(1, 2, 1, 2).bool(), torch.tensor([[[True, False], [True, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "imbalance"
    term: ClassVar[int] = 2


class PartAssignment(RegisteredMetric):
    r"""How often head h is assigned to part k, of the images in which the part is visible and the prototype kept.

    .. math:: S_{kh} = \frac{\#\{x : p_h \text{ assigned to part}_k\}}{\#\{x : p_h \text{ kept, part}_k \text{ seen}\}}

    NaN where that never happened. The counts themselves are in ``assigned`` and ``seen``, both (K, N).

    Args:
        num_parts: K.
        num_heads: N, the number of prototypes per class.
        parts: the names of the parts, for the plot.

    Shapes of ``update``: assigned bool (…, N, K), visible bool (…, K), kept bool (…, N). ``compute``: (K, N).

    Example:
        >>> import torch
        >>> metric = PartAssignment(num_parts=2, num_heads=2)
        >>> metric.update(torch.tensor([[[1, 0], [1, 0]], [[1, 0], [0, 1]]]).bool())
        >>> metric.compute()
        tensor([[1.0000, 0.5000],
                [0.0000, 0.5000]])
    """

    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0
    assigned: Tensor
    seen: Tensor

    def __init__(self, num_parts: int, num_heads: int, parts: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if parts is not None:
            check_number(len(parts), num_parts, "parts")
        self.num_parts, self.num_heads = num_parts, num_heads
        self.parts = list(parts) if parts is not None else [str(k) for k in range(num_parts)]
        self._zeros("assigned", "seen", shape=(num_parts, num_heads))

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, N, K)."""
        assigned, visible, kept = counted(assigned, visible, kept)
        check_number(assigned.shape[-1], self.num_parts, "parts")
        check_number(assigned.shape[-2], self.num_heads, "heads")
        seen = visible.unsqueeze(-2) & kept.unsqueeze(-1)
        by_image = (flags.reshape(-1, self.num_heads, self.num_parts) for flags in (assigned, seen))
        self._count(**{name: flags.sum(0).mT for name, flags in zip(("assigned", "seen"), by_image, strict=True)})

    def compute(self) -> Tensor:
        return (self.assigned.double() / self.seen).float()

    def plot(self, val: Tensor | None = None, ax: Any = None) -> Any:
        """Parts × heads as an image of shares; returns matplotlib's figure and axes."""
        import matplotlib.pyplot as plt

        shares = (self.compute() if val is None else val).detach().cpu().numpy()
        if ax is None:
            _, ax = plt.subplots(figsize=(2 + 0.4 * self.num_heads, 1 + 0.3 * self.num_parts), layout="constrained")
        image = ax.imshow(shares, vmin=self.plot_lower_bound, vmax=self.plot_upper_bound, cmap="viridis", aspect="auto")
        ax.set(xlabel="head", xticks=range(self.num_heads), yticks=range(self.num_parts), yticklabels=self.parts)
        ax.figure.colorbar(image, ax=ax, label="share of images")
        return ax.figure, ax


class OneToOneCoverage(CountedMean):
    r"""One-to-one Coverage over a data set, see `dapl.metrics.functional.one_to_one_coverage`.

    .. math:: \frac{2 |\mathcal{M}|}{|\mathcal{P}| + K}

    Scope ``dataset`` takes the pairs, prototypes and parts of all images together.

    Args:
        scope: ``image``, ``dataset`` or ``projection``, see `dapl.metrics.classes`.

    Shapes of ``update``: assigned bool (…, P, K), visible bool (…, K), kept bool (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = OneToOneCoverage()
        >>> metric.update(torch.tensor([[[True, True], [False, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    number = "one_to_one_coverage"
    state = "matched"
    columns = 3

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, P, K)."""
        self._add_counts(F.matched_counts(assigned, visible, kept))

    def _terms(self, counts: Tensor) -> Sequence[Tensor]:
        return [F.matched_share(counts)]


class PartsPerPrototype(CountedMean):
    """How many parts a prototype is on, see `dapl.metrics.functional.parts_per_prototype`.

    Arguments as of `OneToOneCoverage`; scope ``dataset`` is the mean over all prototypes of all images.

    Example:
        >>> import torch
        >>> metric = PartsPerPrototype()
        >>> metric.update(torch.tensor([[[True, True], [False, False]]]))
        >>> metric.compute()
        tensor(1.)
    """

    number = "parts_per_prototype"
    state = "assignments"

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, P, K)."""
        self._add_counts(F.assigned_counts(assigned, visible, kept))


class IslandsPerRegion(CountedMean):
    """How many islands a region has, see `dapl.metrics.functional.islands`; empty regions do not count.

    Args:
        scope: ``image``, ``dataset`` (the mean over all regions) or ``projection``, see `dapl.metrics.classes`.

    Shapes of ``update``: regions bool (…, P, H, W), kept bool (…, P). ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = IslandsPerRegion()
        >>> metric.update(torch.tensor([[[[True, False, True]], [[True, True, True]]]]))
        >>> metric.compute()
        tensor(1.5000)
    """

    number = "islands"
    state = "found"

    def update(self, regions: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of regions (…, P, H, W)."""
        number = F.islands(regions).number
        counts = number > 0 if kept is None else (number > 0) & kept
        self._add_counts(torch.stack(((number * counts).sum(-1), counts.sum(-1)), dim=-1))


class PartIdentity(RegisteredMetric):
    """Part identity over the test images, see `dapl.metrics.functional.part_identity`. No extra model pass.

    Fed with `dapl.metrics.functional.renamed` hits it gives the null.

    Args:
        num_classes: C.
        num_prototypes: P, per class.
        num_parts: K, after left and right were merged where they are to be.

    Shapes of ``update``: hits bool (B, P, K) from `dapl.metrics.functional.peak_parts`, visible bool (B, K), labels
    integers (B), kept bool (B, P), the same for all images of a class. ``compute``: a scalar.

    Example:
        >>> import torch
        >>> metric = PartIdentity(num_classes=1, num_prototypes=2, num_parts=2)
        >>> metric.update(torch.eye(2).bool().expand(3, 2, 2), torch.ones(3, 2).bool(), torch.zeros(3).long())
        >>> metric.compute()
        tensor(1.)
    """

    number = "part_identity"
    hits: Tensor
    seen: Tensor
    counted: Tensor

    def __init__(self, num_classes: int, num_prototypes: int, num_parts: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.num_prototypes, self.num_parts = num_classes, num_prototypes, num_parts
        self._zeros("hits", shape=(num_classes, num_prototypes, num_parts))
        self._zeros("seen", shape=(num_classes, num_parts))
        self._zeros("counted", shape=(num_classes, num_prototypes))

    def update(self, hits: Tensor, visible: Tensor, labels: Tensor, kept: Tensor | None = None) -> None:
        """Add the images of a batch."""
        check_number(hits.shape[-2], self.num_prototypes, "prototypes")
        check_number(hits.shape[-1], self.num_parts, "parts")
        on_part, seen = F.identity_counts(hits, visible, labels, self.num_classes)
        counts = torch.ones_like(hits[..., 0]) if kept is None else kept
        member = torch.nn.functional.one_hot(labels.long(), self.num_classes).T
        self._count(hits=on_part, seen=seen, counted=member @ counts.long())

    def compute(self) -> Tensor:
        return F.part_identity(self.hits, self.seen, self.counted > 0).float()
