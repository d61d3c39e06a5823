"""What must be said of a backbone's weights stands wherever an accuracy is shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dapl.evaluation import evaluate, table
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.experiments.comparison import notices, plan, protocol_text
from dapl.export.export import exported_model
from dapl.models.weight_sources import INAT_BIRDS, SOURCES
from dapl.report.collect import collect
from dapl.report.page import write_single_file
from dapl.runs.loading import load_run

SAID = "drawn birds were seen before"


@pytest.fixture
def run(trained: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny run as if its weights came from a source that something must be said of."""
    source = replace(INAT_BIRDS, name="tiny", backbone="test_efficientnet", arguments={}, notices={"toybirds": SAID})
    monkeypatch.setitem(SOURCES, "tiny", source)
    folder = Path(shutil.copytree(trained("blackbox"), tmp_path / "run"))
    config = (folder / "config.yaml").read_text()
    assert "weights: random" in config
    (folder / "config.yaml").write_text(config.replace("weights: random", "weights: tiny"))
    return folder


def test_the_notice_stands_beside_every_accuracy(run: Path, trained: Callable[[str], Path], tmp_path: Path) -> None:
    result = evaluate(run, metrics="accuracy", quiet=True)
    assert f"accuracy: {SAID}" in table(result)
    assert json.loads((run / "metrics.json").read_text())["protocol"]["notice"] == SAID
    page = write_single_file(collect(run, load_run(run).config, 1, quiet=True), tmp_path / "report.html")
    assert f"About the accuracy: {SAID}." in page.read_text()
    exported = exported_model(load_run(run)).save_pretrained(tmp_path / "exported")
    assert f"About the accuracy: {SAID}." in (exported / "README.md").read_text()
    systems = plan([run, trained("blackbox")], tmp_path, (0,), {})
    assert notices(systems) == [f"accuracy of run: {SAID}"]
    assert f"Accuracy of run: {SAID}." in protocol_text(systems, "test", EvaluationProtocol())
