"""Rows of numbers as a table for people (terminal, Markdown) and for programs (CSV, JSON). Imports no torch."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapl.common.files import write_json, write_text

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float | None
    """The deviation of a sample (n − 1); None where there is only one value."""
    values: tuple[float, ...]


def mean_and_deviation(values: Sequence[float]) -> Spread:
    """
    >>> mean_and_deviation([0.25, 0.5, 0.75])
    Spread(mean=0.5, deviation=0.25, values=(0.25, 0.5, 0.75))
    >>> mean_and_deviation([0.5]).deviation is None
    True
    """
    if not values:
        raise ValueError("no values to take the mean of")
    mean = math.fsum(values) / len(values)
    deviation = None
    if len(values) > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Spread(mean, deviation, tuple(values))


Row = Mapping[str, Any]
"""Column → text, number or `Spread`; what a row has not is left empty."""


@dataclass(frozen=True)
class Column:
    name: str
    """Key of the rows, and head of the column in CSV and JSON."""
    heading: str = ""
    """For people; the name where it is empty."""
    digits: int | None = 3
    """After the point; None: as many as the number needs, at most four that count."""
    percent: bool = False

    def title(self) -> str:
        return (self.heading or self.name) + (" (%)" if self.percent else "")

    def text(self, value: Any) -> str:
        """``81.6 ± 0.4``, for people."""
        if value is None:
            return "–"
        if isinstance(value, Spread):
            deviation = "" if value.deviation is None else f" ± {self._number(value.deviation)}"
            return f"{self._number(value.mean)}{deviation}"
        return self._number(value) if isinstance(value, float) else str(value)

    def _number(self, value: float) -> str:
        if self.percent:
            return f"{100 * value:.1f}"
        return f"{value:.4g}" if self.digits is None else f"{value:.{self.digits}f}"


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    lines = [[column.title() for column in columns], ["---"] * len(columns)]
    lines += [[column.text(row.get(column.name)).replace("|", "\\|") for column in columns] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def csv_text(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A `Spread` is two columns: the mean and ``<name>_std``."""
    spreads = {column.name for column in columns if any(isinstance(row.get(column.name), Spread) for row in rows)}
    heads = [[c.name, f"{c.name}_std"] if c.name in spreads else [c.name] for c in columns]
    text = io.StringIO()
    writer = csv.DictWriter(text, [head for part in heads for head in part], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells: dict[str, Any] = {column.name: row.get(column.name) for column in columns}
        for name, value in row.items():
            if name in cells and isinstance(value, Spread):
                cells |= {name: value.mean, f"{name}_std": value.deviation}
        writer.writerow(cells)
    return text.getvalue()


def plain(row: Row) -> dict[str, Any]:
    """A row as JSON has it: a `Spread` with the value of every seed."""
    return {name: asdict(value) if isinstance(value, Spread) else value for name, value in row.items()}


def print_table(
    rows: Sequence[Row], columns: Sequence[Column], title: str = "", console: Console | None = None
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column in columns:
        numeric = any(isinstance(row.get(column.name), (int, float, Spread)) for row in rows)
        table.add_column(column.title(), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(column.text(row.get(column.name))) for column in columns))
    if console is None:
        console = RichConsole()
        if not console.is_terminal:
            console.width = 500  # a file or a pipe has no edge at which to fold
    console.print(table)


def write_tables(
    folder: Path,
    stem: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    facts: Mapping[str, Any],
    text: str = "",
    below: Sequence[Row] = (),
) -> list[Path]:
    """<stem>.csv, <stem>.json (``facts`` and ``rows``) and <stem>.md (``text`` stands above the table).

    Rows that stand ``below`` the others are not in JSON, where ``facts`` may have them in another form.
    """
    files = [folder / f"{stem}.{ending}" for ending in ("csv", "json", "md")]
    shown = [*rows, *below]
    write_text(files[0], csv_text(shown, columns))
    write_json(files[1], {**facts, "rows": [plain(row) for row in rows]})
    write_text(files[2], f"{text}\n\n{markdown(shown, columns)}" if text else markdown(shown, columns))
    return files
