"""Runs that are made once, numbers that are measured once."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.evaluation import EvaluationProtocol, evaluate
from dapl.evaluation.result import Evaluation, Number
from dapl.experiments import comparison
from dapl.experiments.comparison import ComparedSystem, PlannedRun, train_all
from dapl.experiments.many_runs import (
    differences,
    is_being_trained,
    is_finished,
    mean_and_deviation,
    measured,
    over_seeds,
    run_or_leave,
    run_or_resume,
)
from dapl.runs.run import Run
from dapl.training.trainer import Trainer


@pytest.fixture(scope="module")
def trained(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_or_resume(tiny(), tmp_path_factory.mktemp("runs") / "run", quiet=True).folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    return Run(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often training was started."""
    calls: list[str] = []
    train = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self: (calls.append(""), train(self))[1])
    return lambda: len(calls)


def test_a_finished_run_is_left_as_it_is(run: Run, tiny: Callable[..., Config], counted: Callable[[], int]) -> None:
    assert is_finished(run)
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*") if path.is_file()}
    again = run_or_resume(tiny(), run.folder, quiet=True)
    assert again.folder == run.folder
    assert counted() == 0
    assert before == {path: path.stat().st_mtime_ns for path in run.folder.rglob("*") if path.is_file()}


def test_an_interrupted_run_goes_on(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, project = tmp_path / "run", Trainer._project

    def interrupt(self: Trainer, stage: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_project", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_or_resume(tiny(), folder, quiet=True)
    assert not is_finished(Run(folder))
    first = Run(folder).logged()
    monkeypatch.setattr(Trainer, "_project", project)
    run = run_or_resume(tiny(), folder, quiet=True)
    assert is_finished(run)
    assert run.logged()[: len(first)] == first


@pytest.mark.parametrize("left", [[".config.yaml.1.tmp"], ["config.yaml"], ["config.yaml", "environment.json"]])
def test_what_was_killed_before_its_first_checkpoint_begins_anew(
    run: Run, tiny: Callable[..., Config], tmp_path: Path, left: list[str]
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for name in left:
        if name.endswith(".tmp"):
            (folder / name).write_text("half a con")
        else:
            shutil.copy(run.folder / name, folder)
    assert is_finished(run_or_resume(tiny(), folder, quiet=True))
    assert (folder / "environment.json").exists()
    assert not list(folder.rglob("*.tmp"))


def test_a_folder_of_something_else_is_left_alone(tiny: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("ten years")
    with pytest.raises(DaplError, match=r"not a run \(it has thesis.txt\)"):
        run_or_resume(tiny(), tmp_path / "run")
    assert (tmp_path / "run" / "thesis.txt").read_text() == "ten years"


def test_a_run_of_another_config_is_refused(run: Run, tiny: Callable[..., Config]) -> None:
    other = tiny(seed=3, loss={"contrast": {"weight": 2}})
    with pytest.raises(DaplError) as error:
        run_or_resume(other, run.folder)
    assert "seed: there 0, here 3; loss.contrast.weight: there 0.5, here 2.0" in str(error.value)


def test_differences_name_the_fields_and_leave_out_where_and_how_fast(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    one = tiny()
    elsewhere = tiny(cache={"folder": str(tmp_path)}, runtime={"devices": 2, "accelerator": "cpu"})
    assert differences(one, elsewhere) == []
    longer = tiny(schedule=[{"stage": "warm_up", "epochs": 9}, {"stage": "project"}])
    assert differences(one, longer)[0] == "schedule.0.epochs: there 1, here 9"
    assert "schedule.2.stage: there last_layer, here absent" in differences(one, longer)


def test_torchrun_is_refused(tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DaplError, match="torchrun"):
        run_or_resume(tiny(), tmp_path / "run")


# --- numbers --------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_evaluate_and_its_files_stay(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    on_test = evaluate(run.folder, metrics="accuracy", quiet=True)
    before = run.evaluation_file.read_bytes()
    on_validation = measured(run, "validation", "coverage,accuracy")
    assert run.evaluation_file.read_bytes() == before
    assert json.loads(before)["protocol"]["split"] == "test"
    expected = evaluate(run.folder, split="validation", quiet=True, files=False)
    assert set(on_validation) == {"accuracy", "coverage", "precision", "recall"}
    assert all(on_validation[name] == expected[name] for name in on_validation)
    assert measured(run, "test", "accuracy")["accuracy"] == on_test["accuracy"]

    monkeypatch.setattr("dapl.evaluation.evaluate", lambda *rest, **more: pytest.fail("measured again"))
    assert measured(run, "validation", ["coverage"]) == on_validation


@pytest.mark.parametrize("change", ["protocol", "metrics", "model", "file"])
def test_what_would_be_other_numbers_is_measured_again(run: Run, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    measured(run, "validation", "accuracy")
    calls: list[Any] = []
    answer = Evaluation({}, {name: Number(value, 0.0, 1.0) for name, value in (("accuracy", 0.25), ("ece", math.nan))})

    def counted(folder: Path, protocol: Any, split: str, metrics: Any, *rest: Any, **more: Any) -> Evaluation:
        calls.append(metrics)
        return answer

    monkeypatch.setattr("dapl.evaluation.evaluate", counted)
    protocol = EvaluationProtocol(tau=0.3) if change == "protocol" else None
    if change == "model":
        run.best.write_bytes(run.best.read_bytes() + b"\0")
    if change == "file":
        (run.evaluation_folder / "validation.json").write_text("{cut of")
    names = "ece" if change == "metrics" else "accuracy"
    assert measured(run, "validation", names, protocol) == {"accuracy": 0.25}
    assert calls == [["accuracy", "ece"] if change == "metrics" else ["accuracy"]]


def test_an_unfinished_run_has_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"config\.yaml: no such file"):
        measured(Run(tmp_path), "validation")
    with pytest.raises(DaplError, match="did you mean 'validation'"):
        measured(Run(tmp_path), "validaton")  # type: ignore[arg-type]


def test_mean_and_deviation() -> None:
    values = [0.1, 0.7, 0.3]
    spread = mean_and_deviation(values)
    assert spread.mean == pytest.approx(statistics.mean(values))
    assert spread.deviation == pytest.approx(statistics.stdev(values))
    assert spread.values == tuple(values)
    with pytest.raises(ValueError, match="no values"):
        mean_and_deviation([])


def test_only_numbers_that_every_seed_has() -> None:
    found = over_seeds([{"a": 1.0, "b": 2.0}, {"a": 3.0}])
    assert list(found) == ["a"]
    assert found["a"].mean == 2.0
    assert over_seeds([]) == {}


def test_a_run_that_another_process_trains_is_left_to_it(tiny: Callable[..., Config], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "busy"
    assert not is_being_trained(folder)
    ready, done = (multiprocessing.get_context("fork").Event() for _ in range(2))

    def hold() -> None:
        with Run(folder).locked("training"):
            ready.set()
            done.wait(60)

    other = multiprocessing.get_context("fork").Process(target=hold)
    other.start()
    try:
        assert ready.wait(60)
        assert is_being_trained(folder)
        assert run_or_leave(tiny(), folder) is None
        assert not Run(folder).config_file.exists()
    finally:
        done.set()
        other.join(60)
    assert not is_being_trained(folder)


def test_a_comparison_goes_on_with_what_others_do_not_train(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is in other hands until the others are done; the third one starts from it."""
    folders = [tmp_path / name for name in ("first", "second", "third")]
    starts = (None, None, str(folders[0]))
    systems = [
        ComparedSystem(folder.name, [PlannedRun(folder, tiny(start=start))])
        for folder, start in zip(folders, starts, strict=True)
    ]
    looked: list[str] = []

    def leave(config: Config, folder: Path) -> Run | None:
        looked.append(folder.name)
        return None if folder.name == "first" and looked.count("first") < 3 else Run(folder)

    monkeypatch.setattr(comparison, "run_or_leave", leave)
    said: list[str] = []
    train_all(systems, said.append, pause=0)
    assert looked == ["first", "second", "first", "first", "third"]
    assert said[1] == f"[2/3] {folders[1]}"
