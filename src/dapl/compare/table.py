"""Train what is missing, measure all under one protocol, and make the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapl.compare.plan import Entry, in_order
from dapl.errors import DaplError
from dapl.evaluation.protocol import Protocol
from dapl.experiments import is_finished, mean_and_deviation, measured, over_seeds, run_or_resume
from dapl.run import Run, versions
from dapl.tables import Column, Row, write_tables

COLUMNS = (
    Column("name", "system"),
    Column("seeds"),
    Column("accuracy", "accuracy", percent=True),
    Column("coverage", "Coverage"),
    Column("precision"),
    Column("recall"),
    Column("diversity", "Diversity"),
    Column("redundancy"),
    Column("imbalance"),
    Column("region_background_share", "background"),
    Column("faithfulness", digits=2),
    Column("prototypes_kept", "prototypes", digits=0),
    Column("minutes", "minutes", digits=1),
)
"""Of which those are shown that some row has."""


def train_all(entries: Sequence[Entry], say=print) -> None:
    """Train or go on with every run that is not finished."""
    runs = in_order(entries)
    for number, planned in enumerate(runs, 1):
        if planned.made:
            if not is_finished(Run.open(planned.folder)):
                raise DaplError(f"{planned.folder}: the run is not finished; `dapl train --resume {planned.folder}`.")
            continue
        if not (planned.folder / "config.yaml").exists() or not is_finished(Run.open(planned.folder)):
            say(f"[{number}/{len(runs)}] {planned.folder}")
        run_or_resume(planned.config, planned.folder)


def rows_of(
    entries: Sequence[Entry], split: str, metrics: Sequence[str] | str | None, protocol: Protocol, say=print
) -> list[Row]:
    rows: list[Row] = []
    for entry in entries:
        found = []
        for planned in entry.runs:
            say(f"measuring {planned.folder} on {split}")
            run = Run.open(planned.folder)
            numbers = measured(run, split, metrics, protocol, planned.config)  # type: ignore[arg-type]
            found.append({**numbers, "minutes": minutes_of(run), **_kept(run)})
        rows.append({"name": entry.name, "system": entry.config.model.system, "seeds": len(found), **over_seeds(found)})
    return rows


def minutes_of(run: Run) -> float:
    """That training took, by the log; a resumed run counts what its stages say."""
    return sum(entry["seconds"] for entry in run.logged() if entry["event"] == "stage") / 60


def _kept(run: Run) -> dict[str, float]:
    records = run.read_prototypes()
    return {"prototypes_kept": float(sum(record["kept"] for record in records))} if records else {}


def against_black_box(rows: Sequence[Row]) -> list[str]:
    """What interpretability cost: accuracy of each row minus that of the black box, seed by seed where they pair up."""
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


def shown_columns(rows: Sequence[Row]) -> list[Column]:
    return [column for column in COLUMNS if any(row.get(column.name) is not None for row in rows)]


def write(out: Path, rows: Sequence[Row], entries: Sequence[Entry], split: str, protocol: Protocol) -> list[Path]:
    facts: dict[str, Any] = {
        "split": split,
        "protocol": protocol.to_json(),
        "data": json.loads(entries[0].config.data.model_dump_json(exclude={"root"})),
        "seeds": {entry.name: [planned.config.seed for planned in entry.runs] for entry in entries},
        "versions": versions(),
    }
    return write_tables(out, "compare", rows, shown_columns(rows), facts, protocol_text(entries, split, protocol))


def protocol_text(entries: Sequence[Entry], split: str, protocol: Protocol) -> str:
    """The sentence above a table: what the numbers were measured on, and how."""
    data = entries[0].config.data
    seeds = sorted({planned.config.seed for entry in entries for planned in entry.runs})
    return (
        f"{data.name}, {split} split, pictures of {data.image_size} pixels ({data.fit}); regions above percentile "
        f"{protocol.percentile:g}, τ {protocol.tau:g}, scope {protocol.scope}. "
        + (f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}." if len(seeds) > 1 else "One seed.")
    )
