"""The notebook of the documentation runs from its first cell to its last, and is kept as it came out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_notebook", DOCS / "run_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each code cell shows: `stream`, or the richest kind of an object."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[output.output_type if "text" in output else max(output.data) for output in cell.outputs] for cell in code]


def test_it_is_kept_executed_and_small(runner: ModuleType) -> None:
    notebook = nbformat.read(runner.NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert runner.NOTEBOOK.stat().st_size < 300_000
    assert "/home/" not in (text := runner.NOTEBOOK.read_text(encoding="utf-8"))
    assert "/tmp/" not in text


@pytest.mark.slow
def test_it_runs_and_shows_what_is_kept(runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers may differ between machines; which cells show what may not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = nbformat.read(runner.NOTEBOOK, as_version=4)
    fresh = runner.tidy(runner.execute(nbformat.read(runner.NOTEBOOK, as_version=4), tmp_path))
    assert kinds(fresh) == kinds(kept)
    assert (tmp_path / "runs" / "tour" / "metrics.json").is_file()
