"""A run directory says in short what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dapl import models
from dapl.config import Config
from dapl.runs.loading import load_run
from dapl.runs.run import Run
from dapl.training.trainer import train


@pytest.fixture
def run(configured: Callable[..., Config], tmp_path: Path) -> Run:
    return train(configured({"schedule": [{"stage": "project"}]}), tmp_path / "<b>run", quiet=True)


def test_it_says_in_short_what_it_is(run: Run) -> None:
    assert repr(run) == f"Run({str(run.folder)!r})"
    loaded = load_run(run)
    assert repr(loaded) == f"LoadedRun({str(run.folder)!r}, Dapl: 3 classes, 6 prototypes)"
    loaded.model.prototypes.kept[2] = False
    assert repr(loaded.model).startswith("Dapl(\n  3 classes, 6 prototypes, 1 of them removed\n")
    assert "(prototypes): Prototypes(6 × 4, groups=2, epsilon=0.0001)" in repr(loaded.model)


def test_the_table_of_a_notebook(run: Run) -> None:
    records = json.loads(run.prototypes_file.read_text())
    records["prototypes"][0]["kept"] = False
    run.prototypes_file.write_text(json.dumps(records))
    numbers = {"accuracy": {"value": 0.5}, "coverage": {"value": None}, "diversity": {"value": 0.25}}
    run.evaluation_file.write_text(json.dumps({"protocol": {"split": "test"}, "numbers": numbers}))
    summary = run.summary()
    assert summary.pop("validation").startswith("accuracy ")
    assert summary == {
        "system": "dapl",
        "backbone": "test_efficientnet",
        "data": "toybirds",
        "classes": "3",
        "prototypes": "5 of 6 kept",
        "test": "accuracy 0.500, diversity 0.250",
    }
    page = run._repr_html_()
    assert "<tr><th>prototypes</th><td>5 of 6 kept</td></tr>" in page
    assert "&lt;b&gt;run" in page
    assert "<b>" not in page


def test_a_run_that_has_only_begun(configured: Callable[..., Config], tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", configured())
    assert list(run.summary()) == ["system", "backbone", "data"]
    assert Run.open(str(run.folder)).folder == Run.open(run).folder == run.folder


def test_the_systems_stand_in_the_package() -> None:
    for name in models.__all__:
        assert getattr(models, name).__name__ == name
    with pytest.raises(AttributeError, match="ProtoNet"):
        models.ProtoNet  # noqa: B018
