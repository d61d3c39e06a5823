"""`dapl prepare check`: each thing that can be wrong is counted and named, the rest goes on, the exit code tells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import GivenData
from dapl.config.reading import data_config
from dapl.data.sample import Splits
from dapl.data.toybirds import ToyBirds, write
from dapl.prepare.check import KINDS, CheckReport, check

ROBIN, THRUSH = "000.Azure-crowned_Robin", "001.Chestnut-crowned_Thrush"


@pytest.fixture(scope="module")
def _birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("check") / "birds"
    for name, count in (("train", 4), ("test", 2)):
        write(ToyBirds(classes=2, images_per_class=count, size=48, split=name), root)
    return root


@pytest.fixture
def birds(_birds: Path, tmp_path: Path) -> Path:
    """A copy of its own for each test, so that a test may break it."""
    return Path(shutil.copytree(_birds, tmp_path / "birds"))


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Runs the command: exit code, what it printed, check.json."""

    def run(data: Path, *more: str) -> tuple[int, str, dict[str, Any]]:
        out = tmp_path / "out"
        code = main(["prepare", "check", str(data), "--out", str(out), "--quiet", *more])
        with Image.open(out / "check.png") as sheet:
            assert sheet.size[0] >= 420
        return code, capsys.readouterr().out, json.loads((out / "check.json").read_text())

    return run


def kinds(found: dict[str, Any]) -> dict[str, int]:
    return found["faults_by_kind"]


def test_a_clean_folder(birds: Path, checked: Callable) -> None:
    code, said, found = checked(birds)
    assert code == 0
    assert said.rstrip().splitlines()[-1].startswith("images ")
    assert "\nclean\n" in said
    assert found["clean"]
    assert found["faults"] == []
    assert found["classes"] == [ROBIN, THRUSH]
    assert found["counts"] == {"train": [3, 3], "validation": [1, 1], "test": [2, 2]}
    assert (found["images"], found["masks"], found["with_points"]) == (12, 12, 12)
    assert f"{ROBIN}" in said


def test_the_sheet_shows_masks_parts_and_classes(birds: Path, tmp_path: Path, checked: Callable) -> None:
    """Take the annotations away and the sheet loses its yellow outlines and its legend."""
    checked(birds)
    with Image.open(tmp_path / "out" / "check.png") as sheet:
        annotated = np.asarray(sheet.convert("RGB"))
    shutil.rmtree(birds / "masks")
    (birds / "keypoints.csv").unlink()
    checked(birds)
    with Image.open(tmp_path / "out" / "check.png") as sheet:
        plain = np.asarray(sheet.convert("RGB"))
    assert annotated.shape[0] > plain.shape[0]
    assert (annotated == (255, 220, 0)).all(-1).sum() > 500
    assert (plain == (255, 220, 0)).all(-1).sum() < 20


def test_each_fault_is_counted_and_the_rest_goes_on(birds: Path, checked: Callable) -> None:
    images = birds / "train" / ROBIN
    (images / "0000.png").write_bytes((images / "0000.png").read_bytes()[:200])
    Image.new("L", (10, 10), 255).save(birds / "masks" / "train" / ROBIN / "0001.png")
    Image.new("L", (48, 48), 0).save(birds / "masks" / "train" / ROBIN / "0002.png")
    (birds / "masks" / "test" / ROBIN / "0000.png").unlink()
    (images / "readme.txt").write_text("a robin")
    table = birds / "keypoints.csv"
    lines = table.read_text().splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith(f"train/{THRUSH}/0000.png,belly"))
    lines[row] = f"train/{THRUSH}/0000.png,belly,90,20,1"
    table.write_text("\n".join([*lines, "train/nobody.png,belly,1,1,1"]) + "\n")
    code, said, found = checked(birds)
    assert code == 1
    assert kinds(found) == {"image": 1, "mask": 1, "empty mask": 1, "no mask": 1, "keypoints": 1, "left out": 2}
    for kind in kinds(found):
        assert f"\n{KINDS[kind]}: " in said
    assert found["images"] == 11
    assert "0000.png: the image is corrupt or truncated" in said
    assert "the mask is 10×10 pixels, but its image" in said
    assert "belly is marked visible at (90, 20), outside" in said
    assert "there is no image 'train/nobody.png'" in said
    assert "7 things to look at" in said
    assert sum(found["counts"]["train"]) == 6


def test_duplicates_across_splits_by_content(birds: Path, checked: Callable) -> None:
    """The copy has another name and another format, but the same pixels."""
    source, copy = birds / "train" / ROBIN / "0001.png", birds / "test" / ROBIN / "copy.bmp"
    with Image.open(source) as image:
        image.save(copy)
    shutil.copy(birds / "masks" / "train" / ROBIN / "0001.png", birds / "masks" / "test" / ROBIN / "copy.png")
    code, said, found = checked(birds)
    assert code == 1
    assert kinds(found) == {"duplicate": 1}
    assert "the same image is in several splits" in said
    assert {(one["split"], one["name"]) for one in found["duplicates"][0]} == {
        ("train", f"train/{ROBIN}/0001.png"),
        ("test", f"test/{ROBIN}/copy.bmp"),
    }


def test_copies_within_a_split_are_noted_and_under_two_classes_wrong(birds: Path, checked: Callable) -> None:
    for folder in ("test", "masks/test"):
        shutil.copy(birds / folder / ROBIN / "0001.png", birds / folder / ROBIN / "again.png")
    code, said, found = checked(birds)
    assert code == 0
    assert "note: 1 images are copies of another" in said
    assert len(found["duplicates"]) == 1
    for folder in ("test", "masks/test"):
        shutil.copy(birds / folder / ROBIN / "0001.png", birds / folder / THRUSH / "again.png")
    code, said, found = checked(birds)
    assert code == 1
    assert "stands under several classes" in said


def test_a_folder_with_one_class_and_a_class_of_one_image(birds: Path, checked: Callable) -> None:
    for number in (1, 2, 3):
        (birds / "train" / THRUSH / f"000{number}.png").unlink()
    shutil.rmtree(birds / "test" / THRUSH)
    code, said, _ = checked(birds)
    assert code == 1
    assert f"class {THRUSH} has one image" in said
    assert f"class {THRUSH} has no test image" in said
    shutil.rmtree(birds / "train" / THRUSH)
    code, said, _ = checked(birds)
    assert code == 1
    assert f"holds one class only ({ROBIN})" in said


def test_no_image_at_all_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["prepare", "check", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 2
    assert "holds no image" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["nowhere", "notes.txt"])
def test_what_is_no_data_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert main(["prepare", "check", str(tmp_path / name)]) == 2
    assert name in capsys.readouterr().err
    assert main(["prepare", "check", str(tmp_path), "--seed", "1"]) == 2
    assert "only fields of data" in capsys.readouterr().err


def test_the_default_place_is_below_checks(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the data itself, where the sheet would be an image of no class."""
    monkeypatch.chdir(tmp_path)
    before = sorted(birds.rglob("*"))
    assert main(["prepare", "check", "birds", "--quiet"]) == 0
    assert {path.name for path in (tmp_path / "checks" / "birds").iterdir()} == {"check.json", "check.png"}
    assert sorted(birds.rglob("*")) == before


def test_a_config_and_fields(birds: Path, tmp_path: Path, checked: Callable) -> None:
    config = tmp_path / "data.yaml"
    config.write_text(f"data: {{name: folder, root: {birds}, validation_share: 0.5}}\n")
    assert checked(config)[2]["counts"]["validation"] == [2, 2]
    assert checked(config, "--data.validation_share", "0.25")[2]["counts"]["validation"] == [1, 1]


def test_cub_and_toybirds_can_be_checked_too(tiny_cub: Path, tmp_path: Path, checked: Callable) -> None:
    assert data_config(tiny_cub).data.name == "cub"
    code, _, found = checked(tiny_cub)
    assert code == 0
    assert found["parts"] == ["beak", "left eye", "belly", "tail"]
    image = next((tiny_cub / "images" / "002.Green_Finch").iterdir())
    image.write_bytes(b"broken")
    code, said, found = checked(tiny_cub)
    assert code == 1
    assert kinds(found) == {"image": 1}
    assert image.name in said
    config = tmp_path / "toy.yaml"
    config.write_text(
        "data: {name: toybirds, classes: 2, images_per_class: 4, test_images_per_class: 1, image_size: 48}"
    )
    code, _, found = checked(config)
    assert code == 0
    assert found["counts"] == {"train": [3, 3], "validation": [1, 1], "test": [1, 1]}


def test_coco_with_an_unknown_image_id(tmp_path: Path, checked: Callable) -> None:
    for number in range(8):
        noise = np.random.default_rng(number).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
    where = {"bbox": [3, 4, 12, 9], "segmentation": [[3, 4, 15, 4, 15, 13, 3, 13]]}
    content: dict[str, list[dict[str, Any]]] = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 30, "height": 20} for n in range(8)],
        "annotations": [{"id": n, "image_id": n, "category_id": n % 2, **where} for n in range(8)],
        "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
    }
    file = tmp_path / "pets.json"
    file.write_text(json.dumps(content))
    code, said, found = checked(file)
    assert code == 0
    assert found["masks"] == 8
    content["annotations"].append({"id": 99, "image_id": 12345, "category_id": 0, "bbox": [1, 1, 2, 2]})
    file.write_text(json.dumps(content))
    code, said, found = checked(file)
    assert code == 1
    assert "item 8 (id 99): left out, there is no image 12345" in said
    assert found["images"] == 8
    (tmp_path / "3.png").unlink()
    code, said, found = checked(file)
    assert code == 1
    assert kinds(found) == {"left out": 1, "image": 1}
    assert "3.png: no such file" in said


def test_many_classes_are_cut_in_the_table_and_whole_in_the_file(tmp_path: Path, checked: Callable) -> None:
    for label in range(33):
        for number in range(3 if label else 4):
            path = tmp_path / "many" / f"class_{label:02}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (label * 7, number * 60, 90)).save(path)
    code, said, found = checked(tmp_path / "many")
    assert code == 0
    assert "(the 30 smallest of 33 classes; all in check.json)" in said
    assert "class_00" not in said
    assert len(found["counts"]["train"]) == 33


def test_data_from_python(tmp_path: Path) -> None:
    birds = {name: ToyBirds(classes=2, images_per_class=2, size=48, split=name) for name in ("train", "test")}
    splits = Splits(birds["train"], birds["test"], birds["test"])
    report = check(GivenData(), tmp_path / "out", quiet=True, splits=splits)
    assert [fault.kind for fault in report.faults] == ["duplicate"] * 4  # validation is test once more
    assert (tmp_path / "out" / "check.png").exists()
    with pytest.raises(DaplError, match="handed over in Python"):
        check(GivenData(), quiet=True)


def test_check_from_python(birds: Path) -> None:
    report = check(data_config(birds).data, quiet=True)
    assert isinstance(report, CheckReport)
    assert report.clean


def test_masks_that_look_wrong_are_shown_and_are_no_fault(birds: Path, tmp_path: Path, checked: Callable) -> None:
    masks = sorted((birds / "masks" / "train" / ROBIN).glob("*.png"))
    speck, large, pieces = (np.zeros((48, 48), np.uint8) for _ in range(3))
    speck[20:24, 20:24], large[:, 4:] = 255, 255
    pieces[5:20, 5:20], pieces[28:43, 28:43] = 255, 255
    for file, mask in zip(masks, (speck, large, pieces), strict=False):
        Image.fromarray(mask).save(file)
    code, said, found = checked(birds)
    assert code == 0
    assert "masks to look at: 3 of 12 (1 × a speck, 1 × more than half of the image, 1 × several pieces)" in said
    assert said.rstrip().splitlines()[-1] == f"masks        {tmp_path / 'out' / 'masks.png'}"
    assert {one["kind"] for one in found["doubts"].values()} == {"speck", "large", "pieces"}
    with Image.open(tmp_path / "out" / "masks.png") as sheet:
        assert sheet.size[0] >= 3 * 160
    for file in (birds / "masks").rglob("*.png"):
        Image.fromarray(large).save(file)
    assert "masks: 12 of 12 hold more than half of their image" in checked(birds)[1]
    shutil.rmtree(birds / "masks")
    assert "doubts" in checked(birds)[2]
    assert not (tmp_path / "out" / "masks.png").exists()
