"""`runtime.logger`: each logger gets curves, numbers and the sheet of prototypes, without any network."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import Config, dump_config
from dapl.training.loggers import Csv, open_logger
from dapl.training.trainer import train

SCALARS = {"train/total", "train/accuracy", "validation/accuracy", "validation/cross_entropy"}
VALUES = {"train/total": 0.5, "validation/accuracy": 0.75}


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    Image.new("RGB", (30, 20), "red").save(tmp_path / "prototypes.png")
    return tmp_path / "prototypes.png"


def test_csv_and_a_resumed_run(tmp_path: Path) -> None:
    """Epochs that are done again replace the old ones."""
    logger = Csv(tmp_path / "csv", first=0)
    for epoch in range(3):
        logger.scalars({"train/total": epoch}, epoch)
    again = Csv(tmp_path / "csv", first=2)
    again.scalars({"train/total": 7.0, "train/contrast": 1.0}, 2)
    again.table("test", [("coverage", 0.5)], 3)
    with (tmp_path / "csv" / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["train/total"]) for row in rows] == [0, 1, 7]
    assert [row["train/contrast"] for row in rows] == ["", "", "1.0"]
    assert (tmp_path / "csv" / "test.csv").read_text() == "number,value\ncoverage,0.5\n"


@pytest.mark.parametrize("text", ["", "epoch,x\nmany,1\n", "x,y\n1,2\n", '"' + "x" * 200_000])
def test_a_broken_table_of_an_earlier_part_of_the_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "epochs.csv").write_text(text)
    if text:
        with pytest.raises(DaplError, match=r"epochs\.csv: not a table with an epoch per row .*; move it away"):
            Csv(tmp_path / "csv", first=2)
    else:
        Csv(tmp_path / "csv", first=2).scalars({"train/total": 1.0}, 2)


def test_a_whole_run(configured: Callable[..., Config], tmp_path: Path) -> None:
    config = configured(
        {"schedule": [{"stage": "warm_up", "epochs": 2}], "runtime": {"accelerator": "cpu", "logger": "csv"}}
    )
    (tmp_path / "tiny.yaml").write_text(dump_config(config))
    assert main(["train", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "run")]) == 0
    with (tmp_path / "run" / "csv" / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [int(row["epoch"]) for row in rows] == [0, 1]
    assert set(rows[0]) >= SCALARS
    for row, entry in zip(rows, logged, strict=False):
        assert float(row["train/total"]) == entry["train"]["total"]
    numbers = json.loads((tmp_path / "run" / "metrics.json").read_text())["numbers"]
    with (tmp_path / "run" / "csv" / "test.csv").open() as file:
        table = {row["number"]: float(row["value"]) for row in csv.DictReader(file)}
    assert table["accuracy"] == numbers["accuracy"]["value"]
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_tensorboard(tmp_path: Path, sheet: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'dapl[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = open_logger("tensorboard", tmp_path, {}, first=0)
    assert logger is not None
    logger.scalars(VALUES, 0)
    logger.table("test", [("coverage", 0.5)], 1)
    logger.image("prototypes", sheet, 1)
    logger.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {*VALUES, "test/coverage"}
    assert found.Tags()["images"] == ["prototypes"]
    [image] = found.Images("prototypes")
    assert (image.width, image.height, image.step) == (30, 20, 1)
    assert image.encoded_image_string == sheet.read_bytes()
    assert b"| coverage | 0.5000 |" in found.Tensors("test/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.slow
def test_mlflow_in_a_file(tmp_path: Path, sheet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="pip install 'dapl[mlflow]'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    run = tmp_path / "birds"
    for first in (0, 1):  # the second one goes on with the run of the first, as after a resume
        logger = open_logger("mlflow", run, {"seed": 3, "model": {"heads": 4}}, first)
        assert logger is not None
        logger.scalars(VALUES, first)
    logger.table("test", [("coverage", 0.5)], 2)
    logger.image("prototypes", sheet, 2)
    logger.close()
    client = MlflowClient(f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    [found] = client.search_runs([client.get_experiment_by_name("dapl").experiment_id])
    assert found.info.run_name == "birds"
    assert found.data.params == {"seed": "3", "model.heads": "4"}
    assert found.data.metrics == {**VALUES, "test/coverage": 0.5}
    assert [point.step for point in client.get_metric_history(found.info.run_id, "train/total")] == [0, 1]
    listed = [entry.path for entry in client.list_artifacts(found.info.run_id)]
    assert sorted(listed) == ["prototypes", "test.json"]


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, sheet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install 'dapl[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    logger = open_logger("wandb", tmp_path / "birds", {"seed": 3}, first=0)
    assert logger is not None
    logger.scalars(VALUES, 0)
    logger.table("test", [("coverage", 0.5)], 1)
    logger.image("prototypes", sheet, 1)
    logger.close()
    wandb.teardown()  # a process of its own writes the file, and ends when all is in it
    [written] = (tmp_path / "birds" / "wandb").rglob("*.wandb")
    content = written.read_bytes()
    assert all(word in content for word in (b"validation/accuracy", b"test/coverage", b"prototypes"))
    assert len(list((tmp_path / "birds" / "wandb").rglob("media/images/prototypes*.png"))) == 1
    assert len(list((tmp_path / "birds" / "wandb").rglob("media/table/test*.json"))) == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_one_that_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(DaplError, match=rf"runtime.logger: {name} is not installed .* pip install 'dapl\[{name}\]'"):
        open_logger(name, tmp_path / "run", {}, first=0)


def test_none(configured: Callable[..., Config], tmp_path: Path) -> None:
    config = configured({"schedule": [{"stage": "project"}], "runtime": {"accelerator": "cpu", "logger": "none"}})
    folder = train(config, tmp_path / "run", quiet=True).folder
    assert not {"tensorboard", "csv", "wandb", "mlflow"} & {path.name for path in folder.iterdir()}
