"""Processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from dapl.common.liveness import end_with_parent, has_process


def wait_for(pids: Path, before: float) -> None:
    """A process that takes a while until it watches its parent, as one does that imports torch first."""
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(before)
    end_with_parent()
    time.sleep(600)


def start_two(how: str, pids: Path, before: float) -> None:
    os.setsid()
    for _ in range(2):
        multiprocessing.get_context(how).Process(target=wait_for, args=(pids, before)).start()
    time.sleep(600)


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize("before", [0.0, 0.5], ids=["watching", "not yet watching"])
def test_it_ends_when_its_parent_was_killed(how: str, before: float, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    parent = multiprocessing.get_context("fork").Process(target=start_two, args=(how, pids, before))
    parent.start()
    assert parent.pid is not None
    try:
        until(lambda: len(pids.read_text().split()) == 2)
        os.kill(parent.pid, signal.SIGKILL)
        parent.join()
        until(lambda: not any(has_process(int(number)) for number in pids.read_text().split()))
    finally:
        for number in pids.read_text().split():
            if has_process(int(number)):
                os.kill(int(number), signal.SIGKILL)


def until(true) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
