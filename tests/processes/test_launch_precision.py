"""A precision that the processor cannot do is found before training; where it can, it gives what float32 gives."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.processes import launch
from dapl.processes.launch import check_precision
from dapl.training.trainer import train


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGILL)


def _dies_with_new_instructions() -> None:
    if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE":
        _dies()


def test_an_illegal_instruction_is_found_in_a_child_process() -> None:
    with pytest.raises(
        DaplError, match=r"^runtime.precision: bf16-mixed ends with SIGILL on .* trained; use 32-true\.$"
    ):
        check_precision("bf16-mixed", _dies)


def test_the_way_round_is_one_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    with pytest.raises(DaplError, match="set ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment, with which it worked"):
        check_precision("bf16-true", _dies_with_new_instructions)
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def test_other_precisions_and_ordinary_errors_are_not_its_business() -> None:
    check_precision("32-true", _dies)
    check_precision("bf16-mixed", lambda: 1 / 0)


def test_a_run_does_not_start_where_it_would_die(
    configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_bfloat16_step", _dies)
    with pytest.raises(DaplError, match="SIGILL"):
        train(configured({"runtime.precision": "bf16-mixed"}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_in_bfloat16_ends_near_one_in_float32(configured: Callable[..., Config], tmp_path: Path) -> None:
    """bfloat16 has 8 bits: the first epoch agrees to some hundredths, and what follows from it stays near."""
    schedule = [
        {"stage": "warm_up", "epochs": 2, "batch_size": 8},
        {"stage": "joint", "epochs": 1, "batch_size": 8},
        {"stage": "project"},
        {"stage": "last_layer", "epochs": 2},
        {"stage": "prune"},
    ]
    found = []
    for name in ("32-true", "bf16-mixed"):
        try:
            run = train(configured({"runtime.precision": name, "schedule": schedule}), tmp_path / name, quiet=True)
        except DaplError as error:
            pytest.skip(str(error))
        found.append([entry for entry in run.logged() if entry["event"] == "epoch"])
    losses = [[entry["train"]["cross_entropy"] for entry in entries] for entries in found]
    assert len(losses[0]) == 5
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.03), losses
    assert losses[1] == pytest.approx(losses[0], rel=0.15), losses
    assert losses[0] != losses[1], "both ran in the same precision"
