"""Reads the imports of `src/dapl` and writes the rooms and their arrows into docs/architecture.md.

    python docs/import_graph.py            # write the page anew; `make docs` does it
    python docs/import_graph.py --check    # exit code 1 if the page is out of date

The order of the rooms stands here, once: the page is made from it and tests/test_imports.py holds the source to it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "dapl"
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- made by docs/import_graph.py: start -->", "<!-- made by docs/import_graph.py: end -->"

LEVELS: tuple[dict[str, str], ...] = (
    {"common": "what every room needs: errors, atomic files, progress, seeds, tables"},
    {"config": "the typed configuration: fields, defaults, YAML in and out"},
    {"models": "the systems as pure modules: backbone, heads, prototypes, one contract"},
    {"masks": "foreground masks for data without them: landmarks, hulls, refinement"},
    {"data": "data sets: one file per source, all yield the same `Sample`"},
    {"processes": "several processes: start them, deal out work, gather results"},
    {"runs": "a run on disk: configuration, checkpoints, prototype records, marks"},
    {"batches": "what feeds a model: decoded pixels, cached features, batches"},
    {"metrics": "numbers from tensors: the registry, pure functions, torchmetrics classes"},
    {
        "training": "what changes a model: losses, stages, projection, pruning, the trainer",
        "evaluation": "numbers of a finished run, with intervals, tables and plots; the audit of other models",
    },
    {"explain": "why this label: evidence, regions, patches, drawings"},
    {
        "report": "the whole model as a page that opens from disk",
        "export": "ONNX, and a folder in the format of the Hugging Face Hub",
    },
    {
        "serve": "the live page: routes, uploads, marks",
        "experiments": "many runs: comparisons and sweeps",
        "prepare": "data made ready: checks, masks, faces cut out of videos",
    },
    {"cli": "the command line: parse, call, print"},
    {"dapl": "the front door: `import dapl`, `python -m dapl`"},
)
"""Rooms from the bottom up, with what they hold. A room imports from rooms below it only, never from its neighbours."""

ONLY: dict[tuple[str, str], tuple[str, ...]] = {
    ("data", "models"): (),
    ("masks", "config"): (),
    ("masks", "models"): ("dapl.models.weights",),
    ("metrics", "config"): (),
    ("metrics", "masks"): (),
    ("metrics", "data"): (),
    ("metrics", "processes"): (),
    ("metrics", "runs"): (),
    ("metrics", "batches"): (),
    ("metrics", "models"): ("dapl.models.contract",),
}
"""Where less is allowed than the order says: (room, other room) -> the modules of it that may be imported."""

HEIGHT = {room: height for height, level in enumerate(LEVELS) for room in level}
ROOMS = {room: holds for level in LEVELS for room, holds in level.items()}


@dataclass(frozen=True)
class Import:
    """One name that a file imports."""

    module: str
    """The module that is read, in full: `dapl.models.contract`."""
    name: str | None
    """What is taken out of it; None for the module itself."""
    line: int
    at_once: bool
    """Whether it is imported together with the file, not inside a function or for the type checker alone."""


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("dapl", *(part for part in parts if part != "__init__")))


def room_of(module: str) -> str:
    """The room of a module: `models` of `dapl.models.contract`, `dapl` of what stands in no folder."""
    second = module.partition(".")[2].partition(".")[0]
    return second if second in ROOMS else "dapl"


def source_files(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of the package by its full name."""
    return {module_of(file): file for file in sorted(package.rglob("*.py"))}


@cache
def imports(file: Path) -> tuple[Import, ...]:
    """Everything that a file imports, relative names written out, lazy imports and those for types included."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = ["dapl", *file.relative_to(PACKAGE).parent.parts]
    return tuple(found for node, at_once in _statements(tree, True) for found in _found(node, at_once, package))


def _statements(block: ast.AST, at_once: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """The imports in a block, and whether each is run together with the file."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, at_once
        elif isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _statements(node, at_once and not _is_delayed(node))


def _is_delayed(node: ast.AST) -> bool:
    for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    return for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _found(node: ast.stmt, at_once: bool, package: list[str]) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, None, node.lineno, at_once)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*start, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            whole = inner in MODULES  # from dapl.training import losses
            yield Import(inner if whole else module, None if whole else alias.name, node.lineno, at_once)


def graph() -> dict[str, set[str]]:
    """Module -> the modules of dapl that it imports, at once, lazily or for types."""
    return {
        name: {found.module for found in imports(file) if found.module in MODULES} - {name}
        for name, file in MODULES.items()
    }


def room_arrows() -> set[tuple[str, str]]:
    """(room, room that it imports), for every pair of rooms."""
    pairs = {(room_of(name), room_of(other)) for name, others in graph().items() for other in others}
    return {(room, other) for room, other in pairs if room != other}


def section() -> str:
    """The part of the page that is made: a table of the rooms and the matrix of their arrows."""
    table = ["| | room | what it holds |", "|---|---|---|"]
    table += [f"| {number} | `{room}` | {holds} |" for number, (room, holds) in enumerate(ROOMS.items(), 1)]
    return "\n".join([*table, "", "```text", *_matrix(room_arrows()), "```"])


def _matrix(arrows: set[tuple[str, str]]) -> list[str]:
    """One row per room, one column per room; ● where the row imports the column, so that all arrows point left."""
    width = max(map(len, ROOMS)) + 4
    lines = [" " * width + "".join(f"{number:>3}" for number in range(1, len(ROOMS) + 1))]
    for number, room in enumerate(ROOMS, 1):
        below = [other for other in ROOMS if HEIGHT[other] < HEIGHT[room]]
        marks = dict.fromkeys(below, "·") | {other: "●" for one, other in arrows if one == room} | {room: "■"}
        cells = "".join(f"{marks.get(other, ''):>3}" for other in ROOMS).rstrip()
        lines.append(f"{room:<{width - 3}}{number:>2} {cells}")
    return lines


def page_with(text: str, made: str) -> str:
    """The page with its made part replaced."""
    before, _, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE} lacks the two comments between which the rooms are written")
    return f"{before}{START}\n\n{made}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = page_with(old, section())
    if "--check" in arguments:
        return int(old != new)
    if old != new:
        PAGE.write_text(new, encoding="utf-8")
    return 0


MODULES = source_files()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
