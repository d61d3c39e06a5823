"""What one pass leaves behind: a few numbers a row, and sums that do not grow."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from lightning_fabric import Fabric
from torch import Tensor

from dapl.metrics.functional import assign
from dapl.metrics.functional._diversity import pair_sums
from dapl.training.stages import everywhere

TABLE = TypeVar("TABLE")


@dataclass
class Answers:
    """How the model did on n pictures."""

    right: Tensor
    """n, 1 where the label is right."""
    confidence: Tensor
    """n, the probability of the answer."""
    cross_entropy: Tensor
    """n."""

    @classmethod
    def empty(cls, count: int) -> Answers:
        return cls(*(torch.zeros(count) for _ in range(3)))

    def add(self, rows: Tensor, logits: Tensor, labels: Tensor) -> None:
        """logits B×C, labels B."""
        logs = logits.float().log_softmax(1).cpu()
        highest, answers = logs.max(1)
        self.right[rows] = (answers == labels.cpu()).float()
        self.confidence[rows] = highest.exp()
        self.cross_entropy[rows] = -logs.gather(1, labels.cpu().unsqueeze(1)).squeeze(1)


@dataclass(frozen=True)
class Found:
    """What was found in B rows, with M prototypes and K parts; None where it was not asked for or cannot be had."""

    kept: Tensor
    """bool B×M: the prototypes that count."""
    overlap: Tensor | None = None
    """B×M×K: the share of part k that the region of prototype m covers; 0 where the part is not visible."""
    visible: Tensor | None = None
    """bool B×K."""
    ious: Tensor | None = None
    """B×M×M."""
    bias: Tensor | None = None
    """B×M, NaN where not kept: background bias of the map."""
    region_share: Tensor | None = None
    """B×M, NaN where not kept: background share of the region."""


@dataclass
class Looks:
    """Where the prototypes looked, in n rows; T thresholds τ were tried."""

    kept: Tensor
    """n, the number of prototypes that count."""
    visible: Tensor
    """n×K, 1 where a part can be seen."""
    prototypes_hit: Tensor
    """n×T, the number of prototypes on some part."""
    parts_hit: Tensor
    """n×T, the number of parts with some prototype."""
    on_part: Tensor
    """n×K at the protocol's τ: the number of prototypes on a part."""
    iou_on_part: Tensor
    """n×K at the protocol's τ: the sum of IoU over the pairs of prototypes on a part."""
    bias: Tensor
    """n×M."""
    region_share: Tensor
    """n×M."""
    head_on_part: Tensor
    """K×M: in how many rows prototype m of its class was on part k."""
    head_seen: Tensor
    """K×M: in how many it could have been."""
    head_iou: Tensor
    """M×M: the sum over rows of the IoU of two regions."""
    head_pairs: Tensor
    """M×M: over how many."""

    @classmethod
    def empty(cls, count: int, prototypes: int, parts: int, thresholds: int) -> Looks:
        by_part, by_prototype, by_threshold = (
            (count, parts), (count, prototypes), (count, thresholds)
        )  # fmt: skip
        shapes = (
            (count,), by_part, by_threshold, by_threshold, by_part, by_part, by_prototype, by_prototype,
            (parts, prototypes), (parts, prototypes), (prototypes, prototypes), (prototypes, prototypes),
        )  # fmt: skip
        return cls(*(torch.zeros(shape) for shape in shapes))

    def add(self, rows: Tensor, found: Found, tau: float, thresholds: Tensor) -> None:
        """``thresholds``: T, all of the τ to try."""
        self.kept[rows] = found.kept.sum(1).float().cpu()
        for name in ("bias", "region_share"):
            shares = getattr(found, name)
            getattr(self, name)[rows] = torch.nan if shares is None else shares.float().cpu()
        if found.ious is not None:
            both = found.kept.unsqueeze(2) & found.kept.unsqueeze(1)
            self.head_iou += (found.ious * both).sum(0).float().cpu()
            self.head_pairs += both.sum(0).float().cpu()
        if found.overlap is not None and found.visible is not None:
            self._add_assignments(rows, found.overlap, found.visible, found, tau, thresholds)

    def _add_assignments(
        self, rows: Tensor, overlap: Tensor, visible: Tensor, found: Found, tau: float, thresholds: Tensor
    ) -> None:
        kept = found.kept
        assigned = assign(overlap, tau, visible, kept)
        self.visible[rows] = visible.float().cpu()
        self.on_part[rows] = assigned.sum(1).float().cpu()
        self.head_on_part += assigned.sum(0).T.float().cpu()
        self.head_seen += (visible.unsqueeze(1) & kept.unsqueeze(2)).sum(0).T.float().cpu()
        if found.ious is not None:
            self.iou_on_part[rows] = pair_sums(found.ious, assigned)[0].cpu()
        counts = (visible.unsqueeze(1) & kept.unsqueeze(2)).unsqueeze(1)
        over = (overlap.unsqueeze(1) > thresholds.to(overlap)[None, :, None, None]) & counts  # B×T×M×K
        self.prototypes_hit[rows] = over.any(3).sum(2).float().cpu()
        self.parts_hit[rows] = over.any(2).sum(2).float().cpu()


def merged(table: TABLE, fabric: Fabric) -> TABLE:
    """The rows that each process filled in its share of, and the sums of all."""
    for field in fields(table):  # type: ignore[arg-type]
        setattr(table, field.name, everywhere(getattr(table, field.name), fabric))
    return table
