"""CUB in its published layout: the tiny one for every rule and every broken file, the real one for the numbers."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dapl.common.errors import DaplError
from dapl.data.cub import Cub200
from dapl.data.sample import Dataset

TINY = ["001.Red_Finch", "002.Green_Finch", "003.Blue_Owl", "004.Grey_Owl"]


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


def set_line(number: int, text: str) -> Callable[[list[str]], object]:
    return lambda lines: lines.__setitem__(number - 1, text)


def test_meets_the_contract(tiny_cub: Path) -> None:
    train, test = Cub200(tiny_cub), Cub200(str(tiny_cub), "test")
    assert isinstance(train, Dataset)
    assert (len(train), len(test)) == (16, 8)
    assert train.classes == TINY
    assert train.parts == ["beak", "left eye", "belly", "tail"]
    assert train.labels == [label for label in range(4) for _ in range(4)]
    assert train.has_masks
    assert not set(train.names) & set(test.names)
    assert all((tiny_cub / "images" / name).is_file() for name in train.names)


def test_sample_is_what_was_drawn(tiny_cub: Path) -> None:
    dataset = Cub200(tiny_cub)
    for index in range(len(dataset)):
        sample = dataset[index]
        frame = sample.image.shape[-2:]
        assert (sample.label, sample.name) == (dataset.labels[index], dataset.names[index])
        assert sample.mask is not None
        assert sample.keypoints is not None
        assert sample.visible is not None
        assert sample.box is not None
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


def test_crop_to_the_box(tiny_cub: Path) -> None:
    whole, cropped = Cub200(tiny_cub)[1], Cub200(tiny_cub, crop="box")[1]
    assert whole.box is not None
    x1, y1, x2, y2 = whole.box[0].tolist()
    left, top = int(x1), int(y1)
    assert cropped.image.shape == (3, -int(-y2 // 1) - top, -int(-x2 // 1) - left)
    height, width = cropped.image.shape[1:]
    assert torch.equal(cropped.image, whole.image[:, top : top + height, left : left + width])
    assert torch.equal(cropped.mask, whole.mask[top : top + height, left : left + width])  # type: ignore[index, arg-type]
    assert cropped.visible is not None
    assert cropped.visible.all()
    assert torch.allclose(cropped.keypoints + torch.tensor([left, top]), whole.keypoints)  # type: ignore[arg-type, operator]


def test_keypoints_outside_the_crop_become_invisible(tiny_cub: Path) -> None:
    x, y = Cub200(tiny_cub)[1].keypoints[2].tolist()  # type: ignore[index]
    edit(tiny_cub / "bounding_boxes.txt", set_line(2, f"2 {x - 3} {y - 3} 8 8"))
    sample = Cub200(tiny_cub, crop="box")[1]
    assert sample.visible is not None
    assert sample.visible.tolist() == [False, False, True, False]
    assert sample.mask is not None
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
        ([3, "Red_Finch"], [0, 2]),
    ],
)
def test_choice_of_classes(tiny_cub: Path, wanted: object, chosen: list[int]) -> None:
    dataset = Cub200(tiny_cub, classes=wanted)  # type: ignore[arg-type]
    assert dataset.classes == [TINY[index] for index in chosen]
    assert sorted(set(dataset.labels)) == list(range(len(chosen)))
    for label, name in zip(dataset.labels, dataset.names, strict=True):
        assert name.startswith(dataset.classes[label] + "/")
    assert dataset[len(dataset) - 1].label == len(chosen) - 1


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["Red_Fink"], "no class 'Red_Fink'; did you mean Red_Finch"),
        (["003.Blue_Owk"], "did you mean 003.Blue_Owl"),
        (["xyz"], r"classes\.txt lists"),
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
        Cub200(tiny_cub, classes=wanted)  # type: ignore[arg-type]


def test_unknown_words(tiny_cub: Path) -> None:
    with pytest.raises(DaplError, match="no split 'val'; give one of train, test"):
        Cub200(tiny_cub, "val")  # type: ignore[arg-type]
    with pytest.raises(DaplError, match="unknown crop 'bird'"):
        Cub200(tiny_cub, crop="bird")  # type: ignore[arg-type]


def test_masks_beside_the_root_or_nowhere(tiny_cub: Path) -> None:
    masks = Cub200(tiny_cub)[5].mask
    shutil.move(tiny_cub / "segmentations", tiny_cub.parent / "segmentations")
    beside = Cub200(tiny_cub)
    assert beside.has_masks
    assert torch.equal(beside[5].mask, masks)  # type: ignore[arg-type]
    shutil.rmtree(tiny_cub.parent / "segmentations")
    nowhere = Cub200(tiny_cub)
    assert not nowhere.has_masks
    assert nowhere[5].mask is None


def test_survives_pickling_for_workers(tiny_cub: Path) -> None:
    dataset = Cub200(tiny_cub)
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[3].image, dataset[3].image)


def test_fingerprint(tiny_cub: Path) -> None:
    def fingerprint(**options: object) -> str:
        return Cub200(tiny_cub, **options).fingerprint  # type: ignore[arg-type]

    first = fingerprint()
    assert fingerprint() == first
    assert len({first, fingerprint(split="test"), fingerprint(crop="box"), fingerprint(classes=2)}) == 4
    image = tiny_cub / "images" / Cub200(tiny_cub).names[3]
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1))
    touched = fingerprint()
    edit(tiny_cub / "parts/part_locs.txt", lambda lines: lines.__setitem__(0, lines[0].replace(".", ".1", 1)))
    moved = fingerprint()
    shutil.rmtree(tiny_cub / "segmentations")
    assert len({first, touched, moved, fingerprint()}) == 4


def test_the_folder_above_is_recognised(tiny_cub: Path) -> None:
    with pytest.raises(DaplError, match=re.escape(f"give {tiny_cub}")):
        Cub200(tiny_cub.parent)


def test_missing_images_and_masks(tiny_cub: Path) -> None:
    names = Cub200(tiny_cub).names
    mask = tiny_cub / "segmentations" / Path(names[6]).with_suffix(".png")
    mask.unlink()
    with pytest.raises(DaplError, match=re.escape(f"{mask}: no such file") + r".*1 missing in all"):
        Cub200(tiny_cub)
    shutil.rmtree(tiny_cub / "images" / "002.Green_Finch")
    with pytest.raises(DaplError, match=re.escape(f"{tiny_cub / 'images' / names[4]}: no such") + ".*4 missing"):
        Cub200(tiny_cub)
    assert len(Cub200(tiny_cub, classes=[1, 3])) == 8  # what was not asked for is not missed


def test_class_without_images(tiny_cub: Path) -> None:
    edit(
        tiny_cub / "train_test_split.txt",
        lambda lines: lines.__setitem__(slice(6, 12), [f"{i} 0" for i in range(7, 13)]),
    )
    with pytest.raises(DaplError, match=r"class 002\.Green_Finch has no train image"):
        Cub200(tiny_cub)
    edit(tiny_cub / "classes.txt", lambda lines: lines.append("5 005.Dodo"))
    with pytest.raises(DaplError, match=r"class 005\.Dodo has no test image"):
        Cub200(tiny_cub, "test")
    assert len(Cub200(tiny_cub, classes=[1, 3, 4])) == 12


def test_keypoints_outside_the_image(tiny_cub: Path) -> None:
    _, height, width = Cub200(tiny_cub)[0].image.shape
    locations = tiny_cub / "parts/part_locs.txt"

    def beak_at(x: float, y: float) -> tuple[bool, list[float]]:
        edit(locations, set_line(1, f"1 1 {x} {y} 1"))
        sample = Cub200(tiny_cub)[0]
        assert sample.visible is not None
        assert sample.keypoints is not None
        return bool(sample.visible[0]), sample.keypoints[0].tolist()

    visible, (x, y) = beak_at(-0.8, height + 0.9)  # a click on the frame
    assert visible
    assert x == 0
    assert height - 0.01 < y < height
    assert beak_at(width + 3, 10) == (False, [0, 0])  # beyond it, as one in the published data
    with pytest.raises(
        DaplError, match=re.escape(f"{locations}, line 1: beak is marked visible at (10, {height + 30}), outside")
    ):
        beak_at(10, height + 30)
    edit(locations, set_line(1, "1 1 999 999 0"))  # what is not visible may be anywhere
    sample = Cub200(tiny_cub)[0]
    assert sample.keypoints is not None
    assert sample.keypoints[0].tolist() == [0, 0]


def test_boxes_beyond_the_image(tiny_cub: Path) -> None:
    _, height, width = Cub200(tiny_cub)[0].image.shape
    boxes = tiny_cub / "bounding_boxes.txt"
    edit(boxes, set_line(1, f"1 -5 10 {width + 20} {height}"))
    sample = Cub200(tiny_cub, crop="box")[0]
    assert sample.image.shape == (3, height - 10, width)
    assert sample.box is not None
    assert sample.box[0].tolist() == [0, 0, width, height - 10]
    edit(boxes, set_line(1, f"1 {width + 5} 10 20 20"))
    with pytest.raises(DaplError, match=r"bounding_boxes\.txt: the box of 001.*lies outside the image"):
        Cub200(tiny_cub)[0]


def test_broken_image_and_mask_of_another_size(tiny_cub: Path) -> None:
    dataset = Cub200(tiny_cub)
    image = tiny_cub / "images" / dataset.names[0]
    image.write_bytes(image.read_bytes()[:900])
    with pytest.raises(DaplError, match=re.escape(f"{image}: the image is corrupt or truncated")):
        dataset[0]
    mask = tiny_cub / "segmentations" / Path(dataset.names[1]).with_suffix(".png")
    Image.new("L", (20, 10)).save(mask)
    with pytest.raises(DaplError, match=re.escape(f"{mask}: the mask is 20×10 pixels, but its image {tiny_cub}")):
        dataset[1]


def test_real_cub_counts(cub_root: Path) -> None:
    train, test = Cub200(cub_root), Cub200(cub_root, "test")
    assert (len(train), len(test)) == (5994, 5794)
    assert len(train.classes) == 200
    assert len(train.parts) == 15
    assert min(np.bincount(train.labels)) == 29
    assert max(np.bincount(train.labels)) == 30
    assert train.fingerprint != test.fingerprint


def test_real_cub_20(cub_root: Path) -> None:
    train = Cub200(cub_root, classes=10)
    assert len(train.classes) == 20
    assert [int(name[:3]) for name in train.classes] == list(range(1, 200, 10))
    assert (len(train), len(Cub200(cub_root, "test", classes=10))) == (599, 579)


@pytest.mark.parametrize("crop", ["none", "box"])
def test_real_cub_samples(cub_root: Path, crop: str) -> None:
    """Keypoints lie in the image, mostly on the bird; the mask fills a fair part of the box."""
    dataset = Cub200(cub_root, "test", crop=crop)  # type: ignore[arg-type]
    seen, on_bird = 0, 0
    for index in range(0, len(dataset), 97):
        sample = dataset[index]
        assert sample.mask is not None
        assert sample.keypoints is not None
        assert sample.box is not None
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
        dataset = Cub200(cub_root, split, classes=[86])
        if name in dataset.names:
            sample = dataset[dataset.names.index(name)]
            assert sample.visible is not None
            assert not sample.visible[dataset.parts.index("breast")]
            return
    pytest.fail(f"{name} is in neither split")
