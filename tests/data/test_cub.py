"""CUB in its published layout: the tiny one for every rule and every broken file, the real one for the numbers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dapl.common.errors import DaplError
from dapl.config import CubData
from dapl.data.build import build_splits
from dapl.data.cub import read_cub
from dapl.data.listing import FileDataset
from dapl.data.sample import Dataset

TINY = ["001.Red_Finch", "002.Green_Finch", "003.Blue_Owl", "004.Grey_Owl"]
TABLES = ["image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt", "parts/part_locs.txt"]
"""One line per image, or per image and part."""


def cub(root: Path, split: str = "train", classes: Any = None, crop: Any = "none") -> FileDataset:
    return read_cub(root, classes).dataset(split, crop)


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


def set_line(number: int, text: str) -> Callable[[list[str]], object]:
    return lambda lines: lines.__setitem__(number - 1, text)


def test_meets_the_contract(tiny_cub: Path) -> None:
    train, test = cub(tiny_cub), cub(tiny_cub, "test")
    assert isinstance(train, Dataset)
    assert (len(train), len(test)) == (16, 8)
    assert train.classes == TINY
    assert train.parts == ["beak", "left eye", "belly", "tail"]
    assert train.labels == [label for label in range(4) for _ in range(4)]
    assert train.has_masks
    assert not set(train.names) & set(test.names)
    assert all((tiny_cub / "images" / name).is_file() for name in train.names)


def test_sample_is_what_was_drawn(tiny_cub: Path) -> None:
    dataset = cub(tiny_cub)
    for index in range(len(dataset)):
        sample = dataset[index]
        frame = sample.image.shape[-2:]
        assert (sample.label, sample.name) == (dataset.labels[index], dataset.names[index])
        assert sample.part_masks is None
        assert (sample.mask.shape, sample.keypoints.canvas_size) == (frame, tuple(frame))
        assert sample.visible.tolist() == [True, True, True, index % 4 % 3 != 0]
        assert (sample.keypoints[~sample.visible] == 0).all()
        rows, columns = sample.mask.nonzero().T
        box = sample.box[0]
        assert (box[0] - columns.min()).abs() <= 1.5
        assert (box[3] - rows.max() - 1).abs() <= 1.5
        for x, y in sample.keypoints[sample.visible].int().tolist():
            assert sample.mask[y, x] == 1
        x, y = sample.keypoints[2].int().tolist()
        ink = [(200, 40, 40), (40, 170, 60), (50, 80, 210), (120, 120, 120)][sample.label]
        assert np.abs(sample.image[:, y, x].numpy().astype(int) - ink).max() < 25


def test_keypoints_outside_the_crop_become_invisible(tiny_cub: Path) -> None:
    x, y = cub(tiny_cub)[1].keypoints[2].tolist()  # type: ignore[index]
    edit(tiny_cub / "bounding_boxes.txt", set_line(2, f"2 {x - 3} {y - 3} 8 8"))
    sample = cub(tiny_cub, crop="box")[1]
    assert sample.visible.tolist() == [False, False, True, False]
    assert sample.mask.all()


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        (1, [0, 1, 2, 3]),
        (2, [0, 2]),
        (3, [0, 3]),
        (10, [0]),
        ([2, 4], [1, 3]),
        (["004.Grey_Owl", "Red_Finch"], [0, 3]),
        ([3, "red_finch"], [0, 2]),
    ],
)
def test_choice_of_classes(tiny_cub: Path, wanted: object, chosen: list[int]) -> None:
    dataset = cub(tiny_cub, classes=wanted)
    assert dataset.classes == [TINY[index] for index in chosen]
    assert sorted(set(dataset.labels)) == list(range(len(chosen)))
    for label, name in zip(dataset.labels, dataset.names, strict=True):
        assert name.startswith(dataset.classes[label] + "/")
    assert dataset[len(dataset) - 1].label == len(chosen) - 1


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["Red_Fink"], "no class 'Red_Fink'; did you mean '001.Red_Finch'"),
        (["003.Blue_Owk"], "did you mean '003.Blue_Owl'"),
        (["finch"], "'finch' is in the names of several classes"),
        (["xyz"], "there is no class 'xyz'; known: 001.Red_Finch"),
        ([0], "no class number 0; they run from 1 to 4"),
        ([5], "no class number 5"),
        ([], "neither a step nor a list"),
        ("Red_Finch", "neither a step nor a list"),
        (True, "neither a step nor a list"),
        (0, "a step of 0"),
        ([1, "Red_Finch"], "001.Red_Finch is listed twice"),
    ],
)
def test_bad_choice_of_classes(tiny_cub: Path, wanted: object, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        cub(tiny_cub, classes=wanted)


def test_masks_beside_the_root_or_nowhere(tiny_cub: Path) -> None:
    masks = cub(tiny_cub)[5].mask
    shutil.move(tiny_cub / "segmentations", tiny_cub.parent / "segmentations")
    beside = cub(tiny_cub)
    assert beside.has_masks
    assert torch.equal(beside[5].mask, masks)
    shutil.rmtree(tiny_cub.parent / "segmentations")
    nowhere = cub(tiny_cub)
    assert not nowhere.has_masks
    assert nowhere[5].mask is None


def test_fingerprints_of_splits_and_choices_differ(tiny_cub: Path) -> None:
    choices = ({}, {"split": "test"}, {"crop": "box"}, {"classes": 2})
    assert len({cub(tiny_cub, **options).fingerprint for options in choices}) == 4


def test_the_folder_above_is_recognised(tiny_cub: Path) -> None:
    with pytest.raises(DaplError, match=re.escape(f"give {tiny_cub}")):
        cub(tiny_cub.parent)


def test_missing_images_and_masks(tiny_cub: Path) -> None:
    def built(**fields: Any) -> int:
        splits = build_splits(CubData(root=str(tiny_cub), **fields))
        return len(splits.train) + len(splits.validation)

    names = cub(tiny_cub).names
    mask = tiny_cub / "segmentations" / Path(names[6]).with_suffix(".png")
    mask.unlink()
    with pytest.raises(DaplError, match=f"1 of 24 images have no mask, the first {names[6]}"):
        built()
    assert names[6] in [fault.name for fault in read_cub(tiny_cub).faults]
    shutil.rmtree(tiny_cub / "images" / "002.Green_Finch")
    missing = re.escape(f"{tiny_cub / 'images' / names[4]}: no such file") + ".*6 missing.*unpack the archive again"
    with pytest.raises(DaplError, match=missing):
        built()
    assert built(classes=[1, 3]) == 8  # what was not asked for is not missed


def test_class_without_images(tiny_cub: Path) -> None:
    edit(tiny_cub / "train_test_split.txt", lambda lines: [lines.__setitem__(i, f"{i + 1} 0") for i in range(6, 12)])
    with pytest.raises(DaplError, match=r"class 002\.Green_Finch has no train image; add some .*train_test_split"):
        cub(tiny_cub)
    edit(tiny_cub / "train_test_split.txt", lambda lines: [lines.__setitem__(i, f"{i + 1} 1") for i in range(6, 12)])
    with pytest.raises(DaplError, match=r"class 002\.Green_Finch has no test image"):
        cub(tiny_cub, "train")
    assert len(cub(tiny_cub, classes=[1, 3, 4])) == 12


def test_a_keypoint_a_little_beyond_the_image_is_invisible(tiny_cub: Path) -> None:
    """As one in the published data; what lies farther out is a fault, as in all data of files."""
    width = cub(tiny_cub)[0].image.shape[2]
    edit(tiny_cub / "parts/part_locs.txt", set_line(1, f"1 1 {width + 3} 10 1"))
    sample = cub(tiny_cub)[0]
    assert not sample.visible[0]
    assert sample.keypoints[0].tolist() == [0, 0]


def test_lines_in_any_order_and_ids_with_gaps(tiny_cub: Path) -> None:
    before = cub(tiny_cub)
    for file in TABLES:
        edit(tiny_cub / file, lambda lines: lines.reverse())
    for file in ("images.txt", *TABLES):
        edit(tiny_cub / file, lambda lines: lines.__setitem__(slice(None), [f"1{line}" for line in lines]))
    after = cub(tiny_cub)
    assert (after.names, after.labels) == (before.names, before.labels)
    for index in (0, 7, 15):
        assert torch.equal(after[index].keypoints, before[index].keypoints)
        assert torch.equal(after[index].box, before[index].box)


def test_windows_line_ends(tiny_cub: Path) -> None:
    before = cub(tiny_cub)
    for path in [*tiny_cub.glob("*.txt"), *tiny_cub.glob("parts/*.txt")]:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    after = cub(tiny_cub)
    assert (after.names, after.classes, after.parts) == (before.names, before.classes, before.parts)


def test_missing_root_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"nowhere: no such folder.*published layout.*Caltech-UCSD Birds"):
        cub(tmp_path / "nowhere")


@pytest.mark.parametrize("file", ["images.txt", "classes.txt", "parts/parts.txt", *TABLES])
def test_missing_empty_and_binary_files(tiny_cub: Path, file: str) -> None:
    path = tiny_cub / file
    content = path.read_bytes()
    path.write_bytes(b"\n")
    with pytest.raises(DaplError, match=re.escape(f"{path}: is empty")):
        cub(tiny_cub)
    path.write_bytes(content.replace(b"\n2 ", b"\n2 \xff\xfe", 1))
    with pytest.raises(DaplError, match=re.escape(f"{path}, line ")):
        cub(tiny_cub)
    path.unlink()
    with pytest.raises(DaplError, match=re.escape(f"{path}: no such file")):
        cub(tiny_cub)


@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        ("images.txt", 3, "3", "expected a number and a name"),
        ("images.txt", 3, "three a.jpg", "expected a number and a name"),
        ("images.txt", 3, "2 a.jpg", "the number 2 was used before"),
        ("classes.txt", 2, "", "expected a number and a name"),
        ("image_class_labels.txt", 4, "4 9", "there is no class 9"),
        ("image_class_labels.txt", 4, "99 1", "there is no image 99"),
        ("image_class_labels.txt", 4, "4 1 1", "expected 2 numbers, found '4 1 1'"),
        ("image_class_labels.txt", 4, "", "expected 2 numbers"),
        ("image_class_labels.txt", 4, "3 1", "says again what line 3 says"),
        ("train_test_split.txt", 5, "5 2", "there is no split flag 2"),
        ("bounding_boxes.txt", 6, "6 1 1 10", "expected 5 numbers"),
        ("bounding_boxes.txt", 6, "6 1 1 10 nan", "expected 5 numbers"),
        ("bounding_boxes.txt", 6, "6 1 1 10 0", "the box has no width or no height"),
        ("parts/part_locs.txt", 7, "2 3 x 1 1", "expected 5 numbers"),
        ("parts/part_locs.txt", 7, "2 9 1 1 1", "there is no part 9"),
        ("parts/part_locs.txt", 7, "2 3 1 1 2", "visible must be 0 or 1"),
        ("parts/part_locs.txt", 7, "2 2 1 1 1", "says again what line 6 says"),
    ],
)
def test_malformed_lines(tiny_cub: Path, file: str, line: int, text: str, message: str) -> None:
    edit(tiny_cub / file, set_line(line, text))
    with pytest.raises(DaplError, match=re.escape(f"{tiny_cub / file}, line {line}: {message}")):
        cub(tiny_cub)


def test_truncated_tables(tiny_cub: Path) -> None:
    edit(tiny_cub / "parts/part_locs.txt", lambda lines: lines.pop(9))
    with pytest.raises(DaplError, match=r"part_locs\.txt: has no line for image 3;"):
        cub(tiny_cub)


def test_name_twice(tiny_cub: Path) -> None:
    edit(tiny_cub / "images.txt", lambda lines: lines.__setitem__(1, "2 " + lines[0].split()[1]))
    with pytest.raises(DaplError, match=r"images\.txt: the name .*jpg' stands there 2 times"):
        cub(tiny_cub)


def test_real_cub_counts(cub_root: Path) -> None:
    train, test = cub(cub_root), cub(cub_root, "test")
    assert (len(train), len(test)) == (5994, 5794)
    assert len(train.classes) == 200
    assert len(train.parts) == 15
    assert min(np.bincount(train.labels)) == 29
    assert max(np.bincount(train.labels)) == 30
    assert train.fingerprint != test.fingerprint


def test_real_cub_20(cub_root: Path) -> None:
    train = cub(cub_root, classes=10)
    assert len(train.classes) == 20
    assert [int(name[:3]) for name in train.classes] == list(range(1, 200, 10))
    assert (len(train), len(cub(cub_root, "test", classes=10))) == (599, 579)


@pytest.mark.parametrize("crop", ["none", "box"])
def test_real_cub_samples(cub_root: Path, crop: str) -> None:
    """Keypoints lie in the image, mostly on the bird; the mask fills a fair part of the box."""
    dataset = cub(cub_root, "test", crop=crop)
    seen, on_bird = 0, 0
    for index in range(0, len(dataset), 97):
        sample = dataset[index]
        columns, rows = sample.keypoints[sample.visible].int().T
        seen += len(rows)
        on_bird += int(sample.mask[rows, columns].sum())
        x1, y1, x2, y2 = sample.box[0].round().int().tolist()
        assert sample.mask.sum() > 0
        assert sample.mask[y1:y2, x1:x2].sum() > 0.8 * sample.mask.sum()
    assert seen > 500
    assert on_bird > 0.9 * seen


def test_real_cub_keypoint_beyond_the_image(cub_root: Path) -> None:
    name = "086.Pacific_Loon/Pacific_Loon_0034_75438.jpg"
    for split in ("train", "test"):
        dataset = cub(cub_root, split, classes=[86])
        if name in dataset.names:
            sample = dataset[dataset.names.index(name)]
            assert not sample.visible[dataset.parts.index("breast")]
            return
    pytest.fail(f"{name} is in neither split")
