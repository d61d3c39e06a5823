"""Runs docs/notebooks/tour.ipynb from its first cell to its last and keeps what it shows: `make notebook`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent / "notebooks" / "tour.ipynb"
LARGEST_OUTPUT = 200_000
"""Characters; a page larger than that is left out of the file, its text stays."""


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run all cells in a fresh kernel that stands in a folder; a cell that fails raises."""
    client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    return client.execute()


def tidy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs from run to run or is too large for a repository."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                for kind, shown in list(output.get("data", {}).items()):
                    if kind != "text/plain" and len(shown) > LARGEST_OUTPUT:
                        del output.data[kind]
    return notebook


def main() -> None:
    with TemporaryDirectory() as folder:
        done = execute(nbformat.read(NOTEBOOK, as_version=4), Path(folder))
    nbformat.write(tidy(done), NOTEBOOK)


if __name__ == "__main__":
    main()
