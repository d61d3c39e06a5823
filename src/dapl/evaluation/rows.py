"""What one pass leaves behind: a few numbers a row, and sums that do not grow.

The metrics of the field (docs/companions.md) as rows of a pass and statistics of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.evaluation.numbers import AnyStatistic, ClassStatistic, Statistic, mean
from dapl.evaluation.scenes import Scene
from dapl.metrics import functional as F
from dapl.metrics.functional import assign
from dapl.metrics.functional.diversity import pair_sums


@dataclass
class Answers:
    """How the model did on n images."""

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
        by_part, by_prototype, by_threshold = ((count, parts), (count, prototypes), (count, thresholds))
        shapes = (
            (count,),
            by_part,
            by_threshold,
            by_threshold,
            by_part,
            by_part,
            by_prototype,
            by_prototype,
            (parts, prototypes),
            (parts, prototypes),
            (prototypes, prototypes),
            (prototypes, prototypes),
        )
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


PUBLISHED_SIZE = 224
"""Side of the images that published lengths in pixels (box, patch, blur) are meant for; others scale with them."""
NEED_POINTS = frozenset({"consistency", "stability", "purity"})
NEED_MASKS = frozenset({"oirr", "object_overlap"})


@dataclass
class CompanionRows:
    """n images, M prototypes of each image's class, K parts."""

    corresponding: Tensor
    """uint8 n×M×K: is the keypoint of part k in the box around the highest pixel of the map?"""
    seen: Tensor
    """uint8 n×K: is the keypoint visible?"""
    stable: Tensor
    """uint8 n×M: are all K the same under noise?"""
    oirr: Tensor
    """n×3: sum over prototypes of those that are finite, their number, the number of infinite ones."""
    object_overlap: Tensor
    """n, mean over prototypes; NaN where there is none."""
    explanation_size: Tensor
    """n."""
    similarity_lost: Tensor
    """n×2: with the region of a prototype, with a random one; NaN where none was measured."""

    @classmethod
    def empty(cls, count: int, prototypes: int, parts: int) -> CompanionRows:
        flags = ((count, prototypes, parts), (count, parts), (count, prototypes))
        numbers = ((count, 3), (count,), (count,), (count, 2))
        return cls(
            *(torch.zeros(shape, dtype=torch.uint8) for shape in flags), *(torch.zeros(shape) for shape in numbers)
        )

    def add(
        self, rows: Tensor, maps: Tensor, regions: Tensor | None, kept: Tensor, scene: Scene, names: frozenset[str]
    ) -> None:
        """What needs no pass of its own. maps B×M×H×W, regions bool B×M×S×S, kept bool B×M."""
        if names & {"consistency", "stability"} and scene.points is not None:
            corresponding, seen = correspondence(maps, scene)
            self.corresponding[rows], self.seen[rows] = corresponding.cpu().byte(), seen.cpu().byte()
        if "oirr" in names and scene.grid is not None and not bool((maps < 0).any()):
            ratios = F.outside_inside_relevance_ratio(maps, scene.grid, kept).float().cpu()
            finite = ratios.isfinite()
            counts = ratios.where(finite, 0.0).sum(1), finite.sum(1), ratios.isinf().sum(1)
            self.oirr[rows] = torch.stack([count.float() for count in counts], dim=1)
        if "object_overlap" in names and scene.masks is not None and regions is not None:
            self.object_overlap[rows] = F.object_overlap(regions, scene.masks.bool(), kept).nanmean(1).float().cpu()


def correspondence(maps: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
    """bool B×M×K and bool B×K: parts near the highest pixel of each map, and the parts that can be."""
    assert scene.points is not None
    size, device = scene.points.size, maps.device
    keypoints, visible = scene.points.keypoints.to(device), scene.points.visible.to(device)
    seen = F.visible_keypoints(keypoints, visible, size)
    return F.corresponding_parts(maps, keypoints, seen, size, scaled(36, size)), seen


def scaled(length: float, size: int) -> int:
    """A length that was published for images of 224 px, in whole pixels of this size."""
    return max(1, round(length * size / PUBLISHED_SIZE))


def companion_statistics(
    rows: CompanionRows, labels: Tensor, kept: Tensor, names: frozenset[str]
) -> list[AnyStatistic]:
    """labels: n; kept: bool C×M."""
    made: dict[str, Callable[[], list[AnyStatistic]]] = {
        "consistency": lambda: [_consistency(rows, labels, kept)],
        "stability": lambda: [_stability(rows, labels, kept)],
        "object_overlap": lambda: [mean("object_overlap", rows.object_overlap)],
        "oirr": lambda: [Statistic("oirr", rows.oirr.double(), lambda s: s[..., 0] / s[..., 1], highest=torch.inf)],
        "sparsity": lambda: [mean("explanation_size", rows.explanation_size, highest=torch.inf)],
        "faithfulness": lambda: _faithfulness(rows.similarity_lost),
    }
    return [statistic for name, make in made.items() if name in names for statistic in make()]


def _consistency(rows: CompanionRows, labels: Tensor, kept: Tensor) -> ClassStatistic:
    prototypes, parts = rows.corresponding.shape[1:]

    def finish(sums: Tensor, label: int) -> Tensor:
        hits, seen = sums.split((prototypes * parts, parts), dim=-1)
        counted = kept[label].double().unsqueeze(1)
        hits = hits.unflatten(-1, (prototypes, parts)) * counted
        return F.consistent_prototypes(hits, seen.unsqueeze(-2) * counted)

    columns = torch.cat((rows.corresponding.flatten(1), rows.seen), dim=1)
    return ClassStatistic("consistency", columns, labels, len(kept), finish)


def _stability(rows: CompanionRows, labels: Tensor, kept: Tensor) -> ClassStatistic:
    shown = rows.seen.amax(1, keepdim=True)  # an image without visible part asks nothing

    def finish(sums: Tensor, label: int) -> Tensor:
        return (sums[..., :-1] / sums[..., -1:]).where(kept[label], torch.nan)

    return ClassStatistic("stability", torch.cat((rows.stable * shown, shown), dim=1), labels, len(kept), finish)


def _faithfulness(lost: Tensor) -> list[AnyStatistic]:
    own, other = lost.unbind(1)
    wins = (own > other).float().where(~own.isnan(), torch.nan)
    free = {"lowest": -torch.inf, "highest": torch.inf}
    return [
        mean("faithfulness", own - other, **free),
        mean("similarity_lost_region", own, **free),
        mean("similarity_lost_random", other, **free),
        mean("faithfulness_wins", wins),
    ]
