"""While a command loads its libraries the garbage collector rests, and is at work afterwards."""

from __future__ import annotations

import gc

import pytest

from dapl.cli import loading


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the collector rested, each time when all objects were handed over; those of the tests are not."""
    calls: list[bool] = []
    monkeypatch.setattr(loading, "_done", False)
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
