"""A folder of class folders: both layouts, masks, keypoints, and every way it can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import FolderData
from dapl.data.build import build_splits
from dapl.data.folder import read_folder
from dapl.data.sample import Dataset, Splits
from dapl.data.toybirds import ToyBirds, write

from ..conftest import TINY

COLOURS = {"finch": (200, 40, 40), "owl": (40, 60, 200), "wren": (60, 170, 60)}


def paint(path: Path, colour: tuple[int, int, int], seed: int, size: tuple[int, int] = (24, 16)) -> None:
    """An image (width, height) of one colour with noise of its own."""
    noise = np.random.default_rng(seed).integers(-20, 20, (size[1], size[0], 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)


def paint_mask(path: Path, size: tuple[int, int] = (24, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = np.zeros((size[1], size[0]), np.uint8)
    mask[4:12, 6:18] = 255
    Image.fromarray(mask).save(path)


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """ROOT/<class>/<number>.png, ten of each of three classes."""
    root = tmp_path / "flat"
    for label, (name, colour) in enumerate(COLOURS.items()):
        for number in range(10):
            paint(root / name / f"{number}.png", colour, 100 * label + number)
    return root


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """ROOT/{train,val,test}/<class>/<number>.png."""
    root = tmp_path / "split"
    for place, (folder, count) in enumerate((("train", 3), ("val", 2), ("test", 1))):
        for label, (name, colour) in enumerate(COLOURS.items()):
            for number in range(count):
                paint(root / folder / name / f"{number}.png", colour, 1000 * place + 100 * label + number)
    return root


def built(root: Path, **fields: Any) -> Splits:
    return build_splits(FolderData(root=str(root), **fields))


def names(dataset: Dataset) -> set[str]:
    return set(dataset.names)


def refused(root: Path, **fields: Any) -> str:
    with pytest.raises(DaplError) as caught:
        built(root, **fields)
    return str(caught.value)


# --- layouts --------------------------------------------------------------------------------------------------------


def test_without_splits_a_stratified_share_is_for_test(flat: Path) -> None:
    splits = built(flat, test_share=0.2)
    assert isinstance(splits.train, Dataset)
    assert [len(getattr(splits, name)) for name in ("train", "validation", "test")] == [21, 3, 6]
    assert splits.train.classes == ["finch", "owl", "wren"]
    assert [list(splits.test.labels).count(label) for label in range(3)] == [2, 2, 2]
    everything = [name for dataset in (splits.train, splits.validation, splits.test) for name in dataset.names]
    assert len(everything) == len(set(everything)) == 30
    assert not splits.train.has_masks
    assert list(splits.train.parts) == []
    assert splits.test[0].keypoints is None


def test_the_seed_decides_the_share(flat: Path) -> None:
    again, other = built(flat), built(flat, split_seed=1)
    assert names(built(flat).test) == names(again.test)
    assert names(other.test) != names(again.test)
    # the same images, so that caches are shared
    assert other.train.fingerprint == again.train.fingerprint


def test_splits_of_its_own(split: Path) -> None:
    splits = built(split)
    assert [len(getattr(splits, name)) for name in ("train", "validation", "test")] == [9, 6, 3]
    assert names(splits.validation) == {f"val/{name}/{number}.png" for name in COLOURS for number in range(2)}
    assert splits.test.classes == splits.train.classes
    sample = splits.test[1]
    assert (sample.name, sample.label) == ("test/owl/0.png", 1)
    assert np.abs(sample.image.float().mean((1, 2)).numpy() - COLOURS["owl"]).max() < 10


@pytest.mark.parametrize("spelling", ["val", "valid", "validation", "Val"])
def test_spellings_of_validation(split: Path, spelling: str) -> None:
    (split / "val").rename(split / spelling)
    assert len(built(split).validation) == 6


def test_without_validation_it_is_taken_out_of_train_and_test_stays(split: Path) -> None:
    (split / "val").rename(split.parent / "away")
    splits = built(split, validation_share=0.3)
    assert [len(getattr(splits, name)) for name in ("train", "validation", "test")] == [6, 3, 3]


def test_images_deeper_in_a_class_folder_and_other_suffixes(flat: Path) -> None:
    paint(flat / "owl" / "garden" / "one.JPG", COLOURS["owl"], 1)
    paint(flat / "owl" / "two.webp", COLOURS["owl"], 2)
    (flat / "owl" / ".hidden.png").write_bytes(b"")
    (flat / "owl" / "Thumbs.db").write_bytes(b"")
    listing = read_folder(flat)
    assert {"owl/garden/one.JPG", "owl/two.webp"} <= {record.name for record in listing}
    assert len(list(listing)) == 32
    assert listing.faults == []


# --- masks ----------------------------------------------------------------------------------------------------------


def test_masks_of_the_same_relative_names(split: Path) -> None:
    for record in read_folder(split):
        paint_mask(split / "masks" / record.name)
    splits = built(split)
    for dataset in (splits.train, splits.validation, splits.test):
        assert dataset.has_masks
        mask = dataset[0].mask
        assert mask.sum() == 8 * 12
        assert mask[4:12, 6:18].all()
    assert len(splits.train.classes) == 3  # masks is no class, and no split


def test_masks_beside_classes_are_no_class_and_may_lie_elsewhere(flat: Path, tmp_path: Path) -> None:
    for record in read_folder(flat):
        paint_mask(flat / "masks" / record.name)
    assert built(flat).train.classes == ["finch", "owl", "wren"]
    assert built(flat).train.has_masks
    (flat / "masks").rename(tmp_path / "elsewhere")
    assert not built(flat).train.has_masks
    assert built(flat, masks=str(tmp_path / "elsewhere")).train.has_masks
    assert "data.masks: there is no" in refused(flat, masks=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".gif", ".png.png"])
def test_masks_of_another_suffix_than_the_image(flat: Path, suffix: str) -> None:
    for record in read_folder(flat):
        paint_mask(flat / "masks" / (record.name.removesuffix(".png") + suffix))
    assert built(flat).train.has_masks
    assert built(flat).train[0].mask.sum() == 96  # type: ignore[union-attr]


def test_two_images_of_one_stem_have_masks_of_their_own(flat: Path) -> None:
    paint(flat / "owl" / "0.jpg", COLOURS["owl"], 77)
    paint_mask(flat / "masks" / "owl" / "0.jpg.png")
    paint_mask(flat / "masks" / "owl" / "0.png")
    found = {record.name: record.mask for record in read_folder(flat)}
    assert found["owl/0.jpg"].path.name == "0.jpg.png"  # type: ignore[union-attr]
    assert found["owl/0.png"].path.name == "0.png"  # type: ignore[union-attr]


def test_masks_without_an_image_are_noted(flat: Path) -> None:
    for record in read_folder(flat):
        paint_mask(flat / "masks" / record.name)
    paint_mask(flat / "masks" / "owl" / "typo.png")
    assert "1 masks belong to no image" in read_folder(flat).notes[0]


# --- keypoints ------------------------------------------------------------------------------------------------------


def write_table(root: Path, *rows: str, header: str = "image,part,x,y,visible", name: str = "keypoints.csv") -> Path:
    (root / name).write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return root / name


def sample_called(root: Path, name: str, **fields: Any):
    splits = built(root, **fields)
    dataset = next(d for d in (splits.train, splits.validation, splits.test) if name in d.names)
    return dataset[list(dataset.names).index(name)]


def test_keypoints(flat: Path) -> None:
    write_table(flat, "owl/1.png,beak,3.5,4,1", "owl/1.png,left eye,5,6,0", "wren/2.png,tail,20,10.25,true")
    assert built(flat).train.parts == ["beak", "left eye", "tail"]
    owl, wren, finch = (sample_called(flat, name) for name in ("owl/1.png", "wren/2.png", "finch/3.png"))
    assert owl.visible.tolist() == [True, False, False]
    assert owl.keypoints.tolist() == [[3.5, 4.0], [0.0, 0.0], [0.0, 0.0]]
    assert wren.visible.tolist() == [False, False, True]
    assert wren.keypoints[2].tolist() == [20.0, 10.25]
    assert not finch.visible.any()
    assert finch.keypoints.shape == (3, 2)


@pytest.mark.parametrize(
    ("header", "row"),
    [("image,part,x,y", "owl/1.png,beak,3,4"), ("﻿part;y;x;image", "beak;4;3;owl\\1.png")],
)
def test_other_spellings_of_the_table(flat: Path, header: str, row: str) -> None:
    table = write_table(flat, row, header=header, name="points.csv")
    sample = sample_called(flat, "owl/1.png", keypoints=str(table))
    assert sample.keypoints.tolist() == [[3.0, 4.0]]
    assert sample.visible.tolist() == [True]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("owl/99.png,beak,1,1,1", "there is no image 'owl/99.png'"),
        ("owl/1.png,,1,1,1", "the name of the part is missing"),
        ("owl/1.png,beak,1,here,1", "(1, here) is not a point"),
        ("owl/1.png,beak,nan,1,1", "is not a point"),
        ("owl/1.png,beak,1,1,maybe", "visible is 'maybe', neither 0 nor 1"),
        ("owl/2.png,beak,1,1,1", "beak of owl/2.png was given before"),
    ],
)
def test_a_bad_row_is_left_out_and_named_and_the_rest_goes_on(flat: Path, row: str, why: str) -> None:
    table = write_table(flat, "owl/2.png,beak,5,5,1", row, "owl/3.png,beak,6,6,1")
    listing = read_folder(flat)
    (fault,) = listing.faults
    assert fault.kind == "left out"
    assert fault.text.startswith(f"{table}, line 3: left out, ")
    assert why in fault.text
    assert sample_called(flat, "owl/3.png").keypoints.tolist() == [[6.0, 6.0]]
    assert built(flat).train.dataset.dataset.warnings == [fault.text]  # type: ignore[attr-defined]


def test_rows_of_an_image_that_is_not_there_are_said_once(flat: Path) -> None:
    write_table(flat, *(f"owl/99.png,{part},1,1,1" for part in ("beak", "tail", "foot")), "owl/1.png,beak,1,1,1")
    (fault,) = read_folder(flat).faults
    assert "line 2 and 2 more: left out, there is no image 'owl/99.png'" in fault.text


def test_a_table_without_its_columns_is_refused(flat: Path) -> None:
    write_table(flat, "1,2", header="image,x")
    assert "keypoints.csv, line 1: the column part is missing" in refused(flat)


# --- what is wrong with a folder ------------------------------------------------------------------------------------


def test_folders_that_are_no_data(tmp_path: Path, split: Path) -> None:
    assert "no such folder" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no training image" in refused(tmp_path / "empty")
    (split / "train").rename(tmp_path / "away")
    assert "no folder train" in refused(split)


def test_two_validation_folders_are_refused(split: Path) -> None:
    (split / "validation").mkdir()
    assert "two folders for validation" in refused(split)


def test_what_is_left_out_is_said(flat: Path, split: Path) -> None:
    (flat / "owl" / "notes.txt").write_text("hoot")
    paint(flat / "loose.png", (0, 0, 0), 0)
    (flat / "bare").mkdir()
    texts = [fault.text for fault in read_folder(flat).faults]
    assert any("notes.txt: left out, not an image by its name" in text for text in texts)
    assert any("1 images in no class folder are left out, the first loose.png" in text for text in texts)
    assert any("class bare has no training image" in text for text in texts)
    paint(split / "extra" / "owl" / "0.png", (0, 0, 0), 0)
    paint(split / "test" / "stork" / "0.png", (0, 0, 0), 0)
    listing = read_folder(split)
    texts = [fault.text for fault in listing.faults]
    assert any("neither val nor test" in text for text in texts)
    assert any("class stork has no training image" in text for text in texts)
    assert listing.classes == ["finch", "owl", "wren"]
    assert {record.label for record in listing.records["test"]} == {0, 1, 2}


def test_a_class_without_test_images_is_said(split: Path) -> None:
    (split / "test" / "owl" / "0.png").unlink()
    assert [fault.text for fault in read_folder(split).faults] == [f"{split}: class owl has no test image."]
    assert list(built(split).test.labels) == [0, 2]


# --- the whole way --------------------------------------------------------------------------------------------------


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    for name, count in (("train", 4), ("test", 2)):
        write(ToyBirds(classes=2, images_per_class=count, size=64, split=name), tmp_path / "birds")
    return tmp_path / "birds"


def test_toybirds_as_files_are_the_toybirds(birds: Path) -> None:
    """Written and read again: the same images, masks and keypoints."""
    drawn, splits = ToyBirds(classes=2, images_per_class=2, size=64, split="test"), built(birds)
    read = splits.test
    assert list(read.parts) == list(drawn.parts)
    for index in range(len(drawn)):
        ours, theirs = read[index], drawn[index]
        assert torch.equal(ours.image, theirs.image)
        assert torch.equal(ours.mask, theirs.mask)  # type: ignore[arg-type]
        assert torch.equal(ours.visible, theirs.visible)  # type: ignore[arg-type]
        assert torch.allclose(ours.keypoints, theirs.keypoints, atol=1e-3)  # type: ignore[arg-type]


def test_train_and_evaluate_with_parts(birds: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = tmp_path / "birds.yaml"
    fields = TINY | {
        "data": {"name": "folder", "root": str(birds), "image_size": 64},
        "loss": {"foreground": {"weight": 1}},
        "schedule": [{"stage": "warm_up", "epochs": 1, "batch_size": 4}, {"stage": "project"}],
        "cache": {"folder": str(tmp_path / "cache")},
    }
    config.write_text(yaml.safe_dump(fields))
    table = birds / "keypoints.csv"
    table.write_text(table.read_text() + "test/nobody.png,beak,1,1,1\n")
    assert main(["train", str(config), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "Coverage" in said.out
    assert "Diversity" in said.out
    assert "background bias" in said.out
    assert "folder: 2 classes, 6 train, 2 validation, 4 test" in said.err
    assert said.err.count("there is no image 'test/nobody.png'") >= 1  # left out, and said
    assert main(["evaluate", str(tmp_path / "run"), "--metrics", "coverage"]) == 0
    assert "Coverage" in capsys.readouterr().out
