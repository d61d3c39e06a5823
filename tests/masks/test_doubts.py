"""Masks that look wrong: what is flagged, and that true masks are not; whether masks were drawn or made."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dapl.masks.doubts import MADE_LOG, made_note, mask_doubt


def disc(centre: tuple[int, int], radius: float, size: tuple[int, int] = (120, 160)) -> np.ndarray:
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 <= radius**2


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (disc((60, 80), 30), None),
        (disc((60, 80), 6), "speck"),
        (np.zeros((40, 40), bool), "speck"),
        (~disc((60, 80), 30), "large"),
        (disc((60, 40), 20) | disc((60, 110), 20), "pieces"),
        (disc((60, 40), 20) | disc((60, 110), 5), None),  # a crumb beside the object is no second one
        (np.eye(64, dtype=bool)[:, ::-1] | np.eye(64, k=1, dtype=bool)[:, ::-1], None),  # joined by corners
        (disc((600, 800), 300, (1200, 1600)), None),
    ],
)
def test_what_is_flagged(mask: np.ndarray, kind: str | None) -> None:
    found = mask_doubt(mask)
    assert (None if found is None else found.kind) == kind
    assert found is None or 0 < found.badness <= 1


def test_the_worse_the_worse() -> None:
    specks = [mask_doubt(disc((60, 80), radius)) for radius in (7, 4, 1)]
    badness = [found.badness for found in specks if found is not None]
    assert badness == sorted(badness)
    assert len(set(badness)) == 3


def test_few_of_the_true_masks_of_cub() -> None:
    if "DAPL_CUB" not in os.environ:
        pytest.skip("DAPL_CUB is not set")
    files = sorted(Path(os.environ["DAPL_CUB"], "segmentations").glob("*/*.png"))[::60]
    if not files:
        pytest.skip("this copy of CUB has no segmentations")
    doubts = [mask_doubt(np.asarray(Image.open(file).convert("L")) >= 128) for file in files]
    assert np.mean([found is not None for found in doubts]) < 0.05


@pytest.mark.parametrize("content", [None, "", "no JSON\n", '{"name": "a.png"}\n', '["features"]\n'])
def test_nothing_is_said_where_nothing_is_known(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / MADE_LOG).write_text(content)
    assert made_note(tmp_path) is None


def test_the_methods_are_named_the_most_frequent_first(tmp_path: Path) -> None:
    lines = ['{"method": "grabcut"}'] + ['{"method": "features"}'] * 1200
    (tmp_path / MADE_LOG).write_text("\n".join(lines) + "\n")
    said = str(made_note(tmp_path))
    assert said.startswith("The masks of 1,201 images were made by a program (features and grabcut), not drawn")
