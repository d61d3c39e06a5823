"""The files of an evaluation: metrics.json, tables by class and by part as CSV, and the plots."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from dapl.evaluation.plots import NAMES, draw_all
from dapl.evaluation.result import Evaluation
from dapl.evaluation.summary import Measured, per_class, per_part
from dapl.files import write_json, write_text

_WHOLE = ("pictures", "rows", "rows_with_parts", "best_head")
"""Columns that count things."""


def write_files(numbers: Path, folder: Path, result: Evaluation, measured: Measured) -> None:
    """``numbers`` as JSON, tables and plots in ``folder``; what an earlier evaluation left there is removed."""
    drawn = draw_all(folder, result, measured)
    tables = {"per_class.csv": csv_text("class", measured.classes, per_class(measured))}
    if measured.parts and measured.looks is not None:
        tables["per_part.csv"] = csv_text("part", measured.parts, per_part(measured))
    for name, text in tables.items():
        write_text(folder / name, text)
    for stale in {*NAMES, "per_part.csv"} - set(drawn) - tables.keys():
        (folder / stale).unlink(missing_ok=True)
    write_json(numbers, result.to_json())


def csv_text(key: str, names: Sequence[str], columns: dict[str, list[float]]) -> str:
    """One line a name; a value that there is not is left empty."""
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
