"""While a command loads its libraries the garbage collector rests, and freed memory is kept for what comes next."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from dapl.cli import loading


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the collector rested, each time when all objects were handed over; those of the tests are not."""
    calls: list[bool] = []
    monkeypatch.setattr(loading, "_done", False)
    monkeypatch.setattr(loading, "keep_freed_memory", lambda: True)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(not gc.isenabled()))
    return calls


def test_once_per_process(frozen: list[bool]) -> None:
    for expected in (False, True):
        with loading.loading():
            assert gc.isenabled() is expected
        assert gc.isenabled()
    assert frozen == [True]


def test_an_import_that_fails(frozen: list[bool]) -> None:
    with pytest.raises(ModuleNotFoundError), loading.loading():
        import dapl.not_there  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
    assert frozen == [True]


def test_who_does_without_a_collector_is_left_alone(frozen: list[bool]) -> None:
    gc.disable()
    try:
        with loading.loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert frozen == []


FAULTS = """
import resource, sys, torch
from dapl.cli.loading import keep_freed_memory

torch.set_num_threads(1)
print(keep_freed_memory())
for _ in range(3):
    torch.ones(10 * 2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(10 * 2**20)  # 40 MB, 10,240 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 150_000)
"""


@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="not glibc")
@pytest.mark.parametrize(("given", "kept"), [({}, ["True", "True"]), ({"MALLOC_ARENA_MAX": "2"}, ["False", "False"])])
def test_freed_memory_is_kept_for_the_next_tensors(given: dict[str, str], kept: list[str]) -> None:
    left = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=left | given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == kept
