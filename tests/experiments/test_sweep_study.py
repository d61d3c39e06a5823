"""Who runs which point: real Optuna, real second processes that are really killed, no training."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dapl.common.errors import DaplError
from dapl.experiments.sweep_space import Choices, Interval, Panel, Values, parse_objectives
from dapl.experiments.sweep_study import PanelStudy, Worker, need_optuna, open_storage, point_text

GRID = Panel("grid", "", (Choices("a", (1, 2, 3)), Choices("b", ([1], [1, 2]))), {})
SEARCH = Panel("search", "", (Interval("x", 0.01, 10.0, True), Choices("kind", ("p", "q"))), {})


def opened(
    folder: Path, panel: Panel, trials: int | None = None, url: str | None = None, objectives: str = "accuracy"
) -> PanelStudy:
    need_optuna()
    worker = Worker(folder)
    storage = open_storage(url, folder)
    return PanelStudy("test", panel, parse_objectives([objectives]), storage, url is None, worker, trials, 0)


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


def die(study: PanelStudy) -> None:
    """What is left of a process after kill -9: the lock file, without the lock."""
    study.worker._lock.release()


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
    assert claimed is not None
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


def test_a_process_that_dies_before_it_signed_its_trial(tmp_path: Path) -> None:
    first = opened(tmp_path, GRID)
    first._fill_queue()
    first.study.ask()  # killed here
    die(first)
    assert len(work(opened(tmp_path, GRID))) == 6


def test_a_point_that_failed_is_tried_again_by_the_next_start_only(tmp_path: Path) -> None:
    study = opened(tmp_path, GRID)
    claimed = study.claim()
    assert claimed is not None
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
sys.path.insert(0, sys.argv[5])
from test_sweep_study import opened
from dapl.experiments.sweep_space import Choices, Panel
from dapl.experiments.sweep_space import show
panel = Panel("many", "", (Choices("a", tuple(range(8))), Choices("b", (0.5, 1.5))), {})
folder, url, ready, other = sys.argv[1], sys.argv[2] or None, pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
study = opened(pathlib.Path(folder), panel, url=url)
ready.touch()
while not other.exists():
    time.sleep(0.005)
while (claimed := study.claim()) is not None:
    trial, values = claimed
    print(values["a"], values["b"], flush=True)
    time.sleep(0.02)
    study.finish(trial, [0.0], {})
"""


@pytest.mark.parametrize("machines", [1, 2], ids=["one folder", "two folders, one database"])
def test_two_processes_never_run_the_same_point(tmp_path: Path, machines: int) -> None:
    url = "" if machines == 1 else f"sqlite:///{tmp_path / 'shared.db'}"
    folders = [tmp_path / "a", tmp_path / ("a" if machines == 1 else "b")]
    flags = [tmp_path / "ready-0", tmp_path / "ready-1"]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                CLAIMER,
                str(folders[i]),
                url,
                str(flags[i]),
                str(flags[1 - i]),
                str(Path(__file__).parent),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    printed = [process.communicate(timeout=200)[0].split("\n")[:-1] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert all(printed), "one of them had nothing to do"
    counted = collections.Counter(printed[0] + printed[1])
    assert counted == collections.Counter(f"{a} {b}" for a in range(8) for b in (0.5, 1.5))


def test_kill_9_lets_go_at_once(tmp_path: Path) -> None:
    code = CLAIMER.replace("time.sleep(0.02)", "time.sleep(1000)")
    flag = tmp_path / "go"
    flag.touch()
    arguments = [str(tmp_path / "a"), "", str(tmp_path / "ready"), str(flag), str(Path(__file__).parent)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    taken = process.stdout.readline().split()
    panel = Panel("many", "", (Choices("a", tuple(range(8))), Choices("b", (0.5, 1.5))), {})
    study = opened(tmp_path / "a", panel)
    claimed = study.claim()
    assert claimed is not None
    assert [str(value) for value in claimed[1].values()] != taken, "it is still being run"
    study.finish(claimed[0], [0.0], {})
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = work(study)
    assert taken in [[str(value) for value in values.values()] for values in done]
    assert len(done) == 15


def test_a_silent_machine_loses_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapl.experiments.sweep_study.HEARTBEAT_SECONDS", 1)
    monkeypatch.setattr("dapl.experiments.sweep_study.SILENT_SECONDS", 2)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    far, near = opened(tmp_path / "far", GRID, url=url), opened(tmp_path / "near", GRID, url=url)
    claimed = far.claim()
    assert claimed is not None
    with far.sign_of_life(claimed[0]):
        time.sleep(3.5)
        assert claimed[1] not in work(near), "it gave signs of life"
    assert near.counts() == (5, 1)
    time.sleep(3.5)  # the far machine is gone
    assert work(near) == [claimed[1]]


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
    assert claimed is not None
    die(more)
    done += work(opened(tmp_path / "parts", SEARCH, trials=14))
    assert claimed[1] == whole[11]
    assert done == whole


def test_a_search_learns(tmp_path: Path) -> None:
    """After its random start, TPE goes where the score is good: kind q, x near 1."""
    done = work(opened(tmp_path, SEARCH, trials=30))
    late = done[15:]
    assert sum(values["kind"] == "q" for values in late) > 10


def test_a_failed_draw_counts(tmp_path: Path) -> None:
    study = opened(tmp_path, SEARCH, trials=3)
    claimed = study.claim()
    assert claimed is not None
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
    "url",
    ["nonsense", "sqlite:///no-such-folder/x.db", "oracle+nothing://host/name"],
    ids=["no URL", "path", "driver"],
)
def test_a_storage_that_cannot_be_opened(tmp_path: Path, url: str) -> None:
    Worker(tmp_path)
    with pytest.raises(DaplError, match="--storage: cannot be opened"):
        open_storage(url, tmp_path)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    Worker(tmp_path)
    (tmp_path / "study.db").write_text("something else" * 1000)
    with pytest.raises(DaplError, match=r"study\.db"):
        open_storage(None, tmp_path)


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(DaplError, match=r"pip install 'dapl\[sweep\]'"):
        need_optuna()


def test_a_worker_sees_who_lives(tmp_path: Path) -> None:
    one, other = Worker(tmp_path), Worker(tmp_path)
    assert other.is_alive(one.name)
    one.leave()
    assert not other.is_alive(one.name)
    assert not other.is_alive("nobody")
    other._lock.release()
    assert not Worker(tmp_path).is_alive(other.name)
