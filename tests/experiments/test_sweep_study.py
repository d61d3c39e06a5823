"""Who runs which point: real Optuna, real second processes that are really killed, no training."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import sqlalchemy

from dapl.common.errors import DaplError
from dapl.experiments import sweep_study
from dapl.experiments.sweep_space import Choices, Interval, Panel, Values, parse_objectives
from dapl.experiments.sweep_study import PanelStudy, open_storage, point_text

GRID = Panel("grid", "", (Choices("a", (1, 2, 3)), Choices("b", ([1], [1, 2]))), {})
SEARCH = Panel("search", "", (Interval("x", 0.01, 10.0, True), Choices("kind", ("p", "q"))), {})
MANY = Panel("many", "", (Choices("a", tuple(range(8))), Choices("b", (0.5, 1.5))), {})


def opened(
    folder: Path, panel: Panel, trials: int | None = None, url: str | None = None, objectives: str = "accuracy"
) -> PanelStudy:
    folder.mkdir(exist_ok=True)
    storage, lock = open_storage(url, folder)
    return PanelStudy("test", panel, parse_objectives([objectives]), storage, lock, trials, 0)


def score(values: Values) -> float:
    return -abs(values["x"] - 1) + (values["kind"] == "q")


def work(study: PanelStudy, count: int = 1000) -> list[Values]:
    """Take and finish up to ``count`` points."""
    done: list[Values] = []
    while len(done) < count and (claimed := study.claim()) is not None:
        trial, values = claimed
        study.finish(trial, [score(values) if "x" in values else 0.0], {"n": len(done)})
        done.append(values)
    return done


def die(study: PanelStudy, table: str = "trial_heartbeats", column: str = "heartbeat") -> None:
    """What is left of a process some time after kill -9: its last sign of life is long ago."""
    with study.storage.engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"UPDATE {table} SET {column} = '2000-01-01 00:00:00'"))


def test_a_grid_is_done_once(tmp_path: Path) -> None:
    study = opened(tmp_path, GRID)
    done = work(study)
    assert done == list(GRID.points())
    assert isinstance(done[0]["b"], list)
    assert study.claim() is None
    assert study.counts() == (6, 0)
    again = opened(tmp_path, GRID)
    assert again.claim() is None
    assert [values for _, values, _ in again.finished()] == done


def test_what_a_living_process_runs_is_left_alone(tmp_path: Path) -> None:
    first, second = opened(tmp_path, GRID), opened(tmp_path, GRID)
    claimed = first.claim()
    assert claimed[1] not in work(second)
    assert second.counts() == (5, 1)
    first.finish(claimed[0], [0.0], {})
    assert second.counts() == (6, 0)


def test_what_a_dead_process_ran_is_taken_again(tmp_path: Path) -> None:
    first = opened(tmp_path, GRID)
    claimed = first.claim()
    assert claimed is not None
    die(first)
    done = work(opened(tmp_path, GRID))
    assert sorted(map(point_text, done)) == sorted(map(point_text, GRID.points()))


def test_a_process_that_dies_before_its_first_heartbeat(tmp_path: Path) -> None:
    first = opened(tmp_path, GRID)
    first._fill_queue()
    with warnings.catch_warnings(action="ignore"):
        first.study.ask()  # killed here
    assert len(work(opened(tmp_path, GRID))) == 5, "it may still be alive"
    die(first, "trials", "datetime_start")
    assert len(work(opened(tmp_path, GRID))) == 1


def test_a_process_that_was_only_silent_finds_its_point_taken(tmp_path: Path) -> None:
    first = opened(tmp_path, GRID)
    claimed = first.claim()
    die(first)
    second = opened(tmp_path, GRID)
    assert len(work(second)) == 6
    first.finish(claimed[0], [9.0], {"n": "late"})
    assert second.counts() == (6, 0)
    assert "late" not in [measured["n"] for _, _, measured in second.finished()]
    first.fail(claimed[0], "too late as well")
    assert second.failures() == []


@pytest.mark.parametrize("moment", ["record_heartbeat", "set_trial_user_attr"])
def test_a_machine_that_sleeps_while_it_takes_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another machine of the database, with a lock of its own, closes the trial in the middle of the taking."""
    first, second = opened(tmp_path, GRID), opened(tmp_path, GRID)
    second._lock = contextlib.nullcontext
    original, asked, slept = getattr(first.storage, moment), first.study.ask, []

    def sleep(*words: object, **named: object) -> object:
        if slept == ["asked"]:
            slept.append("slept")
            die(first, "trials", "datetime_start")
            die(first)
            work(second)
        return original(*words, **named)

    monkeypatch.setattr(first.study, "ask", lambda: slept.append("asked") or asked())
    monkeypatch.setattr(first.storage, moment, sleep)
    assert work(first) == []
    assert slept[:2] == ["asked", "slept"]
    assert second.counts() == (6, 0)


def test_what_was_interrupted_is_given_back_at_once(tmp_path: Path) -> None:
    study = opened(tmp_path, GRID)
    claimed = study.claim()
    study.give_back(claimed[0])
    assert len(work(opened(tmp_path, GRID))) == 6


def test_a_point_that_failed_is_tried_again_by_the_next_start_only(tmp_path: Path) -> None:
    study = opened(tmp_path, GRID)
    claimed = study.claim()
    study.fail(claimed[0], "diverged")
    assert claimed[1] not in work(study)
    assert study.failures() == [(claimed[1], "diverged")]
    again = opened(tmp_path, GRID)
    assert work(again) == [claimed[1]]
    assert again.failures() == []


def test_two_entries_of_one_point_in_the_queue(tmp_path: Path) -> None:
    """As two machines leave them that fill the queue in the same moment."""
    study = opened(tmp_path, GRID)
    study._fill_queue()
    for values in GRID.points():
        parameters = {"a": values["a"], "b": json.dumps(values["b"])}
        study.study.enqueue_trial(parameters, user_attrs={"point": point_text(values)})
    done = work(study)
    assert collections.Counter(map(point_text, done)) == collections.Counter(map(point_text, GRID.points()))


CLAIMER = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[4])
from dapl.experiments import sweep_study
from test_sweep_study import MANY, QUICK, opened
folder, url, seconds = pathlib.Path(sys.argv[1]), sys.argv[2] or None, float(sys.argv[3])
if seconds > 1:
    sweep_study.DATABASE_HEARTBEAT = QUICK
study = opened(folder, MANY, url=url)
while (claimed := study.claim()) is not None:
    trial, values = claimed
    with study.heartbeat(trial):
        print(values["a"], values["b"], flush=True)
        time.sleep(seconds)
    study.finish(trial, [0.0], {})
"""


QUICK = {"heartbeat_interval": 1, "grace_period": 2}


def claimer(folder: Path, url: str | None, seconds: float) -> subprocess.Popen:
    """A second process that works on the study, and prints each point when it takes it."""
    arguments = [str(folder), url or "", str(seconds), str(Path(__file__).parent)]
    return subprocess.Popen([sys.executable, "-c", CLAIMER, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("machines", [1, 2], ids=["one folder", "two folders, one database"])
def test_two_processes_never_run_the_same_point(tmp_path: Path, machines: int) -> None:
    url = None if machines == 1 else f"sqlite:///{tmp_path / 'shared.db'}"
    process = claimer(tmp_path / "a", url, 0.02)
    theirs = [process.stdout.readline().strip()]
    mine = [f"{values['a']} {values['b']}" for values in work(opened(tmp_path / "ab"[machines - 1], MANY, url=url))]
    theirs += process.communicate(timeout=200)[0].split("\n")[:-1]
    assert process.returncode == 0
    assert mine, "one of them had nothing to do"
    assert collections.Counter(mine + theirs) == collections.Counter(f"{a} {b}" for a in range(8) for b in (0.5, 1.5))


def test_kill_9_lets_go_and_a_heartbeat_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_study, "DATABASE_HEARTBEAT", QUICK)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    process = claimer(tmp_path / "far", url, 1000)
    a, b = process.stdout.readline().split()
    study = opened(tmp_path / "near", MANY, url=url)
    assert len(work(study)) == 15
    time.sleep(3.5)
    assert study.claim() is None, "it gave signs of life"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 60
    while not (done := work(study)) and time.monotonic() < until:
        time.sleep(0.2)
    assert done == [{"a": int(a), "b": float(b)}]


# --- search ---------------------------------------------------------------------------------------------------------


def test_a_search_is_seeded_and_goes_on_as_it_would_have(tmp_path: Path) -> None:
    whole = work(opened(tmp_path / "whole", SEARCH, trials=14))
    assert len(whole) == 14
    assert all(0.01 <= values["x"] <= 10 and values["kind"] in ("p", "q") for values in whole)
    assert len({values["x"] for values in whole}) == 14

    first = opened(tmp_path / "parts", SEARCH, trials=6)
    done = work(first)
    more = opened(tmp_path / "parts", SEARCH, trials=14)
    done += work(more, 5)
    claimed = more.claim()
    die(more)
    done += work(opened(tmp_path / "parts", SEARCH, trials=14))
    assert claimed[1] == whole[11]
    assert done == whole


def test_a_search_learns(tmp_path: Path) -> None:
    """After its random start, TPE goes where the score is good: kind q, x near 1."""
    done = work(opened(tmp_path, SEARCH, trials=24))
    late = done[14:]
    assert sum(values["kind"] == "q" for values in late) > 7


def test_a_failed_draw_counts(tmp_path: Path) -> None:
    study = opened(tmp_path, SEARCH, trials=3)
    claimed = study.claim()
    study.fail(claimed[0], "diverged")
    assert len(work(study)) == 2
    assert work(opened(tmp_path, SEARCH, trials=3)) == []


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    panel = Panel("p", "", (Choices("a", (0, 1, 2, 3)),), {})
    study = opened(tmp_path, panel, objectives="accuracy,redundancy")
    results = {0: (0.9, 0.5), 1: (0.8, 0.1), 2: (0.7, 0.3), 3: (0.9, 0.6)}
    while (claimed := study.claim()) is not None:
        study.finish(claimed[0], results[claimed[1]["a"]], {})
    best = set(study.best())
    assert [values["a"] for number, values, _ in study.finished() if number in best] == [0, 1]


# --- storage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:///no-such-folder/x.db", "oracle+nothing://host/name"], ids=["no URL", "path", "driver"]
)
def test_a_storage_that_cannot_be_opened(tmp_path: Path, url: str) -> None:
    with pytest.raises(DaplError, match="--storage: cannot be opened"):
        open_storage(url, tmp_path)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("something else" * 1000)
    with pytest.raises(DaplError, match=r"study\.db"):
        open_storage(None, tmp_path)
