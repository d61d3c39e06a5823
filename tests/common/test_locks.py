"""A lock keeps others out, says who holds it, and is free when its holder is dead, however that came about."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from dapl.common.errors import LockedError, WriteError
from dapl.common.locks import locked

fork = get_context("fork")


@pytest.fixture
def held(tmp_path: Path):
    """The path of a lock that another process holds, and that process."""
    path = tmp_path / "run" / ".lock"

    def hold() -> None:
        with locked(path, "training"):
            # a process that it forked, as those that load images, outlives it
            fork.Process(target=time.sleep, args=(3,)).start()
            time.sleep(60)

    process = fork.Process(target=hold)
    process.start()
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text().endswith("}\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield path, process
    process.kill()
    process.join()


def test_another_process_is_kept_out_and_told_by_whom(held) -> None:
    path, process = held
    with pytest.raises(LockedError) as caught, locked(path, "measuring"):
        pass
    said = str(caught.value)
    assert said.startswith(f"{path.parent}: process {process.pid} on ")
    assert "has been training there since 20" in said
    assert said.endswith("; wait until it is through, or name another folder.")


def test_the_lock_of_a_dead_holder_is_taken_over(held) -> None:
    path, process = held
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert path.exists()
    with locked(path, "measuring"):
        assert json.loads(path.read_text())["process"] == os.getpid()
    assert not path.exists()


def test_one_that_waits_gets_it_as_soon_as_it_is_free(held) -> None:
    path, process = held

    def let_go() -> None:
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)

    killer = fork.Process(target=let_go)
    killer.start()
    with locked(path, "measuring", wait=60):
        assert not process.is_alive()
    killer.join()


def test_of_many_at_once_one_at_a_time_has_it(tmp_path: Path) -> None:
    """Each adds one to a number in a file, which goes wrong where two do so in the same moment."""
    number = tmp_path / "number"
    number.write_text("0")

    def add() -> None:
        for _ in range(5):
            with locked(tmp_path / ".lock", "adding", wait=60):
                read = int(number.read_text())
                time.sleep(0.002)
                number.write_text(str(read + 1))

    processes = [fork.Process(target=add) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert number.read_text() == "20"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["number"]


def test_a_forked_process_does_not_give_back_what_is_its_parent_s(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path, "training"):
        child = fork.Process(target=_try, args=(path,))
        child.start()
        child.join()
        assert child.exitcode == 3
        assert path.exists()


def _try(path: Path) -> None:
    try:
        with locked(path, "measuring"):
            os._exit(1)
    except LockedError:
        os._exit(3)


@pytest.mark.parametrize("make", [lambda path: Path("/dev/null/.lock"), lambda path: path / ("n" * 300) / ".lock"])
def test_a_place_that_cannot_be(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot be written"), locked(make(tmp_path), "training"):
        pass
