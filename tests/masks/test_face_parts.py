"""The hull and the parts on a real face."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import ConvexHull
from skimage.draw import polygon2mask

from dapl.masks.faces import OUTLINES, PARTS, hull_mask, part_centres, part_masks

SIZE = (512, 512)


@pytest.fixture(scope="module")
def parts(landmarks: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(PARTS, part_masks(landmarks, SIZE), strict=True))


@pytest.fixture(scope="module")
def middle(parts: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """(x, y) of the middle of each part's pixels."""
    return {name: (np.nonzero(mask)[1].mean(), np.nonzero(mask)[0].mean()) for name, mask in parts.items()}


def test_the_hull_is_that_of_other_libraries(landmarks: np.ndarray) -> None:
    corners = landmarks[ConvexHull(landmarks).vertices]
    other = polygon2mask(SIZE, corners[:, ::-1] - 0.5)  # (row, column) of pixel centres
    mine = hull_mask(landmarks, SIZE)
    assert (mine & other).sum() / (mine | other).sum() >= 0.99
    assert abs(mine.sum() - ConvexHull(landmarks).volume) < 0.01 * mine.sum()


def test_parts_lie_inside_the_hull_and_apart(parts: dict[str, np.ndarray], landmarks: np.ndarray) -> None:
    stacked = np.stack(list(parts.values()))
    assert not (stacked & ~hull_mask(landmarks, SIZE)).any()
    assert stacked.sum(axis=0).max() == 1
    assert all(mask.any() for mask in stacked)


def test_the_outlines_fold_nowhere(landmarks: np.ndarray, parts: dict[str, np.ndarray]) -> None:
    """A landmark out of order would cross the outline over itself: the area by the shoelace formula would shrink."""
    for name, outline in OUTLINES.items():
        x, y = landmarks[list(outline)].T.astype(np.float64)
        area = abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2
        assert abs(parts[name].sum() - area) < 0.05 * area + 10, name


def test_parts_are_in_the_order_of_a_face(middle: dict[str, tuple[float, float]]) -> None:
    for side in ("left", "right"):
        down = ["forehead", f"{side} brow", f"{side} eye", "nose", "mouth", "chin"]
        heights = [middle[name][1] for name in down]
        assert heights == sorted(heights)
        assert middle[f"{side} eye"][1] < middle[f"{side} cheek"][1] < middle["mouth"][1]
    for pair in ("eye", "brow", "cheek"):
        assert middle[f"left {pair}"][0] < middle["nose"][0] < middle[f"right {pair}"][0]


def test_the_eyes_are_where_the_photograph_has_them(parts: dict[str, np.ndarray], astronaut: np.ndarray) -> None:
    """An eye is darker than the cheek below it, and the mouth is redder: read off the pixels, not off the mesh."""
    grey = astronaut.mean(axis=-1)
    redness = astronaut[..., 0].astype(float) - astronaut[..., 1]
    for side in ("left", "right"):
        assert grey[parts[f"{side} eye"]].mean() < grey[parts[f"{side} cheek"]].mean() - 20
    assert redness[parts["mouth"]].mean() > redness[parts["chin"]].mean()


def test_centres_lie_in_their_part(parts: dict[str, np.ndarray], landmarks: np.ndarray) -> None:
    for name, (x, y) in zip(PARTS, part_centres(landmarks), strict=True):
        if "brow" not in name and name != "forehead":  # these two are bent, their middle may lie beside them
            assert parts[name][int(y), int(x)], name


def test_a_mirrored_face_swaps_left_and_right(landmarks: np.ndarray, middle: dict[str, tuple[float, float]]) -> None:
    """The names belong to landmarks, so a mirrored face carries them to the other side, as the transforms do."""
    mirrored = part_masks(np.array([SIZE[1], 0]) + landmarks * (-1, 1), SIZE)
    left = mirrored[PARTS.index("left eye")]
    assert abs(np.nonzero(left)[1].mean() - (SIZE[1] - 1 - middle["left eye"][0])) < 1


def test_a_face_beyond_the_frame_is_cut(landmarks: np.ndarray) -> None:
    half = part_masks(landmarks - (225, 0), (512, 60))
    assert not half[PARTS.index("left eye")].any()
    assert half[PARTS.index("right eye")].any()
