"""The files of an evaluation: metrics.json, tables by class and by part as CSV, and the plots."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dapl.common.files import json_text, remove, replacing
from dapl.common.reading import read_text
from dapl.evaluation.measurements import Measurements
from dapl.evaluation.measures import per_class, per_part
from dapl.evaluation.plots import draw_all
from dapl.evaluation.protocol import Place, Result, add_result, changed_fields
from dapl.evaluation.result import Evaluation

PLOTS = ("parts_heads.png", "coverage_tau.png", "redundancy.png", "background_bias.png")
_WHOLE = ("images", "rows", "rows_with_parts", "best_head")
"""Columns that count things."""


def write_files(
    numbers: Path, folder: Path, result: Evaluation, measured: Measurements, before: Result | None = None
) -> Place:
    """``numbers`` as JSON, tables and plots in ``folder``, beside what is known already; says what became of them.

    ``before`` is what metrics.json holds; without it the result takes the place of whatever is there. Less never
    replaces more: the results of another protocol have tables and plots in a folder of their own below ``folder``.
    All of them are written before the first takes its place: where the disk is full, those of before are still whole.
    """
    known, place = add_result(before or {}, result.to_json())
    own = folder / _folder_name(result.protocol, known["protocol"]) if place == "beside" else folder
    tables = {"per_class.csv": csv_text("class", measured.classes, per_class(measured))}
    if measured.parts:
        tables["per_part.csv"] = csv_text("part", measured.parts, per_part(measured))
    with ExitStack() as stack:
        drawn = draw_all(own, result, measured, stack)
        for name, text in tables.items():
            text = with_columns_of(own / name, text) if place == "added" else text
            stack.enter_context(replacing(own / name)).write_text(text, encoding="utf-8")
        stack.enter_context(replacing(numbers)).write_text(json_text(known), encoding="utf-8")
    if place == "full":
        for stale in {*PLOTS, "per_part.csv"} - set(drawn) - tables.keys():
            remove(own / stale)
    return place


def _folder_name(protocol: dict[str, Any], shown: dict[str, Any]) -> str:
    """Split and options that differ from those of the result that is shown, e.g. ``validation`` or ``test-tau-0.5``."""
    changed = changed_fields(protocol, shown)
    if changed.pop("split", None) is not None:
        changed.pop("images", None)  # another split has other images
    return "-".join([str(protocol["split"]), *(f"{name}-{value}" for name, value in changed.items())])


def with_columns_of(file: Path, text: str) -> str:
    """A new table with the columns that an older one has and it has not, row by row of the same name."""
    if not file.is_file():
        return text
    old, new = (list(csv.reader(io.StringIO(one))) for one in (read_text(file, "delete it"), text))
    if [row[0] for row in old] != [row[0] for row in new]:
        return text
    left = [number for number, name in enumerate(old[0]) if name not in new[0]]
    merged = io.StringIO()
    rows = zip(new, old, strict=True)
    csv.writer(merged, lineterminator="\n").writerows([*one, *(other[n] for n in left)] for one, other in rows)
    return merged.getvalue()


def csv_text(key: str, names: Sequence[str], columns: dict[str, list[float]]) -> str:
    """One line per name; a value that there is not is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([key, *columns])
    for row, name in enumerate(names):
        writer.writerow([name, *(_cell(column, values[row]) for column, values in columns.items())])
    return text.getvalue()


def _cell(column: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return str(int(value)) if column in _WHOLE else f"{value:.6g}"
