"""Every command of the README is run as it stands, by a real process, in order, in a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
SHELL = [line.split("#")[0].strip() for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
COMMANDS = [line for line in SHELL if line.startswith("dapl ")]
PYTHON = [text for language, text in BLOCKS if language == "python"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader stands: a folder with configs/ and docs/ in it."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copytree(ROOT / "docs", folder / "docs")
    return folder


def run(folder: Path, *command: str) -> str:
    home = {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=os.environ | home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_commands_on_toy_birds(folder: Path) -> None:
    shown = {command: run(folder, *command.split()) for command in COMMANDS if "cub" not in command}
    assert len(shown) >= 5
    demo = next(text for command, text in shown.items() if command.startswith("dapl demo"))
    assert float(re.search(r"^accuracy +([\d.]+)%", demo, flags=re.MULTILINE).group(1)) >= 90
    assert (folder / "runs" / "birds" / "prototypes.png").stat().st_size > 10_000
    assert len(list((folder / "explained").iterdir())) == 3
    assert (folder / "runs" / "birds" / "report" / "index.html").is_file()
    assert (folder / "runs" / "birds" / "export" / "model.onnx").is_file()
    table = (folder / "runs" / "compare" / "compare.md").read_text(encoding="utf-8")
    assert [name in table for name in ("dapl", "protopnet", "blackbox")] == [True] * 3
    assert (folder / "sweeps" / "contrast" / "sweep.md").is_file()


@pytest.mark.slow
def test_the_commands_on_cub(folder: Path, cub_root: Path) -> None:
    """The run of the page, to its accuracy: the only test that trains on real photographs to the end."""
    (command,) = [command for command in COMMANDS if "cub" in command]
    shown = run(folder, *command.split())
    assert float(re.search(r"^accuracy +([\d.]+)%", shown, flags=re.MULTILINE).group(1)) >= 88


@pytest.mark.slow
def test_the_python_of_the_readme(folder: Path) -> None:
    for text in PYTHON:
        assert run(folder, sys.executable, "-c", text)


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    asked = [line.split()[1] for line in SHELL if line.startswith("make ")]
    assert asked == ["demo", "test"]
    assert set(asked) <= set(targets)
