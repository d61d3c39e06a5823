"""Toybirds as files, for programs that read folders of images."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dapl.data.sample import Dataset, Sample
from dapl.files import replacing

_COLUMNS = ("image", "part", "x", "y", "visible")
_PART_COLOURS = (
    (0, 0, 0), (230, 60, 60), (250, 250, 250), (250, 220, 60), (70, 150, 220), (240, 140, 60), (150, 70, 190),
    (80, 220, 220), (230, 90, 210), (80, 190, 100), (170, 120, 60), (70, 70, 170), (150, 150, 60),
)  # fmt: skip


def write(dataset: Dataset, folder: str | Path) -> None:
    """Write a `ToyBirds` (or a subset of one) below ``folder``; several splits may share it.

    - ``<split>/<class>/<number>.png``: the picture, the class folder named ``003.Slate-crowned_Robin``;
    - ``masks/<split>/<class>/<number>.png``: 255 on the bird;
    - ``parts/<split>/<class>/<number>.png``: indexed, k + 1 where part k of ``dataset.parts`` is seen;
    - ``keypoints.csv``: one row a picture and part, for all splits in the folder.
    """
    folder = Path(folder)
    rows: list[tuple[str, ...]] = []
    for index in range(len(dataset)):
        sample = dataset[index]
        split, number_of_class, number = sample.name.split("/")
        class_folder = f"{number_of_class}.{dataset.classes[sample.label].replace(' ', '_')}"
        path = f"{split}/{class_folder}/{number}.png"
        _write_pictures(sample, folder, path)
        rows += _keypoint_rows(sample, path, dataset.parts)
    _write_keypoints(folder / "keypoints.csv", rows)


def _write_pictures(sample: Sample, folder: Path, path: str) -> None:
    assert sample.mask is not None
    assert sample.part_masks is not None
    _save(Image.fromarray(sample.image.permute(1, 2, 0).numpy()), folder / path)
    _save(Image.fromarray(sample.mask.numpy() * np.uint8(255)), folder / "masks" / path)
    numbers = np.arange(1, len(sample.part_masks) + 1, dtype=np.uint8)[:, None, None]
    parts = Image.fromarray((sample.part_masks.numpy() * numbers).max(axis=0))
    parts.putpalette([level for colour in _PART_COLOURS for level in colour])
    _save(parts, folder / "parts" / path)


def _save(picture: Image.Image, path: Path) -> None:
    with replacing(path) as temporary:
        picture.save(temporary, format="PNG")


def _keypoint_rows(sample: Sample, path: str, parts: Sequence[str]) -> list[tuple[str, ...]]:
    assert sample.keypoints is not None
    assert sample.visible is not None
    points, visible = sample.keypoints.tolist(), sample.visible.int().tolist()
    return [(path, part, str(x), str(y), str(v)) for part, (x, y), v in zip(parts, points, visible, strict=True)]


def _write_keypoints(path: Path, rows: list[tuple[str, ...]]) -> None:
    """Rows of other pictures that are in the file already stay, so that splits can be written one after the other."""
    written = {row[0] for row in rows}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            others = [tuple(row) for row in csv.reader(file) if row]
        rows = rows + [row for row in others if row != _COLUMNS and row[0] not in written]
    rows = sorted(rows, key=lambda row: row[0])  # stable: the parts of a picture keep their order
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(rows)
