"""Toy birds as a data set, in memory and written to files."""

import csv
import hashlib
import pickle
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from dapl.common.errors import DaplError
from dapl.data.sample import Dataset, Sample, Subset
from dapl.data.toybirds import PARTS, ToyBirds, write


def digest(sample: Sample) -> str:
    tensors = (sample.image, sample.mask, sample.part_masks, sample.keypoints, sample.visible, sample.box)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def digests(birds: ToyBirds) -> list[str]:
    return [digest(birds[index]) for index in range(len(birds))]


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    birds = ToyBirds(classes=12, images_per_class=6, size=96, seed=1)
    return [birds[index] for index in range(len(birds))]


def test_meets_the_contract():
    birds = ToyBirds(classes=3, images_per_class=2, size=48)
    assert isinstance(birds, Dataset)
    assert len(birds) == len(birds.labels) == len(birds.names) == 6
    assert birds.labels == [0, 0, 1, 1, 2, 2]
    assert birds.names[3] == "train/001/0001"
    assert len(set(birds.names)) == 6
    assert len(set(birds.classes)) == 3
    assert birds.parts == list(PARTS)
    assert birds.has_masks
    assert [birds[index].label for index in range(6)] == birds.labels
    assert [birds[index].name for index in range(6)] == birds.names
    assert digest(birds[-1]) == digest(birds[5])
    with pytest.raises(IndexError):
        birds[6]


def test_shapes_and_types(samples):
    sample = samples[0]
    assert (sample.image.dtype, sample.image.shape) == (torch.uint8, (3, 96, 96))
    assert (sample.mask.dtype, sample.mask.shape) == (torch.uint8, (96, 96))
    assert (sample.part_masks.dtype, sample.part_masks.shape) == (torch.uint8, (len(PARTS), 96, 96))
    assert (sample.keypoints.dtype, sample.keypoints.shape) == (torch.float32, (len(PARTS), 2))
    assert (sample.visible.dtype, sample.visible.shape) == (torch.bool, (len(PARTS),))
    assert (sample.box.dtype, sample.box.shape) == (torch.float32, (1, 4))
    assert sample.keypoints.canvas_size == sample.box.canvas_size == (96, 96)


def test_parts_are_disjoint_and_make_up_the_foreground(samples):
    for sample in samples:
        assert torch.equal(sample.part_masks.sum(dim=0), sample.mask.long())  # a sum of 1 or 0: no overlap


def test_keypoints_lie_in_their_parts_and_unseen_parts_are_empty(samples):
    for sample in samples:
        for (x, y), seen, mask in zip(sample.keypoints.long().tolist(), sample.visible, sample.part_masks, strict=True):
            assert bool(mask.any()) == bool(seen)
            if seen:
                assert mask[y, x] == 1
            else:
                assert (x, y) == (0, 0)


def test_most_parts_are_seen_and_some_are_hidden(samples):
    visible = torch.stack([sample.visible for sample in samples]).float()
    assert visible.mean() > 0.9
    assert visible.mean(dim=0).min() > 0.7
    assert visible.min() == 0


def test_the_box_is_that_of_the_mask(samples):
    for sample in samples:
        left, top, right, bottom = sample.box[0].int().tolist()
        mask = sample.mask.bool()
        assert mask[top:bottom, left:right].sum() == mask.sum()
        assert mask[top].any()
        assert mask[bottom - 1].any()
        assert mask[:, left].any()
        assert mask[:, right - 1].any()


def test_same_arguments_same_images_in_any_order():
    birds = ToyBirds(classes=3, images_per_class=2, size=48, seed=5, background_cue=0.5)
    again = ToyBirds(classes=3, images_per_class=2, size=48, seed=5, background_cue=0.5)
    backwards = [digest(again[index]) for index in reversed(range(6))][::-1]
    assert digests(birds) == backwards == digests(birds) == digests(pickle.loads(pickle.dumps(birds)))


def test_same_images_in_another_process():
    program = (
        "import hashlib; from dapl.data.toybirds import ToyBirds; birds = ToyBirds(2, 2, 40, seed=9); "
        "print(*(hashlib.sha256(birds[i].image.numpy().tobytes()).hexdigest() for i in range(4)))"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    birds = ToyBirds(2, 2, 40, seed=9)
    assert there == [hashlib.sha256(birds[i].image.numpy().tobytes()).hexdigest() for i in range(4)]


def test_no_global_generator_is_read_or_moved():
    def draw() -> str:
        return digest(ToyBirds(2, 1, 40)[1])

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    first = draw()
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    assert draw() == first


def test_more_classes_and_more_images_leave_the_others_as_they_are():
    few, many = ToyBirds(2, 2, 40), ToyBirds(5, 3, 40)
    assert many.classes[:2] == few.classes
    assert digest(few[3]) == digest(many[4])  # class 1, number 1


def test_splits_and_seeds_give_other_images_of_the_same_and_of_other_classes():
    train, validation, test = (ToyBirds(2, 3, 40, split=split) for split in ("train", "validation", "test"))
    assert train.classes == validation.classes == test.classes
    assert len({*digests(train), *digests(validation), *digests(test)}) == 18
    assert ToyBirds(2, 3, 40, seed=1).classes != train.classes


def test_the_cue_changes_the_background_and_leaves_the_bird():
    without, with_cue = ToyBirds(4, 2, 64, background_cue=0.0), ToyBirds(4, 2, 64, background_cue=1.0)
    for index in range(8):
        first, second = without[index], with_cue[index]
        assert torch.equal(first.part_masks, second.part_masks)
        inside = first.mask.bool() & ~_edge(first.mask.bool())
        changed = (first.image[:, inside] != second.image[:, inside]).any(dim=0)
        assert changed.float().mean() < 0.01  # gaps between feathers and twigs thinner than a pixel
        assert not torch.equal(first.image, second.image)


def _edge(mask: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(mask.float()[None, None], (1, 1, 1, 1))
    return -torch.nn.functional.max_pool2d(-padded, 3, stride=1)[0, 0] < 1


@pytest.mark.parametrize("size", [(40, 64), (90, 33), (32, 32)])
def test_any_size(size):
    sample = ToyBirds(2, 1, size)[0]
    assert sample.image.shape == (3, *size)
    assert sample.part_masks.shape == (len(PARTS), *size)
    assert sample.visible.sum() > 8


def test_the_fingerprint_tells_all_arguments_apart():
    arguments = [
        {},
        {"classes": 3},
        {"images_per_class": 3},
        {"size": 40},
        {"size": (40, 41)},
        {"seed": 1},
        {"background_cue": 0.25},
        {"split": "test"},
    ]
    assert len({ToyBirds(**given).fingerprint for given in arguments}) == len(arguments)
    assert ToyBirds().fingerprint == ToyBirds().fingerprint


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"classes": 0}, "classes is 0; give at least 1."),
        ({"images_per_class": 0}, "images_per_class is 0; give at least 1."),
        ({"size": 31}, "size is 31×31 pixels; give at least 32 for each side."),
        ({"size": (64, 8)}, "size is 64×8 pixels; give at least 32 for each side."),
        ({"seed": -1}, "seed is -1; give 0 or a positive whole number."),
        ({"background_cue": 1.5}, "background_cue is 1.5; give a probability from 0 to 1."),
        ({"background_cue": float("nan")}, "background_cue is nan; give a probability from 0 to 1."),
        ({"split": "dev"}, "split is 'dev'; give one of train, validation, test."),
    ],
)
def test_bad_arguments_say_what_to_do(argument, message):
    with pytest.raises(DaplError, match=re.escape(message)):
        ToyBirds(**argument)


def read(folder, path):
    return np.asarray(Image.open(folder / path))


def test_what_is_written_is_what_was_drawn(tmp_path):
    birds = ToyBirds(classes=2, images_per_class=2, size=(40, 48))
    write(birds, tmp_path)
    with (tmp_path / "keypoints.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(birds) * len(birds.parts)
    for index in range(len(birds)):
        sample = birds[index]
        path = f"train/{sample.label:03}.{birds.classes[sample.label].replace(' ', '_')}/{index % 2:04}.png"
        assert np.array_equal(read(tmp_path, path), sample.image.permute(1, 2, 0).numpy())
        assert np.array_equal(read(tmp_path / "masks", path), sample.mask.numpy() * 255)
        parts = read(tmp_path / "parts", path)
        for number, mask in enumerate(sample.part_masks.numpy(), start=1):
            assert np.array_equal(parts == number, mask == 1)
        mine = [row for row in rows if row["image"] == path]
        assert [row["part"] for row in mine] == birds.parts
        assert [[float(row["x"]), float(row["y"])] for row in mine] == sample.keypoints.tolist()
        assert [row["visible"] == "1" for row in mine] == sample.visible.tolist()


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_splits_share_a_folder_and_writing_is_deterministic(tmp_path):
    train, test = ToyBirds(2, 2, 32), ToyBirds(2, 1, 32, split="test")
    write(train, tmp_path / "a")
    write(test, tmp_path / "a")
    write(test, tmp_path / "b")
    write(train, tmp_path / "b")
    write(Subset(train, [1, 2]), tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(contents(tmp_path / "a")) == 3 * 6 + 1
