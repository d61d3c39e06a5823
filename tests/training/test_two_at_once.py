"""Two trainings of one folder: the second is told so, and whatever it does, the first one's work stays."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dapl.cli import main
from dapl.common.errors import DaplError, LockedError
from dapl.config import Config, dump_config
from dapl.runs.run import Run
from dapl.training.trainer import Trainer, train

from ..forked import Forked

SHORT: dict[str, Any] = {"schedule": [{"stage": "project"}]}


@pytest.fixture
def at_work(configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run whose training has begun in another process and waits there for a file to appear; and that process."""
    run, go_on = Run(tmp_path / "run"), tmp_path / "go on"

    def wait(self: Trainer, stage: Any) -> dict[str, Any]:
        while not go_on.exists():
            time.sleep(0.01)
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_project", wait)
        first = Forked(tmp_path / "said.txt", lambda: train(configured(SHORT), run.folder, quiet=True) and None)
    deadline = time.monotonic() + 120
    while not run.prototypes_file.exists():
        assert first.process.is_alive(), first.said.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield run, first, go_on
    first.process.kill()
    first.process.join()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_second_is_told_who_is_there_and_changes_nothing(
    at_work, configured: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, first, _ = at_work
    before = contents(run.folder)
    (tmp_path / "config.yaml").write_text(dump_config(configured(SHORT)))
    assert main(["train", "--resume", str(run.folder)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"dapl: {run.folder}: process {first.process.pid} on ")
    assert "has been training there since" in said
    assert main(["train", str(tmp_path / "config.yaml"), "--out", str(run.folder)]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert contents(run.folder) == before


def test_two_that_start_in_the_same_moment(configured: Callable[..., Config], tmp_path: Path) -> None:
    """The first has the lock and has written nothing yet: the second once removed its folder."""
    run, ready = Run(tmp_path / "run"), tmp_path / "ready"

    def hold() -> None:
        with run.locked("training"):
            ready.touch()
            time.sleep(60)

    first = Forked(tmp_path / "said.txt", hold)
    while not ready.exists():
        time.sleep(0.01)
    with pytest.raises(LockedError, match=f"process {first.process.pid} on "):
        train(configured(SHORT), run.folder, quiet=True)
    assert os.listdir(run.folder) == [".lock"]
    first.process.kill()
    first.process.join()


def test_when_the_first_is_killed_the_second_goes_on_at_once(at_work, configured: Callable[..., Config]) -> None:
    run, first, _ = at_work
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.join()
    assert json.loads((run.folder / ".lock").read_text())["process"] == first.process.pid
    train(run.config(), run.folder, resume=True, quiet=True)
    assert run.best.exists()
    assert not list(run.folder.rglob(".*"))


def test_when_the_first_is_through_the_lock_is_gone(at_work) -> None:
    run, first, go_on = at_work
    go_on.touch()
    first.finish()
    assert run.last.exists()
    assert not list(run.folder.rglob(".*"))


LEFT = (
    ".report.4711.new.tmp",
    ".export.4711.new.tmp",
    "checkpoints/.last.safetensors.4711.tmp",
    ".config.yaml.4711.tmp",
)


def test_leftovers_of_killed_commands_do_not_stop_a_resume(run: Path) -> None:
    for name in LEFT:
        if name.endswith(".new.tmp"):
            (run / name / "images").mkdir(parents=True)
        else:
            (run / name).write_text("half")
    train(Run.open(run).config(), run, resume=True, quiet=True)
    assert not list(run.rglob("*.tmp"))


def test_a_folder_that_holds_only_what_a_kill_left_is_free(configured: Callable[..., Config], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.yaml.4711.tmp").write_text("data: {na")
    (folder / ".lock").write_text('{"process": 4711')
    run = train(configured(SHORT), folder, quiet=True)
    assert run.last.exists()
    assert not list(folder.rglob("*.tmp"))


def test_a_run_that_was_killed_before_its_environment_was_written(
    configured: Callable[..., Config], tmp_path: Path
) -> None:
    run = Run.create(tmp_path / "run", configured(SHORT))
    run.environment_file.unlink()
    train(run.config(), run.folder, resume=True, quiet=True)
    assert run.environment()["seed"] == 0


def test_what_was_wrong_leaves_no_folder(configured: Callable[..., Config], tmp_path: Path) -> None:
    with pytest.raises(DaplError):
        train(configured(SHORT | {"model.backbone.name": "no_such_network"}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
