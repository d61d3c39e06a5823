"""Faces: found with their landmarks wherever they are, their hull, and ten parts that do not overlap."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.spatial import ConvexHull
from skimage import data
from skimage.draw import polygon2mask

from dapl.common.errors import DaplError
from dapl.masks.faces import OUTLINES, PARTS, FaceFinder, _windows, face_model, hull_mask, part_centres, part_masks
from dapl.masks.polygons import bounding_box


@pytest.fixture(scope="module")
def finder(face_model: Path) -> Iterator[FaceFinder]:
    with FaceFinder(face_model) as finder:
        yield finder


@pytest.fixture(scope="module")
def astronaut() -> np.ndarray:
    """uint8 512×512×3: one face, looking at the camera."""
    return data.astronaut()


@pytest.fixture(scope="module")
def landmarks(astronaut: np.ndarray, finder: FaceFinder) -> np.ndarray:
    [face] = finder(astronaut)
    return face


def test_one_face(landmarks: np.ndarray) -> None:
    assert landmarks.shape == (468, 2)
    assert landmarks.dtype == np.float32
    x1, y1, x2, y2 = bounding_box(landmarks)
    assert 170 < x1 < 190 < 260 < x2 < 280  # by eye, on the photograph
    assert 60 < y1 < 80 < 165 < y2 < 185


def test_no_face(finder: FaceFinder) -> None:
    assert finder(data.coffee()) == []


def test_the_larger_of_two_comes_first(finder: FaceFinder, astronaut: np.ndarray) -> None:
    near = astronaut[:256, 96:352]
    far = np.asarray(Image.fromarray(near).resize((160, 160)))
    image = np.full((256, 416, 3), 128, np.uint8)
    image[48:208, :160], image[:, 160:] = far, near
    first, second = finder(image)
    assert first.mean(axis=0)[0] > 160 > second.mean(axis=0)[0]
    assert np.ptp(first, axis=0)[0] > 1.4 * np.ptp(second, axis=0)[0]


def test_a_face_too_small_for_mediapipe_is_found_in_a_window(
    finder: FaceFinder, astronaut: np.ndarray, landmarks: np.ndarray
) -> None:
    wide = np.pad(astronaut, ((300, 300), (900, 300), (0, 0)))
    assert finder._detect(wide) == []
    [face] = finder(wide)
    assert np.abs(face - (900, 300) - landmarks).max() < 4


@pytest.mark.parametrize(("height", "width"), [(512, 1024), (1080, 1920), (640, 300), (256, 256)])
def test_windows_cover_the_image(height: int, width: int) -> None:
    for windows in _windows(height, width):
        covered = np.zeros((height, width), bool)
        for top, left, side in windows:
            assert top + side <= height
            assert left + side <= width
            covered[top : top + side, left : left + side] = True
        assert covered.all()


def test_small_images_have_no_windows() -> None:
    assert list(_windows(128, 128)) == []
    assert len(list(_windows(128, 200))) == 1  # half of 128 pixels is what MediaPipe sees anyway


def test_the_model_comes_from_the_flag_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flag.task", "environment.task"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setenv("DAPL_FACE_MODEL", str(tmp_path / "environment.task"))
    assert face_model(tmp_path / "flag.task").name == "flag.task"
    assert face_model().name == "environment.task"


def test_without_a_model_the_message_says_where_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAPL_FACE_MODEL", raising=False)
    published = r"face_landmarker\.task from MediaPipe's Face Landmarker model page .* --face-model .* DAPL_FACE_MODEL"
    with pytest.raises(DaplError, match=published):
        face_model()
    with pytest.raises(DaplError, match=rf"nowhere\.task: no such file.*{published}"):
        face_model(tmp_path / "nowhere.task")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    pytest.importorskip("mediapipe")
    (tmp_path / "face_landmarker.task").write_bytes(b"<html>not found</html>")
    with pytest.raises(DaplError, match=r"face_landmarker\.task: not a model of MediaPipe's Face Landmarker"):
        FaceFinder(tmp_path / "face_landmarker.task")


def test_without_mediapipe_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    with pytest.raises(DaplError, match=r"pip install 'dapl\[faces\]'"):
        FaceFinder(tmp_path / "any.task")


def test_the_finder_keeps_standard_error_free(face_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with FaceFinder(face_model) as finder:
        finder(data.astronaut())
    assert capfd.readouterr().err == ""


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
