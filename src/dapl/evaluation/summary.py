"""From rows to numbers: which statistic each metric is, for all images, each class, each part and each τ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dapl.evaluation.numbers import (
    AnyStatistic,
    Number,
    Statistic,
    balanced_accuracy,
    calibration_error,
    coverage_of_rows,
    diversity_of_rows,
    mean,
    pooled_coverage,
    pooled_diversity,
    values,
    with_intervals,
)
from dapl.evaluation.passes import tried_thresholds
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.evaluation.rows import Answers, CompanionRows, Looks, companion_statistics


@dataclass(frozen=True)
class Measured:
    """The rows of an evaluation and what they are rows of."""

    answers: Answers | None
    """One row an image."""
    looks: Looks | None
    """One row an image, or a class in scope projection."""
    labels: Tensor
    """long n, of the images."""
    classes: Sequence[str]
    parts: Sequence[str]
    protocol: EvaluationProtocol
    names: frozenset[str]
    """The metrics to give."""
    companions: CompanionRows | None = None
    """One row an image."""
    kept: Tensor | None = None
    """bool C×M: which prototypes of each class count."""
    purity: Tensor | None = None
    """P, NaN where there is none."""
    fixed: dict[str, float] = field(default_factory=dict)
    """Numbers that are read off the model."""

    def row_labels(self) -> Tensor:
        """The class of each row of ``looks``."""
        return torch.arange(len(self.classes)) if self.protocol.scope == "projection" else self.labels


def answer_statistics(measured: Measured) -> list[AnyStatistic]:
    answers = measured.answers
    if answers is None:
        return []
    made = {
        "accuracy": lambda: mean("accuracy", answers.right),
        "balanced_accuracy": lambda: balanced_accuracy(answers.right, measured.labels, len(measured.classes)),
        "ece": lambda: calibration_error(answers.right, answers.confidence, measured.protocol.ece_bins),
        "cross_entropy": lambda: mean("cross_entropy", answers.cross_entropy, highest=torch.inf),
    }
    return [make() for name, make in made.items() if name in measured.names]


def look_statistics(measured: Measured) -> list[AnyStatistic]:
    looks, pooled = measured.looks, measured.protocol.scope == "dataset"
    if looks is None:
        return []
    found: list[AnyStatistic] = []
    if "coverage" in measured.names:
        found += _coverage(looks, _tau_index(measured.protocol), pooled)
    if "diversity" in measured.names:
        seen = looks.visible.bool()
        if pooled:
            found += pooled_diversity(looks.on_part, looks.iou_on_part, looks.visible)
        else:
            rows = diversity_of_rows(looks.on_part, looks.iou_on_part, seen)
            found += [mean(name, row) for name, row in rows.items()]
    for name, shares in (("background_bias", looks.bias), ("region_background_share", looks.region_share)):
        if name in measured.names:
            found.append(_share(name, shares, pooled))
    return found


def _coverage(looks: Looks, threshold: int, pooled: bool) -> list[Statistic]:
    counts = (looks.prototypes_hit[:, threshold], looks.kept, looks.parts_hit[:, threshold], looks.visible.sum(1))
    if pooled:
        return pooled_coverage(*counts)
    return [mean(name, rows) for name, rows in coverage_of_rows(*counts).items()]


def _share(name: str, shares: Tensor, pooled: bool) -> Statistic:
    """Mean over rows of the mean over prototypes, or over all (row, prototype). shares: n×M, NaN where none is."""
    if not pooled:
        return mean(name, shares.double().nanmean(1))
    columns = torch.stack((shares.double().nansum(1), (~shares.isnan()).sum(1)), dim=1).double()
    return Statistic(name, columns, lambda sums: sums[..., 0] / sums[..., 1])


def _tau_index(protocol: EvaluationProtocol) -> int:
    return int((tried_thresholds(protocol.tau) - protocol.tau).abs().argmin())


def numbers(measured: Measured) -> dict[str, Number]:
    protocol = measured.protocol
    purity: list[AnyStatistic] = [] if measured.purity is None else [mean("purity", measured.purity)]
    companions: list[AnyStatistic] = []
    if measured.companions is not None and measured.kept is not None:
        companions = companion_statistics(measured.companions, measured.labels, measured.kept, measured.names)
    found: dict[str, Number] = {}
    for statistics in (answer_statistics(measured), look_statistics(measured), companions, purity):
        found |= with_intervals(statistics, protocol.resamples, protocol.seed)
    return found | {name: Number(value) for name, value in measured.fixed.items()}


def per_class(measured: Measured) -> dict[str, list[float]]:
    """One value a class for each column; NaN where there is none."""
    classes = len(measured.classes)
    by_image = torch.nn.functional.one_hot(measured.labels, classes).T.double()
    by_row = torch.nn.functional.one_hot(measured.row_labels(), classes).T.double()
    answers = [s for s in answer_statistics(measured) if s.name in ("accuracy", "cross_entropy")]
    columns = {"images": by_image.sum(1)}
    columns |= values(answers, by_image)
    looks = look_statistics(measured)
    if measured.looks is not None and any(s.name in ("coverage", "diversity") for s in looks):
        columns["rows_with_parts"] = by_row @ measured.looks.visible.any(1).double()
    columns |= values(looks, by_row)
    return {name: column.tolist() for name, column in columns.items()}


def per_part(measured: Measured) -> dict[str, list[float]]:
    """One value a part for each column; NaN where a part was never visible."""
    looks = measured.looks
    assert looks is not None
    seen, on_part = looks.visible.double().sum(0), looks.on_part.double()
    pairs = (on_part * (on_part - 1) / 2).sum(0)
    shares = (looks.head_on_part / looks.head_seen).nan_to_num(-1.0)
    best_share, best = shares.max(1)
    columns = {
        "rows": seen,
        "recall": (on_part > 0).double().sum(0) / seen,
        "prototypes": on_part.sum(0) / seen,
        "redundancy": looks.iou_on_part.double().sum(0) / pairs,
        "best_head": best.double().where(best_share > 0, torch.nan),
        "best_head_share": best_share.double().where(best_share >= 0, torch.nan),
    }
    return {name: column.tolist() for name, column in columns.items()}


def coverage_curves(measured: Measured) -> dict[str, list[float]]:
    """Coverage with its interval, precision and recall at each τ that was tried."""
    looks, protocol = measured.looks, measured.protocol
    assert looks is not None
    thresholds = tried_thresholds(protocol.tau)
    curves: dict[str, list[float]] = {"tau": [round(t, 6) for t in thresholds.tolist()]}
    for name in ("coverage", "low", "high", "precision", "recall"):
        curves[name] = []
    renamed = [
        Statistic(f"{s.name} {index}", s.columns, s.finish)
        for index in range(len(thresholds))
        for s in _coverage(looks, index, protocol.scope == "dataset")
    ]
    found = with_intervals(renamed, protocol.resamples, protocol.seed)
    for index in range(len(thresholds)):
        for name in ("coverage", "precision", "recall"):
            curves[name].append(found[f"{name} {index}"].value)
        curves["low"].append(found[f"coverage {index}"].low)
        curves["high"].append(found[f"coverage {index}"].high)
    return curves
