import csv

import numpy as np
from PIL import Image

from dapl.data.sample import Subset
from dapl.data.toybirds import ToyBirds, write


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
