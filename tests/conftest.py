"""What tests share: the real CUB where it is given, and a tiny one in the same layout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

TINY_CLASSES = ("001.Red_Finch", "002.Green_Finch", "003.Blue_Owl", "004.Grey_Owl")
TINY_COLOURS = ((200, 40, 40), (40, 170, 60), (50, 80, 210), (120, 120, 120))
TINY_PARTS = ("beak", "left eye", "belly", "tail")
TINY_IMAGES = 6
"""A class; the first four are for training."""


@pytest.fixture(scope="session")
def cub_root() -> Path:
    """The folder of the real CUB-200-2011, which is not in the repository."""
    root = os.environ.get("DAPL_CUB")
    if not root:
        pytest.skip("set DAPL_CUB to the folder CUB_200_2011 to run the tests on the real data")
    return Path(root)


@pytest.fixture
def tiny_cub(tmp_path: Path) -> Path:
    """4 classes × 6 drawn birds in the published layout, made anew for each test, so that a test may break it."""
    root = tmp_path / "CUB_200_2011"
    (root / "parts").mkdir(parents=True)
    tables: dict[str, list[str]] = {
        "classes.txt": [f"{number} {name}" for number, name in enumerate(TINY_CLASSES, 1)],
        "parts/parts.txt": [f"{number} {name}" for number, name in enumerate(TINY_PARTS, 1)],
    }
    generator = np.random.default_rng(0)
    for label, name in enumerate(TINY_CLASSES):
        (root / "images" / name).mkdir(parents=True)
        (root / "segmentations" / name).mkdir(parents=True)
        for number in range(TINY_IMAGES):
            image_id = label * TINY_IMAGES + number + 1
            path = f"{name}/Bird_{number:04}_{image_id}.jpg"
            box, points = _draw_bird(root, path, TINY_COLOURS[label], generator)
            x1, y1, x2, y2 = box
            rows = {
                "images.txt": [f"{image_id} {path}"],
                "image_class_labels.txt": [f"{image_id} {label + 1}"],
                "train_test_split.txt": [f"{image_id} {int(number < 4)}"],
                "bounding_boxes.txt": [f"{image_id} {x1:.1f} {y1:.1f} {x2 - x1:.1f} {y2 - y1:.1f}"],
                "parts/part_locs.txt": [
                    # the tail of every third bird is hidden
                    f"{image_id} {part} 0.0 0.0 0" if part == 4 and number % 3 == 0 else f"{image_id} {part} {x} {y} 1"
                    for part, (x, y) in enumerate(points, 1)
                ],
            }
            for file, lines in rows.items():
                tables.setdefault(file, []).extend(lines)
    for file, lines in tables.items():
        (root / file).write_text("\n".join(lines) + "\n")
    return root


def _draw_bird(
    root: Path, path: str, colour: tuple[int, int, int], generator: np.random.Generator
) -> tuple[tuple[float, float, float, float], list[tuple[float, float]]]:
    """A body, a head and a beak on noise; returns the box (XYXY) and a point for each of TINY_PARTS."""
    width, height = (int(side) for side in generator.integers(60, 100, size=2))
    noise = generator.integers(150, 255, size=(height, width, 3), dtype=np.uint8)
    picture, mask = Image.fromarray(noise), Image.new("L", (width, height), 0)
    x, y, r = width * 0.5, height * 0.55, min(width, height) * 0.2
    shapes = (
        ("ellipse", (x - 1.5 * r, y - r, x + r, y + r), colour, 255),
        ("ellipse", (x + 0.4 * r, y - 1.6 * r, x + 1.6 * r, y - 0.4 * r), colour, 204),
        ("rectangle", (x + 1.5 * r, y - 1.1 * r, x + 2.1 * r, y - 0.9 * r), (240, 180, 0), 153),
    )
    for shape, corners, ink, graded in shapes:
        getattr(ImageDraw.Draw(picture), shape)(corners, fill=ink)
        getattr(ImageDraw.Draw(mask), shape)(corners, fill=graded)
    picture.save(root / "images" / path, quality=95)
    mask.save(root / "segmentations" / Path(path).with_suffix(".png"))
    points = [(x + 1.8 * r, y - r), (x + 1.1 * r, y - 1.1 * r), (x - 0.2 * r, y), (x - 1.3 * r, y)]
    return (x - 1.5 * r, y - 1.6 * r, x + 2.1 * r, y + r), [(round(a, 1), round(b, 1)) for a, b in points]
