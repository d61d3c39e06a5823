"""The arrows of the house, read off the source: who may import whom, and what must be imported first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dapl

PACKAGE = Path(dapl.__file__ or "").parent
FILES = sorted(PACKAGE.rglob("*.py"))
NEED_OPERATORS = ("torchvision", "timm", "torchmetrics")
READERS = ("explain", "report", "serve", "export", "compare", "sweep", "evaluation", "cli")
"""Rooms that read a finished run; what makes one knows nothing of them."""
FORBIDDEN = {
    "data": (*READERS, "training", "models", "losses"),
    "models": (*READERS, "training", "data", "losses"),
    "losses": (*READERS, "training", "data"),
    "metrics": (*READERS, "training", "data"),
    "training": READERS,
}
WITHOUT_TORCH = (
    "classes.py",
    "marks.py",
    "run.py",
    "errors.py",
    "files.py",
    "evaluation/protocol.py",
    "evaluation/selection.py",
)


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def imports(file: Path) -> Iterator[tuple[str, int, bool]]:
    """(module, line, whether it is imported with the file) of each import, relative ones written out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    package = ["dapl", *file.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) not in inner
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            yield module, node.lineno, id(node) not in inner
            for alias in node.names:  # from dapl.training import losses
                yield f"{module}.{alias.name}", node.lineno, id(node) not in inner


def test_relative_and_plain_imports_are_seen() -> None:
    """Else the tests below would pass on anything."""
    found = {module for module, _, _ in imports(PACKAGE / "training" / "state.py")}
    assert {"dapl.training.losses", "dapl.runs.run", "torch", "dapl.batches.run_data"} <= found
    assert len(FILES) > 40


def declares(file: Path, before: int) -> bool:
    """Whether the file imports dapl.common.operators above that line."""
    return any(module == "dapl.common.operators" and line < before for module, line, _ in imports(file))


def package_declares(file: Path) -> bool:
    """Whether a package above the file does, before it imports anything of its own: it is run before the file."""
    for folder in file.parents:
        if folder == PACKAGE:
            return False
        start = folder / "__init__.py"
        name = ".".join(("dapl", *folder.relative_to(PACKAGE).parts))
        own = [line for module, line, _ in imports(start) if module.startswith(f"{name}.")]
        if start != file and declares(start, min(own, default=1 << 30)):
            return True
    return False


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_the_operators_are_declared_before_torchvision_is_imported(file: Path) -> None:
    lines = [line for module, line, _ in imports(file) if module.split(".")[0] in NEED_OPERATORS]
    if lines:
        assert declares(file, min(lines)) or package_declares(file), (
            f"{file} imports torchvision, timm or torchmetrics, and neither it nor its package imports "
            "dapl.common.operators before"
        )


@pytest.mark.parametrize("room", FORBIDDEN)
def test_arrows_of_import_point_one_way(room: str) -> None:
    files = [file for file in FILES if file.relative_to(PACKAGE).parts[0] in (room, f"{room}.py")]
    assert files
    for file in files:
        for module, line, _ in imports(file):
            for other in FORBIDDEN[room]:
                path = f"dapl.{other}"
                assert module != path and not module.startswith(f"{path}."), f"{file}:{line} imports {module}"  # noqa: PT018


@pytest.mark.parametrize(
    "file",
    [
        *(PACKAGE / name for name in WITHOUT_TORCH),
        *sorted((PACKAGE / "config").glob("*.py")),
        *sorted((PACKAGE / "cli").glob("*.py")),
    ],
    ids=name_of,
)
def test_help_and_config_need_no_torch(file: Path) -> None:
    for module, line, at_once in imports(file):
        heavy = module.split(".")[0] in ("torch", "lightning_fabric", *NEED_OPERATORS)
        assert not (heavy and at_once), f"{file}:{line} imports {module}"


def test_a_model_never_sees_a_config() -> None:
    """Only the builder does."""
    for file in (PACKAGE / "models").rglob("*.py"):
        if file.name != "build.py":
            assert "dapl.config" not in {module for module, _, _ in imports(file)}, file
