"""Data sets handed over in Python: trained on, resumed, evaluated; refused where they are not what they should be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load_file

import dapl
from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import Config, dump_config, parse_config
from dapl.data.build import build_splits, check_dataset, hand_over
from dapl.data.sample import Sample, Splits, Subset, train_validation
from dapl.data.toybirds import ToyBirds
from dapl.evaluation import evaluate
from dapl.explain.sheet import write_sheet
from dapl.report.collect import collect
from dapl.report.page import write_folder
from dapl.runs.loading import load_run
from dapl.runs.run import Run
from dapl.serve.app import build_app
from dapl.training.trainer import train

from ..conftest import TINY


class Wrapped:
    """Toy birds as someone else would hand them over; fields can be replaced to break them."""

    def __init__(self, split: str, count: int, **broken: Any) -> None:
        self.birds = ToyBirds(classes=2, images_per_class=count, size=64, split=split)
        self.change: Callable[[Sample], Any] = broken.pop("change", lambda sample: sample)
        for name in ("classes", "parts", "labels", "names", "has_masks", "fingerprint"):
            setattr(self, name, broken.get(name, getattr(self.birds, name)))

    def __len__(self) -> int:
        return len(self.birds)

    def __getitem__(self, index: int) -> Any:
        return self.change(self.birds[index])


def splits(**broken: Any) -> Splits:
    return Splits(*train_validation(Wrapped("train", 4, **broken), share=0.25), Wrapped("test", 2))


def config_in(folder: Path, **sections: Any) -> Config:
    given = {
        "data": {"name": "given", "image_size": 64},
        "schedule": [{"stage": "warm_up", "epochs": 2, "batch_size": 4}, {"stage": "project"}],
        "cache": {"folder": str(folder / "cache")},
    }
    return parse_config(TINY | given | sections)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("handed-over")
    return train(config_in(folder), folder / "run", quiet=True, splits=splits())


def test_train_and_evaluate(trained: Run) -> None:
    assert trained.class_names() == list(splits().train.classes)
    assert trained.config().data.name == "given"
    result = evaluate(trained.folder, splits=splits(), quiet=True)
    assert result.protocol["images"] == 4
    assert result.protocol["part_mode"] == "exact"
    assert 0 <= result.numbers["coverage"].value <= 1
    assert {record["image"] for record in trained.read_prototypes()} <= set(splits().train.names)


def test_it_gives_the_weights_that_the_same_data_gives_by_name(trained: Run, tmp_path: Path) -> None:
    """Handed over or named in the config: the data is the same, so the run is."""
    counts = {"classes": 2, "images_per_class": 4, "test_images_per_class": 2}
    named = config_in(tmp_path, data={"name": "toybirds", "image_size": 64, "validation_share": 0.25, **counts})
    assert list(build_splits(named.data).train.names) == list(splits().train.names)
    one = train(named, tmp_path / "named", quiet=True)
    a, b = load_file(one.best), load_file(trained.best)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_all_that_shows_a_run_takes_the_data(trained: Run, tmp_path: Path) -> None:
    """Sheet, explanation, report and page; without it an explanation has no training crops, and says so."""
    data = splits()
    assert write_sheet(trained.folder, splits=data) == trained.sheet_file
    assert trained.sheet_file.exists()
    model = dapl.load(trained, data)
    sample, parts = model.sample(data.test.names[0]) or (None, ())
    assert sample is not None
    why = model.explain(sample, parts=parts)
    assert list(parts) == list(data.test.parts)
    assert why.name == data.test.names[0]
    assert sample.part_masks is not None
    assert "data:image/jpeg" in why.html()
    assert why.patches.problem is None
    assert all(why.close_up(row) is not None for row in why.classes[0].rows)
    without = dapl.load(trained).explain(sample)
    assert without.close_up(without.classes[0].rows[0]) is None
    assert "handed over in Python" in (without.patches.problem or "")
    made = collect(trained.folder, splits=data, quiet=True)
    assert write_folder(made, tmp_path / "report").exists()
    with TestClient(build_app(load_run(trained.folder), splits=data), base_url="http://localhost") as client:
        answer = client.post("/api/explain?example=0").json()
        assert answer["image"]["label"] == data.test.labels[0]
        assert answer["classes"][0]["rows"][0]["patch"] is not None


def test_resume(trained: Run) -> None:
    again = train(trained.config(), trained.folder, resume=True, quiet=True, splits=splits())
    assert again.folder == trained.folder
    with pytest.raises(DaplError, match="handed over in Python"):
        train(trained.config(), trained.folder, resume=True, quiet=True)
    assert trained.last.exists()


MODULE = '''
from dataclasses import dataclass

from dapl.data.toybirds import ToyBirds


@dataclass(frozen=True)
class Frozen:
    """Fabric would take a dataclass apart, and refuse a frozen one."""

    classes: tuple
    parts: tuple
    labels: tuple
    names: tuple
    has_masks: bool
    fingerprint: str
    split: str
    count: int

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return ToyBirds(classes=2, images_per_class=self.count, size=64, split=self.split)[index]


def frozen(split, count):
    birds = ToyBirds(classes=2, images_per_class=count, size=64, split=split)
    lists = (tuple(value) for value in (birds.classes, birds.parts, birds.labels, birds.names))
    return Frozen(*lists, birds.has_masks, birds.fingerprint, split, count)
'''


@pytest.mark.slow
def test_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data sets travel to processes that were started anew."""
    (tmp_path / "frozen_birds.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    frozen = importlib.import_module("frozen_birds").frozen
    runtime = {"accelerator": "cpu", "workers": 0, "devices": 2}
    config = config_in(tmp_path, runtime=runtime, schedule=[{"stage": "project"}])
    data = Splits(frozen("train", 4), frozen("test", 1), frozen("test", 2))
    run = train(config, tmp_path / "run", quiet=True, splits=data)
    assert run.class_names() == list(splits().train.classes)
    assert run.prototypes_file.exists()


# --- what does not fit ----------------------------------------------------------------------------------------------


def test_the_command_line_says_where_such_data_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(dump_config(config_in(tmp_path)))
    assert main(["train", str(file), "--out", str(tmp_path / "never")]) == 2
    said = capsys.readouterr().err
    assert "data.name: given stands for data" in said
    assert "splits=" in said
    assert not (tmp_path / "never").exists()
    run = train(config_in(tmp_path), tmp_path / "run", quiet=True, splits=splits())
    assert main(["evaluate", str(run.folder)]) == 2
    assert "handed over in Python" in capsys.readouterr().err
    assert main(["prepare", "check", str(file)]) == 2
    assert "handed over in Python" in capsys.readouterr().err


def test_a_config_that_names_other_data_is_refused(tmp_path: Path) -> None:
    named = config_in(tmp_path, data={"name": "toybirds", "image_size": 64})
    with pytest.raises(DaplError, match=r"data.name: is toybirds, but splits were handed over"):
        train(named, tmp_path / "run", splits=splits())
    assert not (tmp_path / "run").exists()
    assert hand_over(named.data, None) is None


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"labels": [0, 1]}, "labels: 2 of them for 8 images"),
        ({"labels": [0, 1, 2, 3, 0, 0, 0, 0]}, "labels: 2 is no index of the 2 classes"),
        ({"names": ["a"] * 8}, "names: 'a' stands there 8 times"),
        ({"has_masks": False}, "mask: there is a mask, but has_masks is False"),
        ({"parts": ("beak",)}, "keypoints: is torch.float32 12×2; it must be torch.float32 1×2"),
        ({"change": lambda sample: sample.image}, "is a Image; a data set yields dapl.data.sample.Sample"),
        ({"change": lambda sample: replace(sample, image=sample.image / 255)}, "image: is torch.float32 3×64×64"),
        ({"change": lambda sample: replace(sample, mask=sample.mask[None])}, "mask: is torch.uint8 1×64×64; it must"),
        ({"change": lambda sample: replace(sample, mask=None)}, "mask: there is no mask, but has_masks is True"),
        ({"change": lambda sample: replace(sample, label=1)}, "its name or label is not what names and labels say"),
    ],
)
def test_a_data_set_that_is_none(broken: dict[str, Any], message: str) -> None:
    with pytest.raises(DaplError, match=message):
        check_dataset(Wrapped("train", 4, **broken))
    check_dataset(Wrapped("train", 4))


def test_attributes_and_classes_are_looked_at(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"splits.train: has no classes"):
        check_dataset([1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(DaplError, match=r"splits.test: is empty"):
        check_dataset(Subset(Wrapped("test", 2), []), "test")
    good = splits()
    swapped = replace(good, test=Wrapped("test", 2, classes=list(reversed(good.train.classes))))
    with pytest.raises(DaplError, match=r"splits.test.classes: not those of splits.train"):
        train(config_in(tmp_path), tmp_path / "run", splits=swapped)
    assert not (tmp_path / "run").exists()
