"""A run can be killed at any moment, and goes on to the same end."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dapl.batches.run_data import RunData
from dapl.cli import main
from dapl.config import Config, dump_config
from dapl.runs.run import Run
from dapl.training import trainer
from dapl.training.trainer import train

from ..forked import Forked
from .conftest import UP_AND_DOWN, Killed, assert_same_run, train_and_copy

CRASHED: dict[str, Any] = {
    "data.classes": 2,
    "schedule": [
        {"stage": "warm_up", "epochs": 2, "batch_size": 8, "augment": "flip"},
        {"stage": "joint", "epochs": 1, "batch_size": 5, "augment": "affine"},
        {"stage": "project"},
        {"stage": "weigh_heads"},
        {"stage": "last_layer", "epochs": 2},
        {"stage": "prune", "threshold": 0.9},
    ],
    "runtime.checkpoint_steps": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [CRASHED, UP_AND_DOWN], ids=["all stages", "its best is not its last"])
def test_a_run_that_ends_before_any_of_its_writes_is_resumed_to_the_same_end(
    configured: Callable[..., Config], tmp_path: Path, overrides: dict[str, Any]
) -> None:
    whole, copies = train_and_copy(configured(overrides), tmp_path / "whole")
    assert len(copies) > 13
    for run in copies:
        train(run.config(), run.folder, resume=True, quiet=True)
        assert_same_run(run, whole)


def test_a_resumed_stage_reads_its_data_in_the_same_way(
    configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images instead of features would do, but not to the last bit: batches are cut differently."""
    config, used = configured(CRASHED), []
    source, images = RunData.source, RunData.images

    def noted(method: Callable, name: str) -> Callable:
        def call(self: RunData, split: Any, *arguments: Any) -> Any:
            used.append((name, split))
            return method(self, split, *arguments)

        return call

    run = Run(tmp_path / "killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "_project", kill)
        with pytest.raises(Killed):
            train(config, run.folder, quiet=True)
    monkeypatch.setattr(RunData, "source", noted(source, "features"))
    monkeypatch.setattr(RunData, "images", noted(images, "images"))
    train(config, run.folder, resume=True, quiet=True)
    resumed = used.copy()
    used.clear()
    train(config, tmp_path / "whole", quiet=True)
    assert len(resumed) > 3
    assert used[-len(resumed) :] == resumed


def kill(*arguments: Any) -> None:
    raise Killed


def test_a_line_cut_short_is_forgotten(configured: Callable[..., Config], tmp_path: Path) -> None:
    whole, copies = train_and_copy(configured(CRASHED), tmp_path / "whole")
    run = copies[14]
    with run.metrics_file.open("a") as file:
        file.write('{"event": "epoch", "stage": 0, "na')
    train(run.config(), run.folder, resume=True, quiet=True)
    assert_same_run(run, whole)


class Training(Forked):
    """``dapl train`` in a process of its own."""

    def __init__(self, said: Path, *arguments: str) -> None:
        super().__init__(said, main, ["train", *arguments])

    def kill_when(self, reached: Callable[[], bool], delay: float) -> None:
        """SIGKILL some seconds after the first moment that ``reached`` is seen to be true."""
        deadline = time.monotonic() + 120
        try:
            while not reached():
                assert self.process.is_alive(), f"ended before that moment: {self.said.read_text()}"
                assert time.monotonic() < deadline
                time.sleep(0.002)
            time.sleep(delay)
        finally:
            self.process.kill()
            self.process.join(30)


def logged(run: Run, name: str, event: str, at_least: int = 1) -> bool:
    return sum(line["name"] == name and line["event"] == event for line in run.logged()) >= at_least


@pytest.mark.slow
def test_kill_minus_nine_at_several_moments_ends_in_the_same_weights(
    configured: Callable[..., Config], tmp_path: Path
) -> None:
    schedule = [
        {"stage": "warm_up", "epochs": 3, "batch_size": 4, "augment": "flip"},
        {"stage": "joint", "epochs": 2, "batch_size": 4, "augment": "affine"},
        {"stage": "project"},
        {"stage": "last_layer", "epochs": 300},
        {"stage": "prune", "threshold": 0.9},
        {"stage": "last_layer", "epochs": 300},
    ]
    config = configured({"schedule": schedule, "runtime.checkpoint_steps": 1})
    paths = {}
    for name in ("whole", "killed"):
        paths[name] = tmp_path / f"{name}.yaml"
        cache = config.cache.model_copy(update={"folder": str(tmp_path / f"cache of {name}")})
        paths[name].write_text(dump_config(config.model_copy(update={"cache": cache})))
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    said = tmp_path / "said.txt"
    Training(said, str(paths["whole"]), "--out", str(whole.folder)).finish()
    moments: list[Callable[[], bool]] = [
        run.last.exists,  # the first checkpoint, in the middle of the first epoch
        lambda: logged(run, "joint", "epoch"),
        lambda: logged(run, "project", "stage"),
        lambda: logged(run, "last_layer", "epoch", at_least=40),
    ]
    generator = random.Random(0)
    arguments = [str(paths["killed"]), "--out", str(run.folder)]
    for moment in moments:
        training = Training(said, *arguments)
        training.kill_when(moment, generator.uniform(0, 0.03))
        assert training.process.exitcode == -signal.SIGKILL
        arguments = ["--resume", str(run.folder)]
    half = run.last.with_name(".last.safetensors.1.tmp")  # as it is left where the kill meets a write
    half.write_bytes(b"half of it")
    # and once at a moment that nothing chose, somewhere in the last stages or the evaluation
    Training(said, *arguments).kill_when(
        lambda: said.read_text().startswith("resuming at stage"), generator.uniform(0, 0.5)
    )
    Training(said, *arguments).finish()
    assert not list(run.folder.rglob("*.tmp"))
    assert_same_run(run, whole)
    assert json.loads(run.evaluation_file.read_text()) == json.loads(whole.evaluation_file.read_text())
