"""Every file of a run is read through one door: whatever is wrong with it is one sentence that names file and field."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dapl.cli import main
from dapl.common.errors import BrokenError, DaplError, MissingError
from dapl.config import LastLayerStage, PruneStage, WarmUpStage
from dapl.runs.checkpoint import Position
from dapl.runs.run import Run
from dapl.training.state import check_position

READERS: dict[str, Callable[[Run], Any]] = {
    "data.json": Run.class_names,
    "prototypes.json": Run.read_prototypes,
    "metrics.json": Run.evaluation,
    "environment.json": Run.environment,
    "model.json": Run.model_facts,
}
WRONG: dict[str, list[tuple[Any, str]]] = {
    "data.json": [
        ({"classes": "all"}, "classes"),
        ({"classes": []}, "classes"),
        ({"classes": ["a", 7]}, "classes.1"),
        ({"classes": ["a"], "images": {"test": -1}}, "images.test"),
        ({"classes": ["a"], "images": {"test": 10**12}}, "images.test"),
        ([], "the file"),
    ],
    "prototypes.json": [
        ({}, "prototypes"),
        ({"prototypes": [1]}, "prototypes.0"),
        ({"prototypes": [{"index": 0, "classes": ["a"], "head": "first"}]}, "prototypes.0.head"),
        ({"prototypes": [{"index": 3, "classes": ["a"], "head": 0}]}, "prototypes"),
        ({"prototypes": [{"index": 0, "classes": ["a"], "head": 0, "kept": "yes"}]}, "prototypes.0.kept"),
        ({"prototypes": [{"index": 0, "classes": ["a"], "head": 0, "box": [5, 5, 2, 9]}]}, "prototypes.0.box"),
        ({"prototypes": [{"index": 0, "classes": ["a"], "head": 0, "box": [1, 2]}]}, "prototypes.0.box"),
        ({"prototypes": [{"index": 0, "classes": ["a"], "head": 0, "box": [0, 0, 1, 1e300]}]}, "prototypes.0.box.3"),
        ({"prototypes": [{"index": 0, "classes": ["a"], "head": 0, "location": "top"}]}, "prototypes.0.location"),
    ],
    "metrics.json": [
        ({"numbers": {}}, "protocol"),
        ({"protocol": [], "numbers": {}}, "protocol"),
        ({"protocol": {}, "numbers": []}, "numbers"),
        ({"protocol": {}, "numbers": {"accuracy": 0.5}}, "numbers.accuracy"),
        ({"protocol": {}, "numbers": {"accuracy": {"value": "high"}}}, "numbers.accuracy.value"),
        ({"protocol": {"images": "many"}, "numbers": {}}, "protocol.images"),
    ],
    "environment.json": [([], "the file"), ({"versions": [1]}, "versions")],
    "model.json": [([], "the file"), (5, "the file")],
}


@pytest.fixture
def made(dapl_run: Path, tmp_path: Path) -> Run:
    """The small files of a run, without its checkpoints."""
    folder = tmp_path / "run"
    shutil.copytree(dapl_run, folder, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    return Run.open(folder)


@pytest.mark.parametrize(
    ("name", "content", "field"), [(name, *one) for name, several in WRONG.items() for one in several]
)
def test_a_wrong_field_is_named(made: Run, name: str, content: Any, field: str) -> None:
    path = made.folder / name
    path.write_text(json.dumps(content))
    with pytest.raises(BrokenError) as caught:
        READERS[name](made)
    message = str(caught.value)
    assert message.startswith(f"{path}: {field}: ")
    assert "\n" not in message
    assert message.endswith(".")


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_json_no_file_or_not_there(made: Run, name: str) -> None:
    path = made.folder / name
    for content in (b"", b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(BrokenError, match=name):
            READERS[name](made)
    path.unlink()
    path.mkdir()
    with pytest.raises(BrokenError, match="is a folder and not a file"):
        READERS[name](made)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(BrokenError, match="is a pipe or device"):
        READERS[name](made)
    path.unlink()
    if name in ("data.json", "prototypes.json"):
        with pytest.raises(MissingError, match=rf"{name}: no such file; the run was not finished, `dapl train"):
            READERS[name](made)
    else:
        assert READERS[name](made) == {}


def test_fields_that_a_newer_version_adds_and_names_of_older_ones_are_understood(made: Run) -> None:
    made.data_file.write_text(json.dumps({"classes": ["a"], "pictures": {"test": 7}, "licence": "none"}))
    assert made.image_counts() == {"test": 7}
    numbers = {"accuracy": {"value": None, "protocol": {"tau": 0.3}}}
    found = {"protocol": {"split": "test", "pictures": 7}, "numbers": numbers, "history": [1]}
    made.evaluation_file.write_text(json.dumps(found))
    assert made.evaluation() == found | {"protocol": found["protocol"] | {"images": 7}}


LINE = '{"event": "epoch", "stage": 0, "epoch": %d, "name": "warm_up", "validation": {"accuracy": 0.5}}'


@pytest.mark.parametrize(
    "bad",
    [
        b'{"event": "epoch", "sta',
        b"\x00" * 40,
        b"5",
        b"[" * 100_000,
        b'{"event": "epoch", "stage": -1}',
        b'{"event": "epoch", "stage": 0, "validation": {"accuracy": "high"}}',
    ],
)
def test_a_bad_line_of_the_log_costs_that_line_and_no_other(made: Run, bad: bytes) -> None:
    made.metrics_file.write_bytes((LINE % 0).encode() + b"\n" + bad + b"\n" + (LINE % 1).encode() + b"\n")
    assert [entry["epoch"] for entry in made.logged()] == [0, 1]
    made.forget_log(lambda entry: True)  # as a resume does
    assert made.metrics_file.read_text().splitlines() == [LINE % 0, LINE % 1]


def test_a_position_outside_the_schedule() -> None:
    schedule = [WarmUpStage(epochs=2), PruneStage(), LastLayerStage(epochs=3)]
    for inside in [(0, 0, 0), (0, 1, 9), (0, 2, 0), (1, 0, 0), (2, 3, 0), (3, 0, 0)]:
        check_position(Position(*inside), schedule, Path("last.safetensors"))
    for outside in [(0, 2, 1), (0, 3, 0), (1, 0, 1), (1, 1, 0), (3, 0, 1), (3, 1, 0), (4, 0, 0), (10**9, 0, 0)]:
        with pytest.raises(DaplError, match=r"last\.safetensors: position: stands at stage .* restore it from a copy"):
            check_position(Position(*outside), schedule, Path("last.safetensors"))


@pytest.mark.parametrize("name", ["config.yaml", "data.json", "checkpoints/best.safetensors"])
def test_a_folder_in_place_of_a_file_is_said_by_the_command(
    run: Path, name: str, capsys: pytest.CaptureFixture
) -> None:
    (run / name).unlink()
    (run / name).mkdir()
    assert main(["evaluate", str(run)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dapl: {run}")
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1
