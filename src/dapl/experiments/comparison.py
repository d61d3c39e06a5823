"""A comparison: systems with one run per seed; what is missing is trained, all are measured under one protocol.

Importing it imports no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

import yaml

from dapl.common.errors import DaplError
from dapl.common.tables import Column, Row, mean_and_deviation, write_tables
from dapl.config import Config, load_config
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.evaluation.result import region_text
from dapl.experiments.many_runs import (
    differences,
    evaluation_of,
    is_being_trained,
    is_finished,
    measured,
    over_seeds,
    run_or_leave,
)
from dapl.metrics.registry import HEADLINES, NUMBERS, chosen, given_by
from dapl.models.weight_sources import notice
from dapl.runs.provenance import provenance
from dapl.runs.run import Run, open_run

if TYPE_CHECKING:
    from dapl.evaluation.result import Chance

CHANCE = "chance"
"""The system of rows that no model made."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a row."""

    folder: Path
    config: Config
    given: bool = False
    """It was named as a run and is taken as it is; otherwise it is trained where it is missing."""


@dataclass
class ComparedSystem:
    """One row of the table: a config, and its runs by seed."""

    name: str
    runs: list[PlannedRun] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return self.runs[0].config


def plan(
    sources: Sequence[Path], out: Path, seeds: Sequence[int], overrides: Mapping[str, Any]
) -> list[ComparedSystem]:
    """Rows in the order of the arguments. Runs whose configs differ in the seed alone are one row.

    A config whose ``start`` names another config of the comparison (by its file name without ending) starts from that
    one's run of the same seed.
    """
    if not sources:
        raise DaplError("dapl compare needs runs or configs, e.g. `dapl compare configs/cub20/*.yaml`.")
    systems: list[ComparedSystem] = []
    stems = [path.stem for path in sources if not path.is_dir()]
    for stem in stems:
        if stems.count(stem) > 1:
            raise DaplError(f"two configs are called {stem}, and their runs would be one; rename one of the files.")
    for path in sources:
        if path.is_dir():
            _add_run(systems, path)
        else:
            runs = [_of_config(path, out, seed, stems, overrides) for seed in seeds]
            systems.append(ComparedSystem(path.stem, runs))
    check_same_data(systems)
    return systems


def _add_run(systems: list[ComparedSystem], folder: Path) -> None:
    _, config = open_run(folder)
    planned = PlannedRun(folder, config, given=True)
    for system in systems:
        if not differences(system.config.model_copy(update={"seed": config.seed}), config):
            system.runs.append(planned)
            return
    systems.append(ComparedSystem(folder.name, [planned]))


def _of_config(path: Path, out: Path, seed: int, stems: Sequence[str], overrides: Mapping[str, Any]) -> PlannedRun:
    config = load_config(path, {**overrides, "seed": seed})
    if config.start is not None and config.start in stems:
        if config.start == path.stem:
            raise DaplError(f"{path}: start: names this config itself.")
        config = config.model_copy(update={"start": str(run_folder(out, config.start, seed))})
    return PlannedRun(run_folder(out, path.stem, seed), config)


def run_folder(out: Path, name: str, seed: int) -> Path:
    return out / "runs" / f"{name}-seed{seed}"


def in_order(systems: Sequence[ComparedSystem]) -> list[PlannedRun]:
    """Every run, those that others start from before these."""
    waiting = [planned for system in systems for planned in system.runs]
    ordered: list[PlannedRun] = []
    folders = {str(planned.folder) for planned in waiting}
    while waiting:
        done = {str(planned.folder) for planned in ordered}
        ready = [p for p in waiting if p.config.start not in folders or p.config.start in done]
        if not ready:
            raise DaplError(f"start: {waiting[0].folder.name} and what it starts from wait for each other.")
        ordered += ready
        waiting = [planned for planned in waiting if planned not in ready]
    return ordered


def check_same_data(systems: Sequence[ComparedSystem]) -> None:
    """Numbers on different images cannot stand in one table."""
    first = systems[0].config.data.model_dump(mode="json")
    for system in systems[1:]:
        other = system.config.data.model_dump(mode="json")
        for name in dict.fromkeys((*first, *other)):
            if first.get(name) != other.get(name) and name not in ("image_size", "fit"):
                raise DaplError(
                    f"{system.name} is on other data than {systems[0].name}: data.{name} is {other.get(name)} there "
                    f"and {first.get(name)} here; a table needs the same images."
                )


def train_all(systems: Sequence[ComparedSystem], say=print, pause: float = 1.0) -> None:
    """Train or go on with every run that is not finished. Several processes in one folder share them out.

    A run that another process trains is left to it; should that one be killed, whoever looks next goes on with it.
    """
    runs = in_order(systems)
    numbers = {planned.folder: number for number, planned in enumerate(runs, 1)}
    for planned in runs:
        if planned.given and not is_finished(Run.open(planned.folder)):
            raise DaplError(f"{planned.folder}: the run is not finished; `dapl train --resume {planned.folder}`.")
    waiting = [planned for planned in runs if not planned.given]
    while waiting:
        unfinished = {str(planned.folder) for planned in waiting}
        ready = [planned for planned in waiting if planned.config.start not in unfinished]
        done = next((planned for planned in ready if _trained(planned, numbers[planned.folder], len(runs), say)), None)
        if done is None:
            time.sleep(pause)  # others train all that is left
        else:
            waiting.remove(done)


def _trained(planned: PlannedRun, number: int, count: int, say) -> bool:
    """Whether the run is finished now; False where another process has it."""
    there = (planned.folder / "config.yaml").exists() and is_finished(Run.open(planned.folder))
    if not there and not is_being_trained(planned.folder):
        say(f"[{number}/{count}] {planned.folder}")
    return run_or_leave(planned.config, planned.folder) is not None


def rows_of(
    systems: Sequence[ComparedSystem],
    split: str,
    metrics: Sequence[str] | str | None,
    protocol: EvaluationProtocol,
    say=print,
) -> list[Row]:
    rows: list[Row] = []
    for system in systems:
        found = []
        for planned in system.runs:
            say(f"measuring {planned.folder} on {split}")
            run = Run.open(planned.folder)
            numbers = measured(run, split, metrics, protocol, planned.config)  # type: ignore[arg-type]
            records = run.read_prototypes()
            kept = {"prototypes_kept": float(sum(record["kept"] for record in records))} if records else {}
            found.append({**numbers, "minutes": minutes_of(run), **kept})
        kind = system.config.model.system
        rows.append({"name": system.name, "system": kind, "seeds": len(found), **over_seeds(found)})
    return rows


def chance_on(systems: Sequence[ComparedSystem], split: str, protocol: EvaluationProtocol, say=print) -> Chance | None:
    """What trivial maps get on the images of the comparison; None where no system has prototypes.

    There are as many maps per class as the systems have prototypes on the whole (the median).
    """
    from dapl.evaluation.chance import chance

    counts = []
    for system in systems:
        run = Run.open(system.runs[0].folder)
        kept = [record for record in run.read_prototypes() if record["kept"]]
        if kept:
            counts.append(round(sum(len(record["classes"]) for record in kept) / len(run.class_names())))
    if not counts:
        return None
    say(f"measuring chance on {split}")
    return chance(systems[0].config, protocol, split, max(1, median_low(counts)), quiet=True)  # type: ignore[arg-type]


def chance_rows(found: Chance | None) -> list[Row]:
    """The rows below the systems; they have the numbers that no model is needed for.

    >>> from dapl.evaluation.result import Chance
    >>> chance_rows(Chance(10, {"constant maps": {"coverage": 0.0}}))
    [{'name': 'chance: constant maps', 'system': 'chance', 'coverage': 0.0}]
    """
    rows = {} if found is None else found.rows
    return [{"name": f"{CHANCE}: {name}", "system": CHANCE, **numbers} for name, numbers in rows.items()]


def minutes_of(run: Run) -> float:
    """How long training took, by the log; a resumed run counts what its stages say."""
    return sum(line["seconds"] for line in run.logged() if line["event"] == "stage") / 60


def against_black_box(rows: Sequence[Row]) -> list[str]:
    """What interpretability cost: accuracy of each row minus that of the black box, seed by seed where they pair up."""
    rows = [row for row in rows if "accuracy" in row]
    base = next((row for row in rows if row["system"] == "blackbox"), None)
    if base is None:
        return []
    lines = []
    for row in rows:
        if row is base:
            continue
        theirs, ours = base["accuracy"].values, row["accuracy"].values
        if len(theirs) == len(ours):
            spread = mean_and_deviation([a - b for a, b in zip(ours, theirs, strict=True)])
        else:
            spread = mean_and_deviation([row["accuracy"].mean - base["accuracy"].mean])
        deviation = "" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}"
        lines.append(f"{row['name']}: {100 * spread.mean:+.1f}{deviation} points against the black box")
    return lines


def shown_columns(rows: Sequence[Row], metrics: Sequence[str] | str | None = None) -> list[Column]:
    """The main numbers, and all numbers of the metrics that were asked for by name, where some row has them."""
    asked = frozenset() if metrics is None else chosen(metrics)
    columns = [Column("name", "system"), Column("seeds")]
    for number in NUMBERS.values():
        if number.column or given_by(number.name).name in asked:
            columns.append(Column(number.name, number.column or number.heading, percent=number.percent))
    columns += [Column("prototypes_kept", "prototypes", digits=0), Column("minutes", digits=1)]
    return [column for column in columns if any(row.get(column.name) is not None for row in rows)]


def narrow_columns(columns: Sequence[Column], metrics: Sequence[str] | str | None = None) -> list[Column]:
    """The columns of a table that fit a terminal of 80 characters: the headlines, and what was asked for by name.

    >>> [column.name for column in narrow_columns([Column("name"), Column("accuracy"), Column("recall")])]
    ['name', 'accuracy']
    """
    asked = frozenset() if metrics in (None, "all") else chosen(metrics)
    kept = {"name", *HEADLINES}
    return [column for column in columns if column.name in kept | asked]


def notices(systems: Sequence[ComparedSystem]) -> list[str]:
    """What must be said beside the accuracies of the table, with the rows that it is about."""
    names: dict[str, list[str]] = {}
    for system in systems:
        said = notice(system.config.model.backbone.weights, system.config.data.name)
        if said is not None:
            names.setdefault(said, []).append(system.name)
    return [f"accuracy of {', '.join(rows)}: {said}" for said, rows in names.items()]


def write(
    out: Path,
    rows: Sequence[Row],
    columns: Sequence[Column],
    systems: Sequence[ComparedSystem],
    split: str,
    protocol: EvaluationProtocol,
    words: Sequence[str] = (),
    chance: Chance | None = None,
) -> list[Path]:
    """compare.csv, compare.json and compare.md in the folder ``out``; ``words``: the arguments of the command.

    In the tables the rows of ``chance`` stand below the systems; JSON has them under a key of their own.
    """
    facts: dict[str, Any] = {
        **provenance(words),
        "split": split,
        "protocol": protocol.to_json(),
        "data": json.loads(systems[0].config.data.model_dump_json(exclude={"root"})),
        "images": Run.open(systems[0].runs[0].folder).image_counts(),
        "seeds": {system.name: [planned.config.seed for planned in system.runs] for system in systems},
        "notices": notices(systems),
        "configs": {system.name: portable_config(system.config) for system in systems},
        "runs": [run_facts(system.name, planned, split, protocol) for system in systems for planned in system.runs],
    }
    text = protocol_text(systems, split, protocol)
    if chance is not None:
        facts["chance"] = chance.to_json()
        text += f"\n\nBelow the systems: what trivial maps get, {chance.prototypes} per class and without any model."
    return write_tables(out, "compare", rows, columns, facts, text, below=chance_rows(chance))


_OF_ONE_MACHINE: dict[str, Any] = {
    "data": {"root"},
    "model": {"backbone": {"weights_folder"}},
    "cache": True,
    "runtime": True,
    "seed": True,
}


def portable_config(config: Config) -> str:
    """The resolved config as YAML without what is of one machine or run: folders, caches, runtime, seed.

    >>> text = portable_config(load_config(None, {"data.name": "cub", "data.root": "/somewhere", "seed": 3}))
    >>> "name: cub" in text, "somewhere" in text, "seed: 3" in text
    (True, False, False)
    """
    values = config.model_dump(mode="json", exclude=_OF_ONE_MACHINE)
    if values.get("start") is not None:
        values["start"] = Path(values["start"]).name
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def run_facts(name: str, planned: PlannedRun, split: str, protocol: EvaluationProtocol) -> dict[str, Any]:
    """One run of a row: its numbers with their intervals, and what it was trained on."""
    run = Run.open(planned.folder)
    evaluation = evaluation_of(run, split, (), protocol, planned.config)  # type: ignore[arg-type]
    return {
        "name": name,
        "seed": planned.config.seed,
        "numbers": evaluation["numbers"],
        "prototypes": evaluation["prototypes"],
        "missing": evaluation["missing"],
        "minutes": minutes_of(run),
        "trained": run.environment(),
    }


def protocol_text(systems: Sequence[ComparedSystem], split: str, protocol: EvaluationProtocol) -> str:
    """The sentence above a table: what the numbers were measured on, and how."""
    data = systems[0].config.data
    seeds = sorted({planned.config.seed for system in systems for planned in system.runs})
    said = "".join(f"\n\n{line[0].upper()}{line[1:]}." for line in notices(systems))
    return (
        f"{data.name}, {split} split, images of {data.image_size} pixels ({data.fit}); "
        f"{region_text(protocol.to_json())}, τ {protocol.tau:g}, scope {protocol.scope}. "
        + (f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}." if len(seeds) > 1 else "One seed.")
        + said
    )
