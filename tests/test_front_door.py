"""`import dapl`: what a user types first."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import dapl
from dapl.common.errors import DaplError

from .conftest import TINY

FIELDS = TINY | {"schedule": [{"stage": "warm_up", "epochs": 1}, {"stage": "project"}]}


def test_only_what_a_user_needs_is_shown() -> None:
    assert dir(dapl) == ["__version__", "evaluate", "load", "load_config", "train"]
    assert all(getattr(dapl, name) is not None for name in dir(dapl))


def test_the_version_is_that_of_the_package() -> None:
    assert dapl.__version__ == importlib.metadata.version("dapl")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        dapl.lode  # noqa: B018


def test_importing_dapl_imports_no_torch() -> None:
    code = "import sys, dapl; dapl.load_config(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_from_a_config_to_a_prediction(tmp_path: Path) -> None:
    config = dapl.load_config(None, {**FIELDS, "cache.folder": str(tmp_path / "cache")})
    run = dapl.train(config, tmp_path / "run", quiet=True)
    by_run = dapl.evaluate(run, metrics="accuracy,coverage", quiet=True)
    by_path = dapl.evaluate(str(run.folder), metrics=["accuracy", "coverage"], quiet=True)
    assert by_run.numbers == by_path.numbers
    assert 0 <= by_run["coverage"] <= 1
    image = next(iter((Path(__file__).parent.parent / "docs" / "images").glob("bird.jpg")))
    assert dapl.load(run).predict(image).class_name in dapl.load(str(run.folder)).classes
    with pytest.raises(DaplError, match="holds a run already"):
        dapl.train(config, tmp_path / "run", quiet=True)


def test_a_config_file_names_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dapl.config import dump_config

    monkeypatch.chdir(tmp_path)
    config = dapl.load_config(None, {**FIELDS, "cache.folder": str(tmp_path / "cache")})
    Path("tiny.yaml").write_text(dump_config(config))
    assert dapl.train("tiny.yaml", quiet=True).folder == Path("runs/tiny")
