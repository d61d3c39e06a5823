"""How `evaluate` gets the numbers of each metric: what is kept of every batch, and what is made of all rows.

Numbers, intervals, tables by class and by part, and curves are arithmetic on `Rows`, by the formulas of
`dapl.metrics.functional`. `MEASURES` has one entry per metric of `dapl.metrics.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dapl.common.seeds import generator
from dapl.evaluation.measurements import Measurements
from dapl.evaluation.statistics import (
    AnyStatistic,
    ClassStatistic,
    Number,
    Statistic,
    balanced_accuracy,
    calibration_error,
    intervals,
    mean,
    ratio,
    values,
    with_intervals,
)
from dapl.evaluation.views import ATTACK_COLUMNS, BOX, BatchView, scaled
from dapl.metrics import functional as F
from dapl.metrics.registry import METRICS, NUMBERS, metric

Columns = Mapping[str, Tensor | None]


def _nothing(view: Any) -> Columns:
    return {}


@dataclass(frozen=True)
class Measure:
    """What one metric keeps of every batch, and what is made of it."""

    statistics: Callable[[Measurements], list[AnyStatistic]]
    keep: Callable[[Any], Columns] = _nothing
    """Columns B×… of a `BatchView` (of a `ModelView` where the metric needs the model); None where the data is silent.
    Several metrics may name the same column."""


# --- answers -------------------------------------------------------------------------------------------------------


def _answers(view: BatchView) -> Columns:
    logs = view.logits.float().log_softmax(1)
    highest, predicted = logs.max(1)
    return {
        "predicted": predicted,
        "right": (predicted == view.labels).float(),
        "confidence": highest.exp(),
        "cross_entropy": -logs.gather(1, view.labels.unsqueeze(1)).squeeze(1),
    }


def _balanced_accuracy(m: Measurements) -> list[AnyStatistic]:
    return [balanced_accuracy(m.images["right"], m.labels, len(m.classes))]


def _calibration_error(m: Measurements) -> list[AnyStatistic]:
    return [calibration_error(m.images["right"], m.images["confidence"], m.protocol.ece_bins)]


# --- parts ---------------------------------------------------------------------------------------------------------


def _on_parts(view: BatchView) -> Columns:
    return {"kept": view.kept, "overlap": view.overlap, "visible": view.visible, "part_areas": view.part_areas}


def _of_counts(
    m: Measurements, counts: Tensor, terms: Callable[[Tensor], dict[str, Tensor]], biased: bool = False
) -> list[AnyStatistic]:
    """The terms of each row's counts (n×…), averaged over rows; in scope dataset those of all counts added up."""
    if not m.pooled:
        return [mean(**terms(counts))]
    shape = counts.shape[1:]
    return [Statistic(counts.flatten(1), lambda sums: terms(sums.unflatten(-1, shape)), biased=biased)]


def _coverage_counts(m: Measurements, tau: float | None = None, column: str = "overlap") -> Tensor:
    return F.coverage_counts(m.assigned(tau, column), m.scoped["visible"], m.scoped["kept"]).double()


def _coverage(m: Measurements) -> list[AnyStatistic]:
    return _of_counts(m, _coverage_counts(m), lambda counts: F.coverage_terms(counts)._asdict())


def _diversity_counts(m: Measurements, ious: str = "ious", overlap: str = "overlap") -> Tensor:
    rows = m.scoped
    return F.diversity_counts(rows[ious], m.assigned(column=overlap), rows["visible"], rows["kept"]).double()


def _diversity(m: Measurements) -> list[AnyStatistic]:
    return _of_counts(m, _diversity_counts(m), lambda counts: F.diversity_terms(counts)._asdict(), biased=True)


def _one_to_one(m: Measurements) -> list[AnyStatistic]:
    counts = F.matched_counts(m.assigned(), m.scoped["visible"], m.scoped["kept"]).double()
    return _of_counts(m, counts, lambda counts: {"one_to_one_coverage": F.matched_share(counts)})


def _parts_per_prototype(m: Measurements) -> list[AnyStatistic]:
    counts = F.assigned_counts(m.assigned(), m.scoped["visible"], m.scoped["kept"]).double()
    return _of_counts(m, counts, lambda counts: {"parts_per_prototype": counts[..., 0] / counts[..., 1]})


def _islands_on_parts(view: BatchView) -> Columns:
    return {"kept": view.kept, "island_overlap": view.island_overlap, "visible": view.visible}


def _island_coverage(m: Measurements) -> list[AnyStatistic]:
    counts = _coverage_counts(m, column="island_overlap")
    return _of_counts(m, counts, lambda counts: {"island_coverage": F.coverage_terms(counts).coverage})


def _island_diversity(m: Measurements) -> list[AnyStatistic]:
    counts = _diversity_counts(m, "island_ious", "island_overlap")
    return _of_counts(m, counts, lambda counts: {"island_diversity": F.diversity_terms(counts).diversity}, biased=True)


# --- the object ----------------------------------------------------------------------------------------------------


def _share(name: str, column: str) -> Callable[[Measurements], list[AnyStatistic]]:
    """Mean over rows of the mean over prototypes; over all (row, prototype) in scope dataset."""

    def statistics(m: Measurements) -> list[AnyStatistic]:
        shares = m.scoped[column].double()
        return [ratio(name, F.share_counts(shares)) if m.pooled else mean(**{name: shares.nanmean(1)})]

    return statistics


def _bias(view: BatchView) -> Columns:
    return {"kept": view.kept, "bias": view.bias, "negative": _negative(view)}


def _negative(view: BatchView) -> Tensor:
    return torch.full((len(view.indices),), view.has_negative)


def _object_overlap(view: BatchView) -> Columns:
    masks = view.truth.masks
    if masks is None:
        return {}
    return {"object_overlap": F.object_overlap(view.region_sets, masks.bool(), view.kept).double().nanmean(1)}


def _oirr(view: BatchView) -> Columns:
    if view.foreground is None:
        return {}
    counts = torch.zeros(len(view.indices), 3, dtype=torch.float64)
    if not view.has_negative:
        counts = F.oirr_counts(F.outside_inside_relevance_ratio(view.maps, view.foreground, view.kept))
    return {"oirr": counts, "negative": _negative(view)}


# --- the explanation as a whole ------------------------------------------------------------------------------------


def _distinctiveness(view: BatchView) -> Columns:
    return {"distinctiveness": F.distinctiveness(view.drawn_peaks, 2 * scaled(BOX, view.size), view.shown)}


def _comprehensiveness(view: BatchView) -> Columns:
    if view.truth.masks is None:
        return {}
    maps, size = view.drawn_maps
    return {"comprehensiveness": F.comprehensiveness(maps, view.truth.masks.bool(), size, kept=view.shown)}


# --- the same part in every image ----------------------------------------------------------------------------------


def _corresponding(view: BatchView) -> Columns:
    if view.corresponding is None:
        return {}
    return dict(zip(("corresponding", "seen"), view.corresponding, strict=True))


def _consistency(m: Measurements) -> list[AnyStatistic]:
    corresponding, seen = m.images["corresponding"], m.images["seen"]
    prototypes, parts = corresponding.shape[1:]

    def finish(sums: Tensor, label: int) -> Tensor:
        hits, seen = sums.split((prototypes * parts, parts), dim=-1)
        counted = m.kept[label].double().unsqueeze(1)
        hits = hits.unflatten(-1, (prototypes, parts)) * counted
        return F.consistent_prototypes(hits, seen.unsqueeze(-2) * counted)

    columns = torch.cat((corresponding.flatten(1), seen), dim=1)
    return [ClassStatistic("consistency", columns, m.labels, len(m.kept), finish)]


def _stable(view: Any) -> Columns:
    if view.corresponding is None:
        return {}
    corresponding, seen = view.corresponding
    return {"stable": F.unchanged_parts(corresponding, view.corresponding_with_noise, seen), "shown": seen.any(1)}


def _stability(m: Measurements) -> list[AnyStatistic]:
    def finish(sums: Tensor, label: int) -> Tensor:
        return F.stable_shares(sums[..., :-1], sums[..., -1:]).where(m.kept[label], torch.nan)

    columns = torch.cat((m.images["stable"], m.images["shown"].unsqueeze(1)), dim=1)
    return [ClassStatistic("stability", columns, m.labels, len(m.kept), finish)]


RENAMINGS = 10
"""Random renamings of prototypes that the null of part identity is the mean of."""


def _part_identity(m: Measurements) -> list[AnyStatistic]:
    """Left and right merged and apart, each with its null."""
    hits, visible, kept = m.images["peak_parts"], m.images["visible"], m.images["kept"]
    generators = [generator(m.protocol.seed, "renamed", index) for index in range(len(hits))]
    nulls = torch.stack([F.renamed(hits, generators, kept) for _ in range(RENAMINGS)], dim=1)
    _, groups = F.merge_left_right(list(m.part_names or m.parts))
    found: list[AnyStatistic] = []
    for name, merge in (("part_identity", True), ("part_identity_sides", False)):
        tables = [F.merge_parts(flags, groups) if merge else flags for flags in (hits.unsqueeze(1), nulls, visible)]
        found.append(_identity(m, name, tables[0], tables[2], with_interval=True))
        found.append(_identity(m, f"{name}_null", tables[1], tables[2], with_interval=False))
    return found


def _identity(m: Measurements, name: str, hits: Tensor, visible: Tensor, with_interval: bool) -> ClassStatistic:
    """hits: bool n×D×M×K, of which the mean over the D draws is taken; visible: bool n×K."""
    draws, parts = hits.shape[1:], visible.shape[1]

    def finish(sums: Tensor, label: int) -> Tensor:
        on_part, seen = sums[..., :-parts].unflatten(-1, draws), sums[..., -parts:]
        seen = seen.unsqueeze(1).expand(-1, draws[0], -1)
        return F.class_identity(on_part, seen, m.kept[label]).mean(1, keepdim=True)

    columns = torch.cat((hits.flatten(1), visible), dim=1)
    return ClassStatistic(name, columns, m.labels, len(m.kept), finish, with_interval=with_interval)


# --- what the model shows of itself --------------------------------------------------------------------------------


def _faithfulness(m: Measurements) -> list[AnyStatistic]:
    names = {
        "faithfulness": "difference",
        "similarity_lost_region": "region",
        "similarity_lost_random": "random",
        "faithfulness_wins": "wins",
        "own_share": "own_share",
    }

    def finish(sums: Tensor) -> dict[str, Tensor]:
        losses, matched = sums[..., :-1], sums[..., -1]
        found = F.similarity_loss(losses)
        return {name: getattr(found, term) for name, term in names.items()} | {
            "control_matched": matched / losses[..., F.LOSS_CASES]
        }

    columns = torch.cat((m.images["similarity_losses"], m.images["control_matched"].unsqueeze(1)), dim=1)
    return [Statistic(columns, finish)]


def _misalignment(m: Measurements) -> list[AnyStatistic]:
    return [mean(**{name: m.images[name] for name in ATTACK_COLUMNS})]


MEASURES: dict[str, Measure] = {
    "accuracy": Measure(lambda m: [mean(accuracy=m.images["right"])], _answers),
    "balanced_accuracy": Measure(_balanced_accuracy, _answers),
    "ece": Measure(_calibration_error, _answers),
    "cross_entropy": Measure(lambda m: [mean(cross_entropy=m.images["cross_entropy"])], _answers),
    "coverage": Measure(_coverage, _on_parts),
    # The heads' overlap needs no annotation, so it is kept wherever Diversity is asked for.
    "diversity": Measure(
        _diversity, lambda view: {**_on_parts(view), "ious": view.ious, **view.as_drawn("overlap", "ious")}
    ),
    "one_to_one_coverage": Measure(_one_to_one, _on_parts),
    "parts_per_prototype": Measure(_parts_per_prototype, _on_parts),
    "islands": Measure(_share("islands", "islands"), lambda view: {"kept": view.kept, "islands": view.island_numbers}),
    "island_coverage": Measure(_island_coverage, _islands_on_parts),
    "island_diversity": Measure(
        _island_diversity, lambda view: {**_islands_on_parts(view), "island_ious": view.island_ious}
    ),
    "part_identity": Measure(
        _part_identity, lambda view: {"kept": view.kept, "visible": view.visible, "peak_parts": view.peak_parts}
    ),
    "background_bias": Measure(_share("background_bias", "bias"), _bias),
    "region_background_share": Measure(
        _share("region_background_share", "region_share"),
        lambda view: {"kept": view.kept, "region_share": view.region_share, **view.as_drawn("region_share")},
    ),
    "object_overlap": Measure(lambda m: [mean(object_overlap=m.images["object_overlap"])], _object_overlap),
    "oirr": Measure(lambda m: [ratio("oirr", m.images["oirr"])], _oirr),
    "distinctiveness": Measure(lambda m: [mean(distinctiveness=m.images["distinctiveness"])], _distinctiveness),
    "comprehensiveness": Measure(lambda m: [mean(comprehensiveness=m.images["comprehensiveness"])], _comprehensiveness),
    "consistency": Measure(_consistency, _corresponding),
    "stability": Measure(_stability, _stable),
    "purity": Measure(lambda m: [mean(purity=m.once["purity"])]),
    "spatial_misalignment": Measure(_misalignment, lambda view: view.misalignment),
    "faithfulness": Measure(_faithfulness, lambda view: view.similarity_losses),
    "sparsity": Measure(
        lambda m: [mean(explanation_size=m.images["explanation_size"])],
        lambda view: {"explanation_size": F.explanation_size(view.contributions).double()},
    ),
    "prototypes": Measure(lambda m: []),
}


# --- numbers, tables and curves ------------------------------------------------------------------------------------


def numbers(m: Measurements) -> dict[str, Number]:
    """Every number of the metrics, with its interval, in the order of the registry."""
    statistics = [one for name in m.names for one in MEASURES[name].statistics(m)]
    found = with_intervals(statistics, m.protocol.resamples, m.protocol.seed)
    found |= {name: Number(value.item()) for name, value in m.once.items() if value.ndim == 0}
    return {name: found[name] for name in NUMBERS if name in found}


def per_class(m: Measurements) -> dict[str, list[float]]:
    """One value per class for each column; NaN where there is none."""
    by_image, by_row = (
        torch.nn.functional.one_hot(labels, len(m.classes)).T.double() for labels in (m.labels, m.row_labels())
    )
    columns = {"images": by_image.sum(1)}
    for name in ("accuracy", "cross_entropy"):
        if name in m.names:
            columns |= values(MEASURES[name].statistics(m), by_image)
    scoped = [metric.name for metric in METRICS if metric.scoped and metric.name in m.names]
    if any("parts" in metric(name).needs for name in scoped):
        columns["rows_with_parts"] = by_row @ m.scoped["visible"].any(1).double()
    for name in scoped:
        columns |= values(MEASURES[name].statistics(m), by_row)
    return {name: column.tolist() for name, column in columns.items()}


def per_part(m: Measurements) -> dict[str, list[float]]:
    """One value per part for each column; NaN where a part was never visible."""
    assigned, visible, kept = m.assigned(), m.scoped["visible"], m.scoped["kept"]
    seen, on_part = visible.double().sum(0), assigned.sum(1).double()
    best_share, best = m.heads_on_parts().nan_to_num(-1.0).max(1)
    columns = {"rows": seen, "recall": (on_part > 0).double().sum(0) / seen, "prototypes": on_part.sum(0) / seen}
    if "ious" in m.scoped:
        ious, pairs, _, _ = F.diversity_counts(m.scoped["ious"], assigned, visible, kept).double().sum(0)
        columns["redundancy"] = ious / pairs
    columns["best_head"] = best.double().where(best_share > 0, torch.nan)
    columns["best_head_share"] = best_share.double().where(best_share >= 0, torch.nan)
    return {name: column.tolist() for name, column in columns.items()}


def coverage_curves(m: Measurements) -> dict[str, list[float]]:
    """Coverage with its interval, precision and recall at τ = 0.05, 0.10 … 0.95 and at the protocol's own."""
    thresholds = sorted({round(0.05 * step, 2) for step in range(1, 20)} | {m.protocol.tau})
    counts = torch.stack([_coverage_counts(m, tau) for tau in thresholds], dim=1)  # n×T×4
    if m.pooled:
        columns, shape = counts.flatten(1), (len(thresholds), 4)
        statistic = Statistic(columns, lambda sums: F.coverage_terms(sums.unflatten(-1, shape))._asdict())
    else:
        terms = F.coverage_terms(counts)  # each n×T, all NaN in the same rows
        has = ~terms.coverage[:, :1].isnan()
        columns = torch.cat([*(term.nan_to_num(0.0) for term in terms), has], dim=1)

        def finish(sums: Tensor) -> dict[str, Tensor]:
            means = sums[..., :-1] / sums[..., -1:]
            return dict(zip(terms._fields, means.chunk(3, dim=-1), strict=True))

        statistic = Statistic(columns, finish)
    found = intervals([statistic], m.protocol.resamples, m.protocol.seed)
    coverage, low, high = found["coverage"]
    curves = {"coverage": coverage, "low": low, "high": high, "precision": found["precision"][0]}
    curves["recall"] = found["recall"][0]
    return {"tau": [round(tau, 6) for tau in thresholds]} | {name: curve.tolist() for name, curve in curves.items()}
