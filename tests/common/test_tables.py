"""The same rows for a terminal, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dapl.common.tables import Column, Spread, csv_text, markdown, mean_and_deviation, print_table, write_tables

COLUMNS = [Column("system"), Column("width", "D1", digits=None), Column("accuracy", percent=True), Column("coverage")]
ROWS = [
    {"system": "a|b", "width": 16, "accuracy": mean_and_deviation([0.8, 0.9]), "coverage": Spread(0.5, None, (0.5,))},
    {"system": "black box", "width": 0.25, "accuracy": 0.875},
]


def test_markdown() -> None:
    assert markdown(ROWS, COLUMNS) == (
        "| system | D1 | accuracy (%) | coverage |\n"
        "| --- | --- | --- | --- |\n"
        "| a\\|b | 16 | 85.0 ± 7.1 | 0.500 |\n"
        "| black box | 0.25 | 87.5 | – |\n"
    )


def test_csv_has_full_numbers() -> None:
    first, second = csv.DictReader(io.StringIO(csv_text(ROWS, COLUMNS)))
    assert float(first["accuracy"]) == pytest.approx(0.85)
    assert float(first["accuracy_std"]) == pytest.approx(0.1 / 2**0.5)
    assert (first["coverage"], first["coverage_std"]) == ("0.5", "")
    assert (second["accuracy"], second["accuracy_std"], second["coverage"]) == ("0.875", "", "")
    assert "width_std" not in first


def test_files(tmp_path: Path) -> None:
    names = [file.name for file in write_tables(tmp_path, "table", ROWS, COLUMNS, {"split": "test"}, "Above.")]
    assert names == ["table.csv", "table.json", "table.md"]
    written = json.loads((tmp_path / "table.json").read_text())
    assert written["split"] == "test"
    assert written["rows"][0]["accuracy"]["values"] == [0.8, 0.9]
    assert (tmp_path / "table.md").read_text().startswith("Above.\n\n| system |")


def test_nothing_is_cut_off(capsys: pytest.CaptureFixture) -> None:
    wide = [Column(f"a rather long heading {number}") for number in range(12)]
    print_table([{column.name: 1.0 for column in wide}], wide, "Title")
    said = capsys.readouterr().out
    assert all(column.name in said for column in wide)
    assert "…" not in said


def test_a_narrow_terminal_folds() -> None:
    console = Console(width=40, record=True, file=io.StringIO())
    print_table(ROWS, COLUMNS, "A title", console)
    words = console.export_text().split()
    assert {"black", "box", "85.0", "7.1", "87.5"} <= set(words)
    assert "…" not in "".join(words)
