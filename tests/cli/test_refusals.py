"""Data, runs and checkpoints that a command cannot use: one sentence, exit code 2, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from dapl.cli import main
from dapl.config import parse_config
from dapl.runs.run import Run
from dapl.training.trainer import train

from .conftest import SMALL


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    config = parse_config(SMALL | {"cache": {"folder": str(folder / "cache")}})
    return train(config, folder / "run", quiet=True).folder


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Run:
    """A run of one's own, which a test may break."""
    return Run(shutil.copytree(trained, tmp_path / "run"))


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cub(tiny_cub: Path, write: Callable) -> Callable[..., str]:
    """``cub(runtime={…})``: the config of a run on the tiny CUB, which a test breaks before."""

    def written(**sections: Any) -> str:
        return write(data={"name": "cub", "root": str(tiny_cub), "image_size": 64}, **sections)

    return written


def images(root: Path, folder: str = "images") -> list[Path]:
    return sorted(path for path in (root / folder).rglob("*") if path.is_file())


def refused_for(image: Path, message: str, cache: Path) -> None:
    assert message.startswith(f"dapl: {image}: ")
    assert "take it out of the data set" in message
    assert len(message.splitlines()) == 1
    assert not cache.exists() or [path.name for path in cache.iterdir()] in ([], ["CACHEDIR.TAG"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_a_truncated_image(
    cub: Callable, refused: Callable, tiny_cub: Path, tmp_path: Path, workers: int, cached: bool
) -> None:
    """Met while decoding: in this process or in a loading one, for the cache or for a batch."""
    image = images(tiny_cub)[2]
    image.write_bytes(image.read_bytes()[: image.stat().st_size // 2])
    cache = {"folder": str(tmp_path / "cache"), "pixels": cached, "features": cached}
    runtime = {"accelerator": "cpu", "workers": workers}
    refused_for(image, refused("train", cub(runtime=runtime, cache=cache)), tmp_path / "cache")


@pytest.mark.parametrize("content", [b"", b"GIF89a and no more", b"<html>404</html>"])
def test_a_corrupt_image(cub: Callable, refused: Callable, tiny_cub: Path, tmp_path: Path, content: bytes) -> None:
    image = images(tiny_cub)[2]
    image.write_bytes(content)
    refused_for(image, refused("train", cub()), tmp_path / "cache")


def test_the_same_folder_serves_once_the_image_is_mended(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    image = images(tiny_cub)[0]
    whole = image.read_bytes()
    image.write_bytes(whole[:300])
    path = cub()
    refused("train", path)
    image.write_bytes(whole)
    assert main(["train", path, "--out", str(tiny_cub / "run")]) == 0
    assert Run(tiny_cub / "run").last.exists()


def test_a_class_without_images(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    table = tiny_cub / "train_test_split.txt"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(f"{line.split()[0]} 0" if int(line.split()[0]) > 18 else line for line in lines) + "\n")
    message = refused("train", cub())
    assert message.startswith(f"dapl: {tiny_cub}: class 004.Grey_Owl has no train image")


def test_a_mask_of_another_size(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    mask = images(tiny_cub, "segmentations")[1]
    Image.new("L", (17, 13)).save(mask)
    message = refused("train", cub())
    assert message.startswith(f"dapl: {mask}: the mask is 17×13 pixels, but its image {images(tiny_cub)[1]} is ")


def test_a_keypoint_outside_the_image(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    table = tiny_cub / "parts" / "part_locs.txt"
    lines = table.read_text().splitlines()
    lines[1] = "1 2 900.0 20.0 1"
    table.write_text("\n".join(lines) + "\n")
    message = refused("train", cub())
    assert message.startswith(f"dapl: {table}, line 2: left eye is marked visible at (900, 20), outside ")


def test_data_that_is_not_there(write: Callable, refused: Callable, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("DAPL_CUB", raising=False)
    message = refused("train", write(data={"name": "cub"}))
    assert "data.root: the environment variable DAPL_CUB is not set" in message
    assert str(tmp_path / "nothing") in refused("train", write(data={"name": "cub", "root": str(tmp_path / "nothing")}))


def test_one_image_per_class_cannot_be_held_out(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    table = tiny_cub / "train_test_split.txt"
    rows = [line.split()[0] for line in table.read_text().splitlines()]
    table.write_text("".join(f"{row} {int(int(row) % 6 == 1)}\n" for row in rows))
    assert "no class has the two training images" in refused("train", cub())


def test_a_foreground_loss_without_masks(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    shutil.rmtree(tiny_cub / "segmentations")
    message = refused("train", cub(loss={"foreground": {"weight": 1.0}}))
    assert message.startswith("dapl: loss.foreground.weight: the data has no foreground masks")


# --- runs -----------------------------------------------------------------------------------------------------------


def test_what_is_not_a_run(refused: Callable, tmp_path: Path) -> None:
    for command in (["evaluate", str(tmp_path)], ["train", "--resume", str(tmp_path)]):
        assert f"{tmp_path}: not a run directory" in refused(*command)


def commands(run: Run) -> list[list[str]]:
    return [["evaluate", str(run.folder)], ["train", "--resume", str(run.folder)]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: os.truncate(path, path.stat().st_size // 2), "safetensors: not a whole checkpoint of dapl"),
        (lambda path: torch.save({"model": torch.zeros(2)}, path), "safetensors: not a whole checkpoint of dapl"),
        (lambda path: save_file(load_file(path), path), "of another program"),
    ],
    ids=["truncated", "a pickle", "without our header"],
)
def test_a_damaged_checkpoint(finished: Run, refused: Callable, damage: Callable, message: str) -> None:
    for path in (finished.last, finished.best):
        damage(path)
    before = {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()}
    for command in commands(finished):
        assert message in refused(*command)
    assert {path: path.read_bytes() for path in before} == before


def test_a_checkpoint_of_another_model(finished: Run, refused: Callable) -> None:
    config = yaml.safe_load(finished.config_file.read_text())
    config["model"]["heads"] = 3
    finished.config_file.write_text(yaml.safe_dump(config))
    for command in commands(finished):
        message = refused(*command)
        assert "safetensors: a checkpoint of another model: " in message
        assert "addon.0.weight has shape (8," in message


def test_a_run_without_a_checkpoint(finished: Run, refused: Callable) -> None:
    finished.best.unlink()
    assert f"{finished.best}: no such checkpoint" in refused("evaluate", str(finished.folder))


def test_a_run_whose_files_are_damaged(finished: Run, refused: Callable) -> None:
    finished.data_file.write_text("{")
    assert f"{finished.data_file}: not JSON" in refused("evaluate", str(finished.folder))
    finished.data_file.unlink()
    assert f"{finished.data_file}: no such file" in refused("evaluate", str(finished.folder))
    finished.config_file.write_text("data: [")
    for command in commands(finished):
        assert f"{finished.config_file}: line" in refused(*command)


def test_data_with_other_classes(finished: Run, refused: Callable) -> None:
    message = refused("evaluate", str(finished.folder), "--data.classes", "3")
    assert "the test split has 3 classes that are not the 2 of the run" in message


def test_only_some_fields_may_change_for_an_evaluation(finished: Run, refused: Callable) -> None:
    message = refused("evaluate", str(finished.folder), "--model.heads", "3")
    assert "--model.heads: dapl evaluate takes only fields of runtime, cache and data" in message
    assert "did you mean 'test'?" in refused("evaluate", str(finished.folder), "--split", "tset")
