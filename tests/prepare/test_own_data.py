"""`dapl train FOLDER` and `dapl init FOLDER`: masks where there are none, a choice by what the data has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import CocoData, FolderData, load_config
from dapl.data.toybirds import ToyBirds, write
from dapl.models.backbone import create_backbone
from dapl.prepare.check import CheckReport
from dapl.prepare.own_data import choose, prepare_own_data

pytest.importorskip("cv2", reason="pip install 'dapl[masks]'")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of five drawn birds, with masks and keypoints."""
    folder = tmp_path_factory.mktemp("drawn") / "birds"
    write(ToyBirds(classes=3, images_per_class=5, size=64), folder)
    return folder


@pytest.fixture
def bare(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same without masks and keypoints; rembg has no model."""
    for name in ("DAPL_REMBG_MODEL", "DAPL_MODELS", "U2NET_HOME", "REMBG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(drawn, tmp_path / "birds", ignore=shutil.ignore_patterns("masks", "keypoints.csv"))
    return tmp_path / "birds"


def report(images: int, masks: int, doubtful: int = 0, classes: int = 3) -> CheckReport:
    counts = {"train": [images // classes] * classes, "validation": [0] * classes, "test": [0] * classes}
    found = CheckReport("birds", [f"class {label}" for label in range(classes)], [], counts)
    found.images, found.masks = images, masks
    found.doubts = {str(number): None for number in range(doubtful)}  # type: ignore[misc]
    return found


@pytest.mark.parametrize(
    ("found", "system", "stages"),
    [
        (report(300, 300), "parts", ["locate", "project", "warm_up"]),
        (report(300, 300, doubtful=99), "parts", ["locate", "project", "warm_up"]),
        (report(300, 300, doubtful=150), "dapl", ["warm_up", "project", "last_layer"]),
        (report(300, 299), "dapl", ["warm_up", "project", "last_layer"]),
        (report(300, 0), "dapl", ["warm_up", "project", "last_layer"]),
    ],
)
def test_the_choice_follows_the_data(found: CheckReport, system: str, stages: list[str]) -> None:
    choice = choose(FolderData(root="birds"), found)
    config = choice.config({"seed": 3})
    assert (config.model.system, config.seed) == (system, 3)
    assert [stage.stage for stage in config.schedule] == stages
    assert config.loss.foreground.weight == 0
    assert set(choice.reasons) == {"model", "loss", "schedule"}


@pytest.mark.parametrize(("kept", "fit"), [(None, "stretch"), (0.96, "crop"), (0.6, "stretch")])
def test_images_are_cropped_where_that_keeps_the_objects(kept: float | None, fit: str) -> None:
    found = report(300, 300)
    found.in_square = kept
    choice = choose(FolderData(root="birds"), found)
    assert choice.config().data.fit == fit
    assert ("96% of the objects" in choice.reasons.get("data", "")) == (fit == "crop")
    assert choose(FolderData(root="birds", fit="pad"), found).config().data.fit == "pad"
    found.doubts = {str(number): None for number in range(150)}  # type: ignore[misc]
    assert choose(FolderData(root="birds"), found).config().data.fit == "stretch"  # nothing is taken from bad masks


def test_few_images_are_seen_more_often() -> None:
    epochs = [choose(FolderData(root="b"), report(n, n)).config().schedule[0].epochs for n in (60, 600, 6000, 60_000)]
    assert epochs == sorted(epochs, reverse=True)
    assert (epochs[0], epochs[-1]) == (60, 8)


def test_the_yaml_is_the_choice_with_its_reasons(tmp_path: Path) -> None:
    data = CocoData(train="a/train.json", test="a/test.json", classes=["cat", "dog"])
    choice = choose(data, report(60, 60), "grabcut")
    text = choice.yaml("dapl init a/train.json")
    (tmp_path / "a.yaml").write_text(text)
    assert load_config(tmp_path / "a.yaml") == choice.config()
    assert load_config(tmp_path / "a.yaml").data == data
    assert text.startswith("# Written by `dapl init a/train.json`: 3 classes, 60 images")
    assert "masks made by grabcut" in text
    assert max(map(len, text.splitlines())) <= 140
    for section in ("model", "loss", "schedule"):
        before = text[: text.index(f"\n{section}:")].splitlines()[-1]
        assert before.startswith("# "), section


def test_init_makes_masks_and_says_how_they_look(bare: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["init", "birds", "--data.validation_share", "0.2"]) == 0
    said, told = capsys.readouterr()
    assert "15 of 15 images have no mask: made by features" in told
    assert "masks" in told.split("made by features", 1)[1]
    assert len(list((bare / "masks").rglob("*.png"))) == 15
    assert said.endswith("go on with   dapl train birds.yaml\n")
    values = yaml.safe_load(Path("birds.yaml").read_text())
    assert values["data"] == {"name": "folder", "root": "birds", "validation_share": 0.2}
    assert Path("checks/birds/check.png").is_file()
    assert main(["init", "birds"]) == 2  # it is not written over
    assert "birds.yaml: exists" in capsys.readouterr().err


def test_without_weights_masks_are_made_by_colours_alone(
    bare: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dapl.prepare.masks._default_backbone", lambda: create_backbone("no_such_network"))
    assert prepare_own_data(FolderData(root=str(bare))).made_by == "grabcut"
    assert "the features are not at hand (" in capsys.readouterr().err
    assert len(list((bare / "masks").rglob("*.png"))) == 15


def test_without_masks(bare: Path, capsys: pytest.CaptureFixture) -> None:
    found = prepare_own_data(FolderData(root=str(bare)), masks="none", quiet=True)
    assert found.made_by is None
    assert not (bare / "masks").exists()
    assert found.choice.values["model"] == {"system": "dapl"}
    with pytest.raises(DaplError, match="did you mean 'grabcut'"):
        prepare_own_data(FolderData(root=str(bare)), masks="grabcat", quiet=True)


def test_what_train_refuses_of_data(bare: Path, capsys: pytest.CaptureFixture) -> None:
    def refused(*words: str) -> str:
        assert main(["train", *words]) == 2
        return capsys.readouterr().err

    (bare.parent / "runs" / "taken").mkdir(parents=True)
    (bare.parent / "runs" / "taken" / "file").touch()
    assert "runs/taken: exists and is not empty" in refused("birds", "--out", "runs/taken")
    assert "--sam-model: only for masks by sam" in refused("birds", "--sam-model", "x")
    (bare.parent / "run").mkdir()
    (bare.parent / "run" / "config.yaml").touch()
    assert "run: is a run; `dapl train --resume run` goes on with it." in refused("run")
    assert not (bare / "masks").exists()
