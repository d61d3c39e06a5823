"""The arrows of the house, read off the source: who may import whom, and what must be imported first."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


house = _load(ROOT / "docs" / "import_graph.py")
MODULES: dict[str, Path] = house.MODULES
NEED_OPERATORS = ("torchvision", "timm", "torchmetrics")
HEAVY = ("torch", "lightning_fabric", *NEED_OPERATORS)
WITHOUT_TORCH = (
    "dapl",
    "dapl.cli",
    "dapl.config",
    "dapl.common.errors",
    "dapl.common.files",
    "dapl.runs.run",
    "dapl.runs.marks",
)
"""What `dapl --help` and a mistake in a config may load; a name stands for everything in it."""


def imports_of(name: str) -> tuple[Any, ...]:
    return house.imports(MODULES[name])


def where(name: str, line: int) -> str:
    return f"{MODULES[name].relative_to(ROOT)}:{line}"


def test_imports_of_all_kinds_are_seen() -> None:
    """Otherwise the tests below would pass on anything."""
    found = {(one.module, one.name): one.at_once for one in imports_of("dapl")}
    assert found["dapl.explain.classifier", "Classifier"] is False
    assert len(MODULES) > 100
    assert {one.module for one in imports_of("dapl.cli")} >= {"dapl.cli.train", "argparse"}
    assert house.room_of("dapl.models.contract") == "models"
    assert house.room_of("dapl.__main__") == "dapl"


def test_every_room_is_in_the_order_and_the_order_has_no_other() -> None:
    folders = {file.parent.name for file in house.PACKAGE.glob("*/__init__.py")}
    assert folders == set(house.ROOMS) - {"dapl"}
    assert {name for name in MODULES if house.room_of(name) == "dapl"} == {"dapl", "dapl.__main__"}


@pytest.mark.parametrize("room", house.ROOMS)
def test_arrows_of_import_point_one_way(room: str) -> None:
    wrong = []
    for name in (name for name in MODULES if house.room_of(name) == room):
        for one in imports_of(name):
            if one.module not in MODULES:
                continue
            other = house.room_of(one.module)
            allowed = house.ONLY.get((room, other), (one.module,))
            if other != room and (house.HEIGHT[other] >= house.HEIGHT[room] or one.module not in allowed):
                wrong.append(f"{where(name, one.line)} imports {one.module}")
    assert not wrong, "\n".join(wrong)


def test_there_is_no_cycle() -> None:
    """Between modules, also through an import inside a function or one for types alone."""
    try:
        TopologicalSorter(house.graph()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_private_name_crosses_a_room() -> None:
    wrong = []
    for name in MODULES:
        found = imports_of(name)
        elsewhere = [one for one in found if one.module in MODULES and house.room_of(one.module) != house.room_of(name)]
        for one in elsewhere:
            last = one.name or one.module.rpartition(".")[2]
            if _is_private(last):
                wrong.append(f"{where(name, one.line)} imports {last} of {one.module}")
        modules = {one.module.rpartition(".")[2] for one in elsewhere if one.name is None}
        for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                wrong += [f"{where(name, node.lineno)} uses {node.value.id}.{node.attr}"] * _is_private(node.attr)
    assert not wrong, "\n".join(wrong)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_class_name_is_used_twice() -> None:
    defined = defaultdict(list)
    for name, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(where(name, node.lineno))
    twice = [f"{name}: {', '.join(places)}" for name, places in defined.items() if len(places) > 1]
    assert not twice, "\n".join(twice)


def declares(name: str, before: int) -> bool:
    """Whether the module imports dapl.common.operators above that line."""
    return any(one.module == "dapl.common.operators" and one.line < before for one in imports_of(name))


def package_declares(name: str) -> bool:
    """Whether a package above the module does, before it imports anything of its own: it is run before the module."""
    for package in _packages_above(name):
        own = [one.line for one in imports_of(package) if one.module.startswith(f"{package}.")]
        if declares(package, min(own, default=1 << 30)):
            return True
    return False


def _packages_above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(2, len(parts))]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "dapl.common.operators"])
def test_the_operators_are_declared_before_torchvision_is_imported(name: str) -> None:
    lines = [one.line for one in imports_of(name) if one.module.split(".")[0] in NEED_OPERATORS]
    if lines and name != "dapl.common.operators":
        assert declares(name, min(lines)) or package_declares(name), (
            f"{name} imports torchvision, timm or torchmetrics, and neither it nor its package imports "
            "dapl.common.operators before"
        )


@pytest.mark.parametrize("start", WITHOUT_TORCH)
def test_help_and_config_need_no_torch(start: str) -> None:
    """Followed from module to module, through the packages above each of them, as Python does."""
    open_ = [name for name in MODULES if name == start or (start != "dapl" and name.startswith(f"{start}."))]
    assert open_
    came_from = dict.fromkeys(open_, "")
    while open_:
        name = open_.pop()
        for one in imports_of(name):
            if not one.at_once:
                continue
            light = one.module.split(".")[0] not in HEAVY
            assert light, f"{where(name, one.line)} imports {one.module}: {_path(name, came_from)}"
            for other in (one.module, *_packages_above(one.module)):
                if other in MODULES and other not in came_from:
                    came_from[other] = name
                    open_.append(other)


def _path(name: str, came_from: dict[str, str]) -> str:
    return f"{_path(came_from[name], came_from)} -> {name}" if came_from[name] else name


def test_a_model_never_sees_a_config() -> None:
    """Only the builder does."""
    for name in MODULES:
        if house.room_of(name) == "models" and name != "dapl.models.build":
            assert "config" not in {house.room_of(one.module) for one in imports_of(name) if one.module in MODULES}, (
                name
            )


def test_the_page_shows_the_source_as_it_is() -> None:
    done = subprocess.run([sys.executable, house.__file__, "--check"], check=False)
    assert done.returncode == 0, "docs/architecture.md is out of date: python docs/import_graph.py writes it anew"
