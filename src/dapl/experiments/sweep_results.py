"""What came out of a sweep: the table, the best points, the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapl.common.tables import Column, Spread, print_table, write_tables
from dapl.experiments.comparison import portable_config
from dapl.experiments.many_runs import over_seeds
from dapl.experiments.sweep import Sweep
from dapl.experiments.sweep_space import Interval, Panel, Values, numbers_for, shown
from dapl.metrics.registry import NUMBERS
from dapl.runs.provenance import provenance
from dapl.runs.run import Run


@dataclass(frozen=True)
class Point:
    """A finished point: its values, and its numbers over seeds."""

    values: Values
    validation: dict[str, Spread]
    test: dict[str, Spread]
    runs: tuple[str, ...]
    is_best: bool


@dataclass(frozen=True)
class PanelResult:
    panel: Panel
    points: tuple[Point, ...]
    failures: tuple[tuple[Values, str], ...]
    total: int
    done: int
    running: int

    def is_complete(self) -> bool:
        return self.done >= self.total


def gather(sweep: Sweep, test: bool = False) -> list[PanelResult]:
    """What is finished so far; ``test`` measures the finished runs on test as well."""
    results = []
    for study in sweep.studies:
        best = set(study.best())
        points = tuple(
            Point(
                values,
                over_seeds(list(entry["validation"].values())),
                over_seeds(list(sweep.test_numbers(entry).values())) if test else {},
                tuple(entry["runs"].values()),
                number in best,
            )
            for number, values, entry in study.finished()
        )
        done, running = study.counts()
        results.append(PanelResult(study.panel, points, tuple(study.failures()), study.total(), done, running))
    return results


def columns_of(results: Sequence[PanelResult], names: Sequence[str], split: str) -> list[Column]:
    """The numbers of a split; those that no point has are left out."""
    points = [point for result in results for point in result.points]
    prefix = "" if split == "validation" else f"{split}_"
    return [
        Column(prefix + name, f"{prefix.replace('_', ' ')}{NUMBERS[name].heading}", percent=NUMBERS[name].percent)
        for name in names
        if any(name in getattr(point, split) for point in points)
    ]


def rows_of(result: PanelResult) -> list[dict[str, Any]]:
    rows = []
    for point in result.points:
        numbers = {**point.validation, **{f"test_{name}": spread for name, spread in point.test.items()}}
        rows.append({**point.values, **numbers, "runs": " ".join(point.runs), "best": "best" if point.is_best else ""})
    return rows


def print_results(results: Sequence[PanelResult], sweep: Sweep) -> None:
    names = tuple(dict.fromkeys(("accuracy", "coverage", "diversity", *(o.name for o in sweep.settings.objectives))))
    for result in results:
        fields = [Column(field, digits=None) for field in result.panel.fields()]
        for split in ("validation", "test"):
            if numbers := columns_of([result], names, split):
                columns = [*fields, *numbers, *([Column("best", " ")] if split == "validation" else [])]
                print_table(rows_of(result), columns, f"{result.panel.title}: {split}, {sweep.settings.over_seeds()}")
        for values, reason in result.failures:
            print(f"failed: {shown(values)}: {reason}")
        print(best_text(result, sweep))


def best_text(result: PanelResult, sweep: Sweep) -> str:
    """The best point, or the Pareto front, in a line or several."""
    objectives = sweep.settings.objectives
    best = [point for point in result.points if point.is_best]
    if not best:
        return "no point is finished yet"
    what = ", ".join(objective.text() for objective in objectives)
    tied = f", {len(best)} points are equal" if len(objectives) == 1 and len(best) > 1 else ""
    lines = [f"{'Pareto front' if len(objectives) > 1 else 'best'} on validation ({what}{tied}):"]
    for point in best:
        numbers = ", ".join(f"{o.name.replace('_', ' ')} {point.validation[o.name].mean:.3f}" for o in objectives)
        lines.append(f"  {shown(point.values)}: {numbers}")
    return "\n".join(lines)


def write_results(results: Sequence[PanelResult], sweep: Sweep, words: Sequence[str] = ()) -> list[Path]:
    """sweep.csv, sweep.json and sweep.md; the panels below each other, told apart by the column ``sweep``.

    ``words``: the arguments of the command.
    """
    names = numbers_for(sweep.settings.objectives)
    fields = dict.fromkeys(field for result in results for field in result.panel.fields())
    columns = [Column("sweep"), *(Column(field, digits=None) for field in fields)]
    columns += [column for split in ("validation", "test") for column in columns_of(results, names, split)]
    columns += [Column("runs"), Column("best")]
    rows = [{"sweep": result.panel.name, **row} for result in results for row in rows_of(result)]
    return write_tables(sweep.out, "sweep", rows, columns, _facts(results, sweep, words), _text(results, sweep))


def _facts(results: Sequence[PanelResult], sweep: Sweep, words: Sequence[str]) -> dict[str, Any]:
    settings = sweep.settings
    return {
        **provenance(words),
        "config": sweep.base.source,
        "configs": {"base": portable_config(sweep.config)},
        "images": _image_counts(results, sweep),
        "seeds": list(settings.seeds),
        "objectives": [{"name": o.name, "direction": "max" if o.maximise else "min"} for o in settings.objectives],
        "chosen_on": "validation",
        "sampler": "grid" if settings.trials is None else f"tpe, seed {settings.sampler_seed}",
        "protocol": settings.protocol.to_json(),
        "sweeps": {
            result.panel.name: {
                "title": result.panel.title,
                "fixed": result.panel.fixed,
                "fields": {d.field: _dimension(d) for d in result.panel.dimensions},
                "points": result.total,
                "finished": result.done,
                "failed": [{"values": values, "reason": reason} for values, reason in result.failures],
            }
            for result in results
        },
    }


def _image_counts(results: Sequence[PanelResult], sweep: Sweep) -> dict[str, int]:
    """The counts of the first run that is here; another machine may have them all."""
    folders = [sweep.out / name for result in results for point in result.points for name in point.runs]
    return next((Run.open(folder).image_counts() for folder in folders if folder.is_dir()), {})


def _dimension(dimension: Any) -> Any:
    if isinstance(dimension, Interval):
        return f"{'log' if dimension.log else 'uniform'}:{dimension.low}:{dimension.high}"
    return list(dimension.values)


def _text(results: Sequence[PanelResult], sweep: Sweep) -> str:
    lines = [
        f"# Sweep of {sweep.base.source}",
        "",
        f"Numbers are of the validation split, {sweep.settings.over_seeds()}. Best is chosen on validation. The config "
        "is base.yaml, each run is in the column `runs`.",
    ]
    if any(point.test for result in results for point in result.points):
        lines.append(
            "Columns that begin with `test` are of the test split, measured at the end; nothing is chosen by them."
        )
    for result in results:
        fixed = f" with {shown(result.panel.fixed)}" if result.panel.fixed else ""
        state = "" if result.is_complete() else f", {result.done} of {result.total} points so far"
        lines += ["", f"**{result.panel.name}**: {', '.join(result.panel.fields())}{fixed}{state}."]
        lines += ["", *(line.replace("  ", "- ") for line in best_text(result, sweep).split("\n"))]
        lines += [f"- failed: {shown(values)}: {reason}" for values, reason in result.failures]
    return "\n".join(lines)


def caption_of(sweep: Sweep, split: str) -> str:
    config = f"{Path(sweep.base.source).stem} ({sweep.config.data.name})"
    return f"{config}, {split} split, {sweep.settings.over_seeds()}"
