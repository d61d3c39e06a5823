"""Cutting out: what is cut, where its landmarks go, and what happens at the edge of a frame."""

from __future__ import annotations

import numpy as np
import pytest

from dapl.masks.faces import hull_mask
from dapl.masks.refine import Prompt
from dapl.prepare.faceforensics_video import Square, cut_out, face_mask, landmarks_in, square_around

MESH = np.random.default_rng(0).uniform(0, 1, size=(468, 2)).astype(np.float32)
"""Of a face as tall as wide; what the landmarks are called does not matter here."""


def test_the_square_has_the_margin_on_each_side() -> None:
    points = np.array([[100.0, 50.0], [140.0, 130.0]])
    assert square_around(points, 0.25, (300, 300)) == Square(60, 30, 120)
    assert square_around(points, 0.0, (300, 300)) == Square(80, 50, 80)


@pytest.mark.parametrize(("shift", "left", "top"), [((-100, 0), 0, 30), ((170, 0), 180, 30), ((0, 200), 60, 180)])
def test_the_square_is_moved_into_the_frame(shift: tuple[int, int], left: int, top: int) -> None:
    points = np.array([[100.0, 50.0], [140.0, 130.0]]) + shift
    assert square_around(points, 0.25, (300, 300)) == Square(left, top, 120)


def test_landmarks_stay_on_their_pixels() -> None:
    image = np.zeros((200, 300, 3), np.uint8)
    image[80:84, 150:154] = 255
    square = Square(100, 40, 112)
    face = cut_out(image, square, 224)
    [point] = landmarks_in(np.array([[152.0, 82.0]]), square, 224)
    rows, columns = np.nonzero(face[..., 0] > 127)
    assert face.shape == (224, 224, 3)
    assert point == pytest.approx([columns.mean() + 0.5, rows.mean() + 0.5], abs=0.51)


def test_a_square_larger_than_the_frame_goes_on_with_its_edge() -> None:
    image = np.full((60, 100, 3), 200, np.uint8)
    square = square_around(np.array([[20.0, 5.0], [80.0, 55.0]]), 0.5, image.shape[:2])
    assert square == Square(-10, -30, 120)
    assert (cut_out(image, square, 64) == 200).all()


def test_a_refinement_that_strays_gives_way_to_the_hull() -> None:
    points = MESH * 40 + 10
    hull = hull_mask(points, (64, 64))

    class Straying:
        name = "sam"

        def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
            assert prompt.mask is not None
            assert prompt.box == pytest.approx((10, 10, 50, 50), abs=0.5)
            return ~prompt.mask

    found = face_mask(np.zeros((64, 64, 3), np.uint8), points, Straying())
    assert (found.method, found.agreement) == ("hull", 0)
    np.testing.assert_array_equal(found.mask, hull)


def test_a_refinement_that_agrees_is_taken() -> None:
    points = MESH * 40 + 10

    class Smaller:
        name = "grabcut"

        def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
            assert prompt.mask is not None
            smaller = prompt.mask.copy()
            smaller[:20] = False
            return smaller

    found = face_mask(np.zeros((64, 64, 3), np.uint8), points, Smaller())
    assert found.method == "grabcut"
    assert found.agreement == pytest.approx(found.mask.sum() / hull_mask(points, (64, 64)).sum())
    assert not found.mask[:20].any()
