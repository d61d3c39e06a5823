"""One prototype for one part, over a data set: one-to-one Coverage, parts per prototype, islands, part identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.metrics import functional as F
from dapl.metrics.classes.base import ImageMean, RegisteredMetric, Scope, check_number


class OneToOneCoverage(ImageMean):
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
    matched: Tensor

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        self._zeros("matched", shape=(3,))

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, P, K)."""
        counts = F.matched_counts(assigned, visible, kept)
        self._add(F.matched_share(counts))
        self._count(matched=counts.reshape(-1, 3).sum(0))

    def _pooled(self) -> Tensor:
        return F.matched_share(self.matched.double()).unsqueeze(0)


class PartsPerPrototype(ImageMean):
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
    assignments: Tensor

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        self._zeros("assignments", shape=(2,))

    def update(self, assigned: Tensor, visible: Tensor | None = None, kept: Tensor | None = None) -> None:
        """Add a batch of assignments (…, P, K)."""
        counts = F.assigned_counts(assigned, visible, kept)
        self._add(F.parts_per_prototype(assigned, visible, kept))
        self._count(assignments=counts.reshape(-1, 2).sum(0))

    def _pooled(self) -> Tensor:
        return (self.assignments[0] / self.assignments[1]).unsqueeze(0)


class IslandsPerRegion(ImageMean):
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
    found: Tensor

    def __init__(self, scope: Scope = "image", **kwargs: Any) -> None:
        super().__init__(scope, **kwargs)
        self._zeros("found", shape=(2,))

    def update(self, regions: Tensor, kept: Tensor | None = None) -> None:
        """Add a batch of regions (…, P, H, W)."""
        number = F.islands(regions).number
        counts = number > 0 if kept is None else (number > 0) & kept
        sums = torch.stack(((number * counts).sum(-1), counts.sum(-1)), dim=-1)
        self._add(sums[..., 0] / sums[..., 1])
        self._count(found=sums.reshape(-1, 2).sum(0))

    def _pooled(self) -> Tensor:
        return (self.found[0] / self.found[1]).unsqueeze(0)


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
