"""`dapl train --from RUN --drop-marked`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.models.build import SYSTEMS
from dapl.runs.loading import load_run
from dapl.runs.marks import Marks, mark_now
from dapl.runs.run import Run
from dapl.training.marked import without_marked
from dapl.training.trainer import train

from ..conftest import TINY
from .conftest import PROTOPNET

WARM_UP: dict[str, Any] = {"stage": "warm_up", "epochs": 1, "batch_size": 9}
Configured = Callable[..., Config]


def trained(configured: Configured, system: str, out: Path) -> Path:
    model = TINY["model"] if system == "dapl" else PROTOPNET | {"system": system, "prototypes_per_class": 2}
    if system == "parts":
        backbone = TINY["model"]["backbone"] | {"stages": [-2, -1]}
        model = {"system": "parts", "backbone": backbone, "heads": 2, "head_dim": 4, "crop_size": 32}
    warm_up = WARM_UP | ({"learning_rates": {"layers": 3e-3, "prototypes": 3e-3}} if system == "parts" else {})
    last = [] if system == "pixpnet" else [{"stage": "last_layer", "epochs": 2, "learning_rate": 0.01}]
    config = configured({"model": model, "schedule": [warm_up, {"stage": "project"}, *last]})
    return train(config, out, quiet=True).folder


def mark(folder: Path, **notes: str) -> None:
    records = load_run(folder).records
    for name, note in notes.items():
        record = records[int(name.removeprefix("p"))]
        Marks.of_run(folder).put(mark_now(record.index, note, record.image, record.location))


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"blackbox"}))
def test_marked_prototypes_are_gone_and_the_rest_is_tuned(system: str, configured: Configured, tmp_path: Path) -> None:
    folder, out = trained(configured, system, tmp_path / "run"), tmp_path / "new"
    mark(folder, p1="sees the perch", p4="")
    before = load_run(folder)
    assert main(["train", "--from", str(folder), "--drop-marked", "--out", str(out)]) == 0
    after = load_run(out)
    kept = after.model.prototypes.kept.tolist()
    assert kept == [True, False, True, True, False, True]
    assert [record.kept for record in after.records] == kept
    assert after.records[1].reason == "marked as bad: sees the perch"
    assert after.records[4].reason == "marked as bad"
    assert after.records[0].image == before.records[0].image
    assert [entry["kept"] for entry in Run(out).read_prototypes()] == kept
    weights = after.model.class_weights()
    assert not weights[[1, 4]].any()
    for name, tensor in before.model.state_dict().items():
        if name != "prototypes.kept" and not name.startswith("classifier"):
            assert torch.equal(tensor, after.model.state_dict()[name]), name
    if system != "pixpnet":
        assert not torch.equal(weights[[0, 2, 3, 5]], before.model.class_weights()[[0, 2, 3, 5]])
    assert Run(out).evaluation_file.is_file()
    assert all(record.kept for record in load_run(folder).records)  # the run it came from is as it was


def test_a_run_that_was_cut_short_goes_on_without_them(configured: Configured, tmp_path: Path) -> None:
    folder, out = trained(configured, "dapl", tmp_path / "run"), tmp_path / "new"
    mark(folder, p0="bad")
    without_marked(folder, out)  # and killed here
    assert main(["train", "--resume", str(out)]) == 0
    after = load_run(out)
    assert after.model.prototypes.kept.tolist() == [False] + [True] * 5
    assert after.records[0].reason == "marked as bad: bad"


def test_the_new_run_lies_beside_the_old_one(configured: Configured, tmp_path: Path) -> None:
    folder = trained(configured, "dapl", tmp_path / "run")
    mark(folder, p0="bad")
    assert main(["train", "--from", str(folder), "--drop-marked"]) == 0
    config = Run.open(tmp_path / "run-without-marked").config()
    assert config.start == str(folder)
    assert [stage.stage for stage in config.schedule] == ["last_layer"]


def test_what_does_not_go_together(configured: Configured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(configured, "dapl", tmp_path / "run")
    for words, part in (
        (["--from", str(folder)], "--from RUN and --drop-marked go together"),
        (["--drop-marked"], "--from RUN and --drop-marked go together"),
        (["x.yaml", "--from", str(folder), "--drop-marked"], "leave CONFIG and --resume out"),
        (["--from", str(folder), "--drop-marked", "--model.heads", "3"], "takes only fields of data, runtime and"),
        (["--from", str(folder), "--drop-marked"], "no prototype is marked as bad"),
        (["--from", str(tmp_path / "none"), "--drop-marked"], "not a run directory"),
    ):
        assert main(["train", *words]) == 2
        assert part in capsys.readouterr().err
    mark(folder, p0="bad")
    with pytest.raises(DaplError, match="exists already; name a new folder"):
        without_marked(folder, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "run"]
