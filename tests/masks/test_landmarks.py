"""MediaPipe itself on a real photograph."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage import data

from dapl.common.errors import DaplError
from dapl.masks.faces import FaceFinder, _windows, face_model
from dapl.masks.polygons import bounding_box


@pytest.fixture(scope="module")
def finder(face_model: Path) -> Iterator[FaceFinder]:
    with FaceFinder(face_model) as finder:
        yield finder


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
