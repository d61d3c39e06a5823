"""Every command on a disk that is full or read-only: one sentence, exit code 2, and what was there is as it was.

The list of commands is that of the command line itself: a new one fails here until it says how it is tried.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dapl.cli import COMMANDS, data, main
from dapl.config import dump_config
from dapl.runs.run import Run

Words = Callable[[Path, Path], list[Any]]
"""From a finished run elsewhere and the folder on the bad disk, where a copy of it is called run, to a command."""

WRITING: dict[str, list[Words]] = {
    "train": [
        lambda run, disk: ["train", disk.parent / "config.yaml", "--out", disk / "new"],
        lambda run, disk: ["train", "--resume", disk / "run"],
    ],
    "init": [lambda run, disk: ["init", disk / "data", "--out", disk / "birds.yaml"]],
    "demo": [lambda run, disk: ["demo", "--out", disk / "new"]],
    "evaluate": [lambda run, disk: ["evaluate", disk / "run", "--no-chance", "--metrics", "accuracy,diversity"]],
    "interventions": [lambda run, disk: ["interventions", disk / "run", "--images", "2"]],
    "explain": [lambda run, disk: ["explain", disk / "run", disk / "data" / "a" / "0.png", "--format", "png,html"]],
    "report": [lambda run, disk: ["report", disk / "run", "--images", "1"]],
    "export": [lambda run, disk: ["export", disk / "run", "--format", "hub"]],
    "compare": [lambda run, disk: ["compare", run, "--out", disk / "compare", "--no-chance", "--metrics", "accuracy"]],
    "sweep": [
        lambda run, disk: [
            "sweep",
            disk.parent / "config.yaml",
            "--grid",
            "model.head_dim=2,4",
            "--out",
            disk / "sweep",
        ]
    ],
    "chance": [lambda run, disk: ["chance", run, "--prototypes", "2", "--json", disk / "chance.json"]],
    "masks": [lambda run, disk: ["masks", disk / "data"]],
    "prepare check": [lambda run, disk: ["prepare", "check", disk / "data", "--out", disk / "check"]],
}
ELSEWHERE = {
    "serve": "writes marks alone, and answers what cannot be written: tests/serve/test_safety.py",
    "prepare faceforensics": "needs a model of faces: tests/prepare/test_faceforensics.py",
    "cache": "removes, and writes nothing",
    "fields": "only prints",
    "completion": "only prints",
}


def names() -> set[str]:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for command in COMMANDS:
        command(commands)
    kinds = argparse.ArgumentParser().add_subparsers()
    for command in (data.faceforensics, data.check):
        command(kinds)
    return set(commands.choices) | {f"prepare {name}" for name in kinds.choices}


def test_no_command_is_left_out() -> None:
    assert names() <= WRITING.keys() | ELSEWHERE.keys()


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "filling")
    return {str(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def there(disk, run: Path, tmp_path: Path) -> Path:
    """The disk, with a run and some images on it."""
    shutil.copytree(run, disk.folder / "run")
    for name in "ab":
        (disk.folder / "data" / name).mkdir(parents=True)
        for number in range(3):
            Image.effect_noise((40, 40), 90).convert("RGB").save(disk.folder / "data" / name / f"{number}.png")
    (tmp_path / "config.yaml").write_text(dump_config(Run.open(run).config()))
    return disk.folder


@pytest.mark.parametrize("state", ["full", "read_only"])
def test_a_bad_disk_is_one_sentence_and_costs_nothing_that_was_there(
    disk, there: Path, run: Path, state: str, capsys: pytest.CaptureFixture
) -> None:
    before = contents(there)
    getattr(disk, state)()
    for words in (each for several in WRITING.values() for each in several):
        command = [str(word) for word in words(run, there)]
        capsys.readouterr()
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith(f"dapl: {there}"), (command, said)
        assert ("No space left on device" if state == "full" else "Read-only file system") in last, command
        assert contents(there) == before, command
        assert not [path for path in there.rglob(".*") if path.name != ".lock"], command


def test_the_report_of_a_run_that_can_only_be_read_goes_elsewhere(disk, there: Path, tmp_path: Path) -> None:
    """Also of one that was not measured: its numbers are then on the page alone."""
    (there / "run" / "metrics.json").unlink(missing_ok=True)
    before = contents(there)
    disk.read_only()
    assert main(["report", str(there / "run"), "--images", "1", "--out", str(tmp_path / "new" / "report")]) == 0
    assert "Accuracy" in (tmp_path / "new" / "report" / "index.html").read_text()
    assert contents(there) == before


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x", "{long}", "/dev/full/x"])
def test_places_that_cannot_be(
    place: str, dapl_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(dump_config(Run.open(dapl_run).config()))
    out = Path(place.format(long="n" * 300))
    for command in (
        ["train", "config.yaml", "--out", str(out)],
        ["report", str(dapl_run), "--images", "1", "--out", str(out)],
        ["export", str(dapl_run), "--format", "hub", "--out", str(out)],
        ["sweep", "config.yaml", "--grid", "model.head_dim=2,4", "--out", str(out)],
        ["prepare", "check", "config.yaml", "--out", str(out)],
    ):
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert said.splitlines()[-1].startswith("dapl: "), (command, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml"]


def test_a_standard_output_that_is_full(dapl_run: Path, capsys: pytest.CaptureFixture) -> None:
    """As in `dapl evaluate RUN > /dev/full`: the numbers are in the run, only nobody saw them."""
    with Path("/dev/full").open("w") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", full)
        assert main(["fields"]) == 2
        full.flush()  # nothing is left that would fail once more at exit
    assert "No space left on device" in capsys.readouterr().err
