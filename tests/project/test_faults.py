"""A short, seeded slice of the campaign (`make faults`): nothing of it may break anything."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dapl.common.liveness import has_process

from ..cli.test_disks import names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch):
    """``part("inputs")``: a module of the campaign, which is no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"faults.{name}")


@pytest.fixture
def material(part, dapl_run: Path, tmp_path: Path):
    made = part("material").lay_out(tmp_path / "material")
    shutil.copytree(dapl_run, made.run)
    return made


def test_a_slice_of_the_bad_inputs(part, material, tmp_path: Path) -> None:
    crew = part("running").Crew(tmp_path / "cases", 1, patience=10)
    inputs = part("inputs")
    found = list(inputs.campaign(material, crew, 40, 7))
    assert [tally.name for tally in found] == list(inputs.SHARES)
    assert sum(tally.cases for tally in found) >= 40
    assert [line for tally in found for line in tally.examples] == []


def test_a_slice_of_the_requests(part, material, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    crew = part("running").Crew(tmp_path / "cases", 1, patience=10)
    tally = part("server").campaign(material, crew, hostile=80, honest=20, seed=7, memory=False)
    assert tally.examples == []
    assert "20 of 20 honest requests answered" in tally.note


def test_what_breaks_is_found(part, tmp_path: Path) -> None:
    """The campaign itself: a traceback, a hang, a wrong exit code and a file left behind do not pass for success."""
    running: ModuleType = part("running")

    def fails(folder: Path) -> int:
        raise RuntimeError("unforeseen")

    def hangs(folder: Path) -> int:
        while True:
            pass

    def leaves(folder: Path) -> int:
        (folder / "half").touch()
        return 0

    cases = [
        running.Case("fails", fails),
        running.Case("hangs", hangs, seconds=0.3),
        running.Case("wrong", lambda folder: 3),
        running.Case("leaves", leaves, check=part("inputs")._no_run),
        running.Case("silent", lambda folder: 2),
        running.Case("good", lambda folder: 0),
    ]
    outcomes = {outcome.case.label: outcome.faults for outcome in running.Crew(tmp_path / "cases", 2).run(cases)}
    kinds = {label: [kind for kind, _ in faults] for label, faults in outcomes.items()}
    assert kinds == {
        "fails": ["traceback"],
        "hangs": ["hang"],
        "wrong": ["exit code"],
        "leaves": ["half-written"],
        "silent": ["no sentence"],
        "good": [],
    }


def test_the_table_and_its_place_on_the_page(part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, main = part("results"), part("__main__")
    tally = results.Tally("images")
    tally.add([("traceback", "x"), ("lost", "y")], refused=True)
    text = results.table([tally])
    assert "| images | 1 | 1 | 1 | 0 | 1 | 0 |  |" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{main.START}\nold\n{main.END}\nafter\n")
    monkeypatch.setattr(main, "PAGE", page)
    monkeypatch.setattr(main, "FIGURES", tmp_path / "figures.json")
    main.keep([{"part": "inputs", "command": "python -m faults", **main._row(tally)}])
    main.keep([{"part": "server", "command": "python -m faults --only server", **main._row(results.Tally("requests"))}])
    written = page.read_text()
    assert written.startswith(f"before\n{main.START}\n")
    assert written.endswith(f"{main.END}\nafter\n")
    assert "| images | 1 | 1 | 1 | 0 | 1 | 0 |  |\n| requests | 0 |" in written
    assert "python -m faults\npython -m faults --only server\n" in written
    assert (
        "Not run yet: kills, devices, spawned, commands, full, read-only, two, folders, images of a data set" in written
    )


def test_the_page_shows_what_the_campaign_found(part) -> None:
    """Figures are written by the command, and never by hand."""
    main = part("__main__")
    kept = json.loads(main.FIGURES.read_text(encoding="utf-8"))
    assert f"{main.START}\n\n{main.section(kept)}\n\n{main.END}" in main.PAGE.read_text(encoding="utf-8")


def test_every_command_is_killed_or_it_is_said_why_not(part, tmp_path: Path) -> None:
    """A command that is added to the command line fails here until the campaign has it."""
    commands, main = part("commands"), part("__main__")
    tried = set(commands.commands(part("material").lay_out(tmp_path / "material")))
    assert names() == {name for name in tried if name != "train --resume"} | {"serve"} | commands.ELSEWHERE.keys()
    assert set(main.KILLED) == (tried - {"train", "train --resume"}) | {"serve"}


@pytest.mark.parametrize("name", ["explain", "serve"])
def test_a_slice_of_the_kills(part, material, tmp_path: Path, name: str) -> None:
    pytest.importorskip("uvicorn")
    material.cache.mkdir(exist_ok=True)
    crew = part("running").Crew(tmp_path / "cases", 1, patience=10)
    (tally,) = part("kills").other_commands(material, crew, 1, 7, [name])
    assert tally.examples == []
    assert tally.cases == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children do not learn that their parent was killed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_campaign_that_is_stopped_leaves_nothing(part, tmp_path: Path, number: signal.Signals) -> None:
    """No process, no disk, no folder: at once where it can clean up, and with the next campaign where it was killed."""
    running = part("running")
    parent, seen = tmp_path / "memory", tmp_path / "seen"
    parent.mkdir()

    def campaign() -> int:
        with running.workplace(parent) as root:
            for _ in running.Crew(root / "cases", 1).run([running.Case("sleeps", sleeps)]):
                pass
        return 0

    def sleeps(folder: Path) -> int:
        part("disks").disk(folder / "disk").__enter__()  # only root may, and it stays
        seen.write_text(str(os.getpid()))
        time.sleep(600)
        return 0

    pid = running.start(tmp_path / "said", campaign)
    try:
        until(lambda: seen.exists() and seen.read_text())
        child = int(seen.read_text())
        os.kill(pid, number)
        until(lambda: running.ended(pid) is not None)
        until(lambda: not has_process(child))
        if number != signal.SIGKILL:
            assert list(parent.iterdir()) == []
        with running.workplace(parent) as root:
            assert list(parent.iterdir()) == [root]
        assert list(parent.iterdir()) == []
        assert not os.path.exists("/proc/mounts") or str(parent) not in Path("/proc/mounts").read_text()
    finally:
        running.end(pid)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
