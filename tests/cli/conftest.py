"""What tests of the command line share: a place to work in, a tiny config as a file, and a command that is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dapl.cli import main

from ..conftest import TINY

SMALL = TINY | {
    "data": TINY["data"] | {"classes": 2, "images_per_class": 4, "test_images_per_class": 1},
    "schedule": [{"stage": "warm_up", "epochs": 1}],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder: a run that nobody named would be made there, in the folder runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """``write(data={…})``: the tiny config with some sections replaced, as a file."""

    def written(**sections: Any) -> str:
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(SMALL | {"cache": {"folder": str(tmp_path / "cache")}} | sections))
        return str(path)

    return written


@pytest.fixture
def refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Runs a command that has to be refused: exit code 2, one message, nothing half-written. Returns the message."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        message = said.err[said.err.index("dapl: ") :]  # before it may stand what was going well
        left = [path for path in place.rglob("*") if path != place / "runs"]
        assert left == [], "something was left behind"
        assert not list(tmp_path.rglob("*.tmp"))
        return message

    return run
