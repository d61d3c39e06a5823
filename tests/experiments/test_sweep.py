"""`dapl sweep` from end to end on drawn birds: files, numbers, resuming, and what is refused."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from PIL import Image
from torch import Tensor

from dapl.cli import main
from dapl.evaluation import evaluate
from dapl.experiments import sweep_study
from dapl.models.backbone import Backbone
from dapl.runs.run import Run

from ..forked import Forked


def trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    url = f"sqlite:///{folder / 'study.db'}"
    found = [optuna.load_study(study_name=name, storage=url) for name in optuna.get_all_study_names(url)]
    return [trial for study in found for trial in study.get_trials()]


def states(folder: Path) -> list[str]:
    return [trial.state.name for trial in trials(folder)]


@pytest.fixture
def sweep(tmp_path: Path, write: Callable[..., Path]) -> Callable[..., int]:
    """``sweep("--grid", …)``: on the tiny config, in the folder tmp_path/out."""

    def run(*arguments: str, config: dict[str, Any] | None = None) -> int:
        return main(["sweep", str(write(config)), "--out", str(tmp_path / "out"), *arguments])

    return run


def test_a_grid_with_seeds_and_test(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ("--grid", "model.head_dim=2,4", "--seeds", "0,1", "--test", "--objective", "coverage,redundancy")
    assert sweep(*command) == 0
    said = capsys.readouterr()
    assert "model.head_dim" in said.out
    assert "Pareto front on validation (highest coverage, lowest redundancy)" in said.out
    assert "test was measured at the end; nothing was chosen by it" in said.out
    assert sorted(path.name for path in (out / "runs").iterdir() if not path.name.startswith(".")) == [
        "base,seed=0",
        "base,seed=1",
        "model.head_dim=2,seed=0",
        "model.head_dim=2,seed=1",
    ]

    # the numbers are those of `dapl evaluate`, on validation, and mean and deviation are over the seeds
    rows = {row["model.head_dim"]: row for row in csv.DictReader((out / "sweep.csv").read_text().splitlines())}
    written = json.loads((out / "sweep.json").read_text())
    numbers = ("accuracy", "coverage", "diversity", "background_bias")
    for prefix, split in (("", "validation"), ("test_", "test")):
        folders = [out / "runs" / f"model.head_dim=2,seed={seed}" for seed in (0, 1)]
        found = [evaluate(folder, None, split, numbers, quiet=True, files=False) for folder in folders]  # type: ignore[arg-type]
        for number in numbers:
            values = [run[number] for run in found]
            assert float(rows["2"][prefix + number]) == pytest.approx(np.mean(values))
            assert float(rows["2"][f"{prefix}{number}_std"]) == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert written["chosen_on"] == "validation"
    assert [row["model.head_dim"] for row in written["rows"]] == [2, 4]
    assert len(written["rows"][0]["coverage"]["values"]) == 2
    for name in ("sweep.png", "sweep-test.png"):
        assert Image.open(out / name).width > 1500
    assert "± " in (out / "sweep.md").read_text()

    # started again, nothing is trained or measured
    monkeypatch.setattr("dapl.training.trainer.Trainer.train", lambda self: pytest.fail("trained again"))
    monkeypatch.setattr("dapl.evaluation.evaluate", lambda *rest, **more: pytest.fail("measured again"))
    before = (out / "sweep.csv").read_text()
    assert sweep(*command) == 0
    assert (out / "sweep.csv").read_text() == before
    assert states(out) == ["COMPLETE"] * 2


def test_a_wider_grid_keeps_the_runs_there_are(
    sweep: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dapl.training.trainer import Trainer

    trained: list[str] = []
    whole = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self: (trained.append(self.run.folder.name), whole(self))[1])
    assert sweep("--grid", "loss.cluster=0.5") == 0
    assert sweep("--grid", "loss.cluster=0.5,1") == 0
    assert trained == ["loss.cluster=0.5,seed=0", "loss.cluster=1.0,seed=0"]
    rows = json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"]
    assert [row["loss.cluster"] for row in rows] == [0.5, 1.0]

    # when the metrics have changed, nothing is trained and all is measured again
    for module in ("sweep", "many_runs"):
        monkeypatch.setattr(f"dapl.experiments.{module}.code_digest", lambda: "other metrics")
    again: list[Path] = []
    monkeypatch.setattr(
        "dapl.evaluation.evaluate", lambda run, *rest, **more: (again.append(run), evaluate(run, *rest, **more))[1]
    )
    assert sweep("--grid", "loss.cluster=0.5,1") == 0
    assert len(trained) == len(again) == 2
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"] == rows


def test_runs_that_differ_in_the_head_share_the_features(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, seen = tmp_path / "cache", 0
    forward = Backbone.forward

    def counted(self: Backbone, images: Tensor) -> Tensor:
        nonlocal seen
        seen += len(images)
        return forward(self, images)

    monkeypatch.setattr(Backbone, "forward", counted)
    config = str(write({"cache": {"folder": str(cache)}}))
    assert main(["sweep", config, "--out", str(tmp_path / "one"), "--grid", "model.head_dim=4"]) == 0
    passed, files = seen, sorted(path.name for path in cache.iterdir())
    assert passed >= 16
    grids = ["--grid", "model.head_dim=2,8", "--grid", "loss.contrast.weight=0,2"]
    assert main(["sweep", config, "--out", str(tmp_path / "two"), *grids]) == 0
    assert len(json.loads((tmp_path / "two" / "sweep.json").read_text())["rows"]) == 4
    assert seen == passed, "a run that differs only in the head passed images through the backbone"
    assert sorted(path.name for path in cache.iterdir()) == files


@pytest.mark.slow
def test_a_search(sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    space = ("--search", "loss.foreground.weight=log:0.1:20", "--grid", "loss.contrast.positives=class,all")
    assert sweep(*space, "--trials", "2") == 0
    first = json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"]
    assert sweep(*space, "--trials", "3") == 0
    rows = json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"]
    assert len(rows) == 3
    kept = [{**row, "best": ""} for row in rows]
    assert all({**row, "best": ""} in kept for row in first)
    assert all(0.1 <= row["loss.foreground.weight"] <= 20 for row in rows)
    assert (tmp_path / "out" / "sweep.png").stat().st_size > 10_000
    assert "best on validation (highest accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_the_paper_s_figure_has_three_panels(sweep: Callable[..., int], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "contrast: {grid: {loss.contrast.weight: [0.01, 5]}}\n"
        "fg_weight: {grid: {loss.foreground.weight: [20]}, fixed: {loss.foreground.threshold: 0.3}}\n"
        "fg_threshold: {grid: {loss.foreground.threshold: [0.3]}, fixed: {loss.foreground.weight: 20}}\n"
        "head_dim: {grid: {model.head_dim: [4]}}\n"
    )
    assert sweep("--ablation", str(file)) == 0
    names = ("sweep", "contrast", "fg_weight", "fg_threshold", "head_dim")
    assert all((tmp_path / "out" / f"{name}.png").is_file() for name in names)
    runs = [path for path in (tmp_path / "out" / "runs").iterdir() if path.is_dir()]
    assert len(runs) == 4, "the run that two panels have in common was trained twice"


# --- killed, interrupted, failed ------------------------------------------------------------------------------------


def killed(how: signal.Signals, command: list[str]) -> int:
    """`dapl`, which gets a signal when it has logged five epochs; to be called in a process of its own."""
    log = Run.log

    def counted(run: Run, entry: dict[str, Any]) -> None:
        log(run, entry)
        if len(run.logged()) == 5:
            os.kill(os.getpid(), how)

    Run.log = counted  # type: ignore[method-assign]
    return main(command)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_killed_while_training(
    write: Callable[..., Path], tmp_path: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_study, "FOLDER_HEARTBEAT", {"heartbeat_interval": 1, "grace_period": 2})
    epochs, out = 10, tmp_path / "out"
    command = ["sweep", str(write({"schedule": [{"stage": "warm_up", "epochs": epochs}]})), "--out", str(out)]
    command += ["--grid", "loss.cluster=0.5"]
    said = Forked(tmp_path / "said", killed, how, command).finish(130 if how == signal.SIGINT else -signal.SIGKILL)
    assert ("dapl: interrupted; the same command goes on" in said) == (how == signal.SIGINT)
    run = Run(out / "runs" / "loss.cluster=0.5,seed=0")
    before = run.logged()[:4]
    assert states(out) == ["RUNNING" if how == signal.SIGKILL else "FAIL"]
    assert main(command) == 0
    logged = run.logged()
    assert logged[:4] == before, "it began anew: the speeds of the first epochs are others"
    assert [entry["epoch"] for entry in logged if entry["event"] == "epoch"] == list(range(epochs))
    assert states(out) == ["FAIL", "COMPLETE"]


@pytest.mark.slow
def test_two_processes_share_the_work(write: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["sweep", str(write()), "--out", str(out), "--grid", "loss.cluster=0.1,0.2,0.3,0.4"]
    other = Forked(tmp_path / "said", main, command)
    while not (out / "runs").exists():
        assert other.process.is_alive(), other.said.read_text()
        time.sleep(0.02)
    assert main(command) == 0
    other.finish()
    found = trials(out)
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 4
    assert len({trial.user_attrs["point"] for trial in found}) == 4
    for folder in (path for path in (out / "runs").iterdir() if path.is_dir()):
        stages = [entry["name"] for entry in Run(folder).logged() if entry["event"] == "stage"]
        assert stages == ["warm_up", "project", "last_layer"], f"{folder} was trained twice"
    assert len(json.loads((out / "sweep.json").read_text())["rows"]) == 4


def test_a_point_that_diverges_does_not_stop_the_others(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert sweep("--grid", "schedule.0.learning_rates.prototypes=1e30,0.003") == 2
    said = capsys.readouterr()
    assert "failed: schedule.0.learning_rates.prototypes 1e+30" in said.out
    assert "the loss is not finite" in said.out
    (row,) = json.loads((tmp_path / "out" / "sweep.json").read_text())["rows"]
    assert row["schedule.0.learning_rates.prototypes"] == 0.003
    assert states(tmp_path / "out") == ["FAIL", "COMPLETE"]


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing is varied"),
        (("--grid", "loss.contrast.wieght=1"), "did you mean 'weight'?"),
        (("--grid", "model.head_dim=8,many"), "field 'model.head_dim': input should be a valid integer"),
        (("--grid", "model.head_dim=8", "--ablation", "paper"), "leave --grid and --search out"),
        (("--grid", "model.head_dim=8", "--seeds", "0,x"), "--seeds 0,x"),
        (("--grid", "model.head_dim=8", "--seeds", "-1"), "give different numbers from 0 on"),
        (("--grid", "model.head_dim=8", "--objective", "speed"), "--objective: 'speed' is not known"),
        (("--grid", "model.head_dim=8", "--trials", "3"), "--trials: a grid runs all its points"),
        (("--search", "model.head_dim=log:2:8", "--sampler", "grid"), "an interval has no grid"),
        (("--search", "model.head_dim=log:2:8", "--trials", "0"), "has to be 1 or more"),
        (("--grid", "model.head_dim=8", "--storage", "nonsense"), "--storage: cannot be opened"),
        (("--grid", "model.head_dim=8", "--data.clases", "3"), "did you mean 'classes'?"),
    ],
)
def test_bad_input_leaves_nothing(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture, arguments: tuple[str, ...], said: str
) -> None:
    assert sweep(*arguments) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert output.out == ""
    assert not (tmp_path / "out").exists()


def test_an_objective_that_the_data_does_not_allow(
    write: Callable[..., Path], tmp_path: Path, tiny_cub: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.rmtree(tiny_cub / "segmentations")
    config = write({"data": {"name": "cub", "root": str(tiny_cub), "image_size": 64}})
    arguments = ["--out", str(tmp_path / "out"), "--grid", "model.head_dim=8", "--objective", "background_bias"]
    assert main(["sweep", str(config), *arguments]) == 2
    assert "--objective background_bias: the data has no foreground masks" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_sweep_or_of_something_else(
    sweep: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert sweep("--grid", "loss.cluster=0.5") == 0
    assert sweep("--grid", "loss.cluster=0.5", "--loss.separation", "0.5", "--model.heads", "3") == 2
    said = capsys.readouterr().err
    assert "holds a sweep of another config" in said
    assert "model.heads: there 2, here 3; loss.separation: there 0.08, here 0.5" in said
    assert sweep("--grid", "loss.cluster=0.5", "--runtime.evaluation_batch", "3") == 0, "that does not change a result"
    other = tmp_path / "out" / "runs"
    assert main(["sweep", str(tmp_path / "tiny.yaml"), "--out", str(other), "--grid", "loss.cluster=1"]) == 2
    assert "exists and is not a sweep" in capsys.readouterr().err


def test_without_optuna(
    sweep: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for module in ("sweep", "sweep_study"):
        monkeypatch.delitem(sys.modules, f"dapl.experiments.{module}")
    assert sweep("--grid", "loss.cluster=0.5") == 2
    assert "pip install 'dapl[sweep]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
