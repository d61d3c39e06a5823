"""The files of docs/results as the templates of pages see them: rows of figures, tables, and where they come from.

`dapl compare`, `sweep` and `chance`, `make bench` and `make bench-peers` wrote them; `docs/render_results.py` makes
pages out of them. What a template asks for and a file has not got is an error that names both, so that no page shows a
gap by accident.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from results_figures import Difference, ResultsError, System, enumerated, seed_text

from dapl.common.tables import Column, Row, Spread, markdown
from dapl.metrics.registry import METRICS, NUMBERS

FOLDER = Path(__file__).resolve().parent / "results"
EXTRA = {
    "name": Column("name", "system"),
    "seeds": Column("seeds"),
    "prototypes_kept": Column("prototypes_kept", "prototypes", digits=0),
    "minutes": Column("minutes", digits=1),
}
"""Columns that are no metrics."""


class Kept:
    """A file of docs/results: what all kinds of them have."""

    def __init__(self, name: str, content: Mapping[str, Any], digest: str) -> None:
        self.name, self.content, self.digest = name, content, digest
        self.source = f"docs/results/{name}.json"

    def __bool__(self) -> bool:
        return True

    @property
    def images(self) -> Mapping[str, int]:
        """Images of each split."""
        return self.content["images"]

    @property
    def command(self) -> str:
        """The command as a block of code, in lines as long as those of the page; a flag stays with its value."""
        words = [shlex.quote(word) for word in shlex.split(self.content["command"])]
        lines = [words[0]]
        for previous, word in pairwise(words):
            kept_together = previous.startswith("--") and not word.startswith("--")
            if len(lines[-1]) + len(word) > 110 and not kept_together:
                lines[-1] += " \\"
                lines.append("   ")
            lines[-1] += f" {word}"
        return "\n".join(f"    {line}" for line in lines)

    @property
    def origin(self) -> str:
        """A sentence: when, with which versions and on which processor, and where all the numbers are."""
        machine, versions = self.content["machine"], self.content["versions"]
        threads = f"{machine['threads']} thread{'s' if machine['threads'] != 1 else ''}"
        return (
            f"Measured on {self.content['measured']} with dapl {versions['dapl']} and torch {versions['torch']} on "
            f"{machine['processor']} ({machine['instructions']}, {threads}); "
            f"all numbers are in [{self.name}.json](results/{self.name}.json)."
        )


class Comparison(Kept):
    """What `dapl compare` wrote: ``cub20["dapl-16"].coverage``."""

    def __init__(self, name: str, content: Mapping[str, Any], digest: str) -> None:
        super().__init__(name, content, digest)
        rows = [{key: _spread(value) for key, value in row.items()} for row in content["rows"]]
        self.rows: dict[str, Row] = {row["name"]: row for row in rows}

    def __getitem__(self, name: str) -> System:
        if name not in self.rows:
            raise ResultsError(f"{self.source}: there is no row {name}")
        runs = [run for run in self.content["runs"] if run["name"] == name]
        return System(self.rows[name], runs, self.source)

    def has(self, *names: str) -> bool:
        return all(name in self.rows for name in names)

    def replaced_by(self, later: Comparison | NotMeasured) -> Comparison:
        """The same with the rows that a later measurement has too, of the same data under the same protocol."""
        if not later:
            return self
        assert isinstance(later, Comparison)
        self._check_alike(later, "split", "protocol", "data", "images")
        shared = {name for name in later.rows if name in self.rows}
        rows = [row for row in later.content["rows"] if row["name"] in shared]
        order = {row["name"]: row for row in self.content["rows"]} | {row["name"]: row for row in rows}
        runs = [run for run in self.content["runs"] if run["name"] not in shared]
        runs += [run for run in later.content["runs"] if run["name"] in shared]
        seeds = self.content["seeds"] | {name: later.content["seeds"][name] for name in shared}
        content = {**self.content, "rows": list(order.values()), "runs": runs, "seeds": seeds}
        return Comparison(self.name, content, f"{self.digest}{later.digest}")

    def _check_alike(self, other: Comparison, *facts: str) -> None:
        for fact in facts:
            if self.content[fact] != other.content[fact]:
                raise ResultsError(f"{other.source}: its {fact} is not that of {self.source}")

    @property
    def seeds(self) -> str:
        """``seeds 0, 1 and 2``, and which rows have others."""
        given = {name: tuple(seeds) for name, seeds in self.content["seeds"].items()}
        most = max(given.values(), key=len)
        others = [f"`{name}` {seed_text(seeds)}" for name, seeds in given.items() if seeds != most]
        return seed_text(most) + (f" ({enumerated(others)})" if others else "")

    def gives(self, number: str) -> bool:
        """Whether some row has the number."""
        return any(number in self[name] for name in self.rows)

    def table(self, *columns: str, rows: Sequence[str] | None = None, without: Sequence[str] = ()) -> str:
        """The rows that were measured, of those named or of all; a column that none of them has is left out."""
        names = [name for name in (rows or self.rows) if name in self.rows and name not in without]
        shown = [self.rows[name] for name in names]
        return _markdown(shown, columns)

    def companions(self, without: Sequence[str], width: int = 7) -> str:
        """The first number of every other metric that was measured, in tables of so many columns."""
        names = [metric.name for metric in METRICS if metric.name in NUMBERS and metric.name not in without]
        names = [name for name in names if self.gives(name)]
        tables = []
        for start in range(0, len(names), width):
            part = names[start : start + width]
            rows = [row for row in self.rows if any(number in self[row] for number in part)]
            tables.append(self.table("name", *part, rows=rows))
        return "\n\n".join(tables)

    @property
    def chance(self) -> Any:
        """What trivial maps got on the same images; false where that was not measured."""
        if not self.content.get("chance"):
            return NotMeasured(f"{self.name} with chance")
        facts = {name: self.content[name] for name in ("command", "measured", "machine", "versions", "images")}
        return ChanceFile(self.name, {**facts, **self.content["chance"]}, self.digest)

    def runs_table(self, *columns: str, rows: Sequence[str]) -> str:
        """One line per run, each number with its 95 % interval."""
        lines = []
        for name in filter(self.has, rows):
            for run in self[name].runs:
                one = self[name].run(run["seed"])
                cells = {column: getattr(one, column).interval if column in one else "–" for column in columns}
                lines.append({"name": f"{name}, seed {run['seed']}", **cells})
        headings = [EXTRA["name"], *(Column(column, NUMBERS[column].heading) for column in columns)]
        return markdown(lines, headings).rstrip()

    def best(self, number: str, without: Sequence[str] = ()) -> str:
        """Name of the row with the best mean."""
        rows = {name: self[name] for name in self.rows if number in self[name] and name not in without}
        sign = -1 if NUMBERS[number].better == "lower" else 1
        return max(rows, key=lambda name: sign * getattr(rows[name], number).mean)

    def differences(self, number: str, base: str) -> str:
        """A table of what every other row is above or below one of them."""
        rows = []
        for name in self.rows:
            if name != base and number in self[name]:
                found = self.against(name, base, number)
                rows.append({"name": name, "difference": found.signed, "chance": "no" if found.beyond else "yes"})
        heading = f"{NUMBERS[number].heading}: difference{' (points)' if NUMBERS[number].percent else ''}"
        columns = [EXTRA["name"], Column("difference", heading), Column("chance", "chance alone may do it")]
        return markdown(rows, columns).rstrip()

    def claims(self, *lines: tuple[str, str, str, str]) -> str:
        """A table of (row, "above" or "below", other row, number): the difference, and whether it is as claimed."""
        rows = []
        for one, side, other, number in lines:
            if self.has(one, other) and number in self[one] and number in self[other]:
                found = self.against(one, other, number)
                what = f"{NUMBERS[number].heading}: `{one}` {side} `{other}`"
                rows.append({"claim": what, "difference": found.signed, "holds": found.agrees(side)})
        return markdown(rows, [Column("claim"), Column("difference", "difference here"), Column("holds")]).rstrip()

    def against(self, one: str, other: str, number: str) -> Difference:
        return Difference.of(getattr(self[one], number), getattr(self[other], number))


class ChanceFile(Kept):
    """What `dapl chance --json` wrote: ``chance["smooth noise in the mask"].coverage``, of no model."""

    def __getitem__(self, name: str) -> System:
        if name not in self.content["rows"]:
            raise ResultsError(f"{self.source}: there is no row {name}")
        numbers = self.content["rows"][name]
        values = {number: Spread(value, None, (value,)) for number, value in numbers.items() if value is not None}
        return System({"name": name, **values}, [], self.source)

    def table(self, *columns: str, rows: Sequence[str] | None = None) -> str:
        shown = [self[name].values for name in (rows or self.content["rows"]) if name in self.content["rows"]]
        return _markdown(shown, columns)


class SweepFile(Kept):
    """What `dapl sweep` wrote: ``ablations.panel("contrast").table("accuracy")``."""

    def panel(self, name: str) -> PanelOfPage:
        if name not in self.content["sweeps"]:
            raise ResultsError(f"{self.source}: there is no sweep {name}")
        rows = [row for row in self.content["rows"] if row["sweep"] == name]
        return PanelOfPage(self, name, [{key: _spread(value) for key, value in row.items()} for row in rows])

    @property
    def panels(self) -> list[str]:
        return list(self.content["sweeps"])


class PanelOfPage:
    """One sweep of a file, over one field."""

    def __init__(self, file: SweepFile, name: str, rows: list[dict[str, Any]]) -> None:
        self.file, self.name = file, name
        self.facts = file.content["sweeps"][name]
        (self.field,) = self.facts["fields"]
        self.rows = sorted(rows, key=lambda row: row[self.field])

    def table(self, heading: str, *columns: str) -> str:
        first = Column(self.field, heading, digits=None)
        return _markdown(self.rows, columns, first)

    def at(self, value: float) -> System:
        for row in self.rows:
            if row[self.field] == value:
                return System(row, [], self.file.source)
        raise ResultsError(f"{self.file.source}: {self.name} has no point at {value}")

    def best(self, number: str) -> str:
        """The value of the field at which the number is best."""
        sign = -1 if NUMBERS[number].better == "lower" else 1
        return f"{max(self.rows, key=lambda row: sign * row[number].mean)[self.field]:g}"

    def best_of(self, number: str) -> System:
        """The point at which the number is best."""
        return self.at(float(self.best(number)))

    @property
    def values(self) -> list[str]:
        return [f"{row[self.field]:g}" for row in self.rows]

    @property
    def first(self) -> System:
        """The point with the smallest value of the field."""
        return System(self.rows[0], [], self.file.source)

    @property
    def last(self) -> System:
        return System(self.rows[-1], [], self.file.source)


class Benchmarks(Kept):
    """What `make bench` wrote."""

    def table(self) -> str:
        names = ("what", "beside", "ratio", "range", "goal")
        rows = [
            {**ratio, "ratio": f"{ratio['value']:.3g}", "range": " … ".join(f"{end:.3g}" for end in ratio["spread"])}
            for ratio in self.content["ratios"]
        ]
        return markdown(rows, [Column(name) for name in names]).rstrip()

    def ratio(self, what: str) -> str:
        """The median of the line that begins so."""
        found = [ratio["value"] for ratio in self.content["ratios"] if ratio["what"].startswith(what)]
        if len(found) != 1:
            raise ResultsError(f"{self.source}: {len(found)} lines begin with '{what}'")
        return f"{found[0]:.3g}"


class Peers(Kept):
    """What `make bench-peers` wrote: ``peers.times("pruning")``."""

    def table(self) -> str:
        rows = [
            {
                "what": row["what"],
                "cabrnet": self._value(row, "cabrnet"),
                "dapl": self._value(row, "dapl"),
                "ratio": f"{row['cabrnet'] / row['dapl']:.3g}",
            }
            for row in self.content["peers"]
        ]
        theirs = f"CaBRNet {self.content['versions']['cabrnet']}"
        columns = [Column("what"), Column("cabrnet", theirs), Column("dapl"), Column("ratio", "CaBRNet / dapl")]
        return markdown(rows, columns).rstrip()

    def _value(self, row: Mapping[str, Any], program: str) -> str:
        return f"{row[program]:.3g} {row['unit']}".rstrip()

    def ratio(self, what: str) -> float:
        """CaBRNet's number by ours, of the row that begins so."""
        found = [row["cabrnet"] / row["dapl"] for row in self.content["peers"] if row["what"].startswith(what)]
        if len(found) != 1:
            raise ResultsError(f"{self.source}: {len(found)} rows begin with '{what}'")
        return found[0]

    def line(self, program: str) -> str:
        """Seconds of all commands with E epochs."""
        found = self.content["epochs"][program]
        return f"{found['fixed']:.0f} + {found['per_epoch']:.2g}·E s"

    @property
    def published_ratio(self) -> float:
        """CaBRNet's seconds by ours, computed for as many epochs as its own configuration has."""
        epochs = self.content["epochs"]
        return float(epochs["cabrnet"]["computed"] / epochs["dapl"]["computed"])

    @property
    def worst(self) -> Mapping[str, Any]:
        """The row of time or memory in which CaBRNet is nearest to dapl, or ahead of it."""
        return min((row for row in self.content["peers"] if row["unit"]), key=lambda row: row["cabrnet"] / row["dapl"])


class Pages(Kept):
    """What `python -m benchmarks.report --run RUN` wrote."""

    def table(self) -> str:
        rows = [
            {**page, "seconds": statistics.median(page["seconds"]), "slowest": max(page["seconds"])}
            for page in self.content["pages"]
        ]
        columns = [
            Column("kind", "written as"),
            Column("megabytes", "MB", digits=1),
            Column("seconds", "s to interactive", digits=2),
            Column("slowest", "slowest", digits=2),
        ]
        return markdown(rows, columns).rstrip()

    @property
    def turns(self) -> int:
        return len(self.content["pages"][0]["seconds"])


class Notes(Kept):
    """Figures that no command of this version writes, of publications and of earlier versions, with their source."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.content["entries"]:
            raise ResultsError(f"{self.source}: there is no entry {name}")
        return self.content["entries"][name]

    def cell(self, name: str, row: str, column: str) -> str:
        """One cell, by the first cell of its row."""
        entry = self[name]
        found = [cells for cells in entry["rows"] if cells[0] == row]
        if len(found) != 1 or column not in entry["columns"]:
            raise ResultsError(f"{self.source}: {name} has no cell '{column}' of '{row}'")
        return found[0][entry["columns"].index(column)]

    def absent(self, name: str, there: Comparison) -> list[str]:
        """Rows, by their first cell, that a later measurement has not got."""
        return [row[0] for row in self[name]["rows"] if not there.has(row[0])]

    def table(self, name: str, rows: Sequence[str] | None = None) -> str:
        """All of it, or the rows whose first cell is named."""
        entry = self[name]
        columns = [Column(str(number), heading) for number, heading in enumerate(entry["columns"])]
        shown = [row for row in entry["rows"] if rows is None or row[0] in rows]
        lines = [{str(number): cell for number, cell in enumerate(row)} for row in shown]
        return markdown(lines, columns).rstrip()


class NotMeasured:
    """In place of a file that is not there: false, and an error where it is asked for more."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ResultsError(f"docs/results/{self._name}.json: there is no such file")


KINDS: dict[str, type[Kept]] = {
    "sweeps": SweepFile,
    "runs": Comparison,
    "rows": ChanceFile,
    "ratios": Benchmarks,
    "peers": Peers,
    "pages": Pages,
    "entries": Notes,
}
"""The key by which a file is known, in this order: all of the first three have rows."""


def read(name: str, folder: Path = FOLDER) -> Any:
    """The file of that name, as what it is."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return NotMeasured(name)
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    for key, kind in KINDS.items():
        if key in content:
            return kind(name, content, hashlib.blake2b(text.encode(), digest_size=12).hexdigest())
    raise ResultsError(
        f"{path}: was written by none of dapl compare, sweep and chance, make bench, bench-peers and benchmarks.report"
    )


def _spread(value: Any) -> Any:
    if isinstance(value, dict) and "values" in value:
        return Spread(value["mean"], value["deviation"], tuple(value["values"]))
    return value


def _markdown(rows: Sequence[Row], names: Sequence[str], first: Column | None = None) -> str:
    columns = [first] if first else []
    for name in names:
        number = NUMBERS.get(name)
        columns.append(Column(name, number.column or number.heading, percent=number.percent) if number else EXTRA[name])
    table = markdown(rows, [c for c in columns if any(row.get(c.name) is not None for row in rows)])
    return table.rstrip().replace(" ± ", "\u00a0±\u00a0")  # a cell that is broken there is hard to read
