"""One video: which frames are read of it, what is cut out of them, and where landmarks and masks go."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dapl.common.errors import DaplError
from dapl.masks.faces import hull_mask
from dapl.masks.refine import Prompt
from dapl.prepare.faceforensics_video import (
    Square,
    VideoError,
    cut_out,
    face_mask,
    landmarks_in,
    sampled_frames,
    square_around,
    wanted_frames,
)

MESH = np.random.default_rng(0).uniform(0, 1, size=(468, 2)).astype(np.float32)
"""Landmarks of a face as tall as wide; what the landmarks are called does not matter here."""


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

    class Straying:
        name = "sam"

        def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
            assert prompt.box == pytest.approx((10, 10, 50, 50), abs=0.5)
            return ~prompt.mask

    found = face_mask(np.zeros((64, 64, 3), np.uint8), points, Straying())
    assert (found.method, found.agreement) == ("hull", 0)
    np.testing.assert_array_equal(found.mask, hull_mask(points, (64, 64)))


def test_a_refinement_that_agrees_is_taken() -> None:
    points = MESH * 40 + 10

    class Smaller:
        name = "grabcut"

        def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
            smaller = prompt.mask.copy()
            smaller[:20] = False
            return smaller

    found = face_mask(np.zeros((64, 64, 3), np.uint8), points, Smaller())
    assert found.method == "grabcut"
    assert found.agreement == pytest.approx(found.mask.sum() / hull_mask(points, (64, 64)).sum())
    assert not found.mask[:20].any()


LENGTH = 40


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory, write_video: Callable[..., None]) -> Path:
    """Each frame has its own brightness, and noise, so that the file is not tiny."""
    path = tmp_path_factory.mktemp("video") / "grey.mp4"
    noise = np.random.default_rng(0).integers(-20, 20, (LENGTH, 64, 96, 3))
    write_video(path, [(40 + 4 * i + noise[i]).clip(0, 255).astype(np.uint8) for i in range(LENGTH)], rate=20)
    return path


@pytest.mark.parametrize(("total", "count"), [(100, 4), (7, 7), (500, 83), (301, 10), (5, 1)])
def test_frames_are_evenly_spaced(total: int, count: int) -> None:
    wanted = wanted_frames(total, count)
    assert len(wanted) == count
    gaps = np.diff(wanted)
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1
    assert abs(wanted[0] - (total - 1 - wanted[-1])) <= 1


def test_the_frames_asked_for_with_their_times(video: Path) -> None:
    frames = list(sampled_frames(video, 4))
    assert [frame.number for frame in frames] == [5, 15, 25, 35]
    for frame in frames:
        assert frame.time == pytest.approx(frame.number / 20)
        assert frame.image.shape == (64, 96, 3)
        assert frame.image.dtype == np.uint8
        assert abs(frame.image.mean() - (40 + 4 * frame.number)) < 3
        assert frame.left_out is None


def test_a_short_video_gives_all_it_has(video: Path) -> None:
    assert [frame.number for frame in sampled_frames(video, 1000)] == list(range(LENGTH))


def test_a_video_cut_short_gives_what_is_left_of_it(video: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(video.read_bytes()[: video.stat().st_size * 6 // 10])
    frames = list(sampled_frames(cut, 10))
    good = [frame for frame in frames if frame.image is not None]
    bad = [frame for frame in frames if frame.image is None]
    assert good
    assert bad
    assert [frame.number for frame in frames] == wanted_frames(LENGTH, 10)
    assert all("damaged or truncated video: frame" in (frame.left_out or "") for frame in bad)


@pytest.mark.parametrize("content", [b"", b"no video"], ids=["empty", "text"])
def test_a_file_that_is_no_video(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(content)
    with pytest.raises(VideoError, match="not a video that can be read, or truncated"):
        list(sampled_frames(broken, 3))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_would_be_waited_for_is_no_video(tmp_path: Path, kind: str) -> None:
    broken = tmp_path / "broken.mp4"
    if kind == "pipe":
        os.mkfifo(broken)
    else:
        broken.symlink_to("/dev/zero")
    with pytest.raises(VideoError, match="is a pipe or device and not a file"):
        list(sampled_frames(broken, 3))


@pytest.mark.parametrize("length", [100, 400, 900])
def test_a_video_cut_in_its_index(video: Path, tmp_path: Path, length: int) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(video.read_bytes()[:length])
    with pytest.raises(VideoError, match="truncated"):
        list(sampled_frames(broken, 3))


def test_a_file_without_images(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 44100
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(VideoError, match="has no video stream"):
        list(sampled_frames(path, 3))


def test_without_pyav_the_message_names_the_extra(video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DaplError, match=r"pip install 'dapl\[faces\]'"):
        list(sampled_frames(video, 3))


TURNS = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
"""Degrees clockwise that a player turns the video by, and the upper left of the display matrix."""


@pytest.mark.parametrize("degrees", TURNS)
def test_a_video_that_was_filmed_on_its_side_is_turned_upright(degrees: int, tmp_path: Path) -> None:
    """The upright image is red above and blue below; it is stored turned, and its header says how to turn it back."""
    av = pytest.importorskip("av", reason="pip install 'dapl[faces]'")
    upright = np.zeros((96, 64, 3), np.uint8)
    upright[:48, :, 0], upright[48:, :, 2] = 255, 255
    stored = np.ascontiguousarray(np.rot90(upright, degrees // 90))
    file = tmp_path / "filmed.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.height, stream.width = stored.shape[:2]
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(stored, format="rgb24")))
        container.mux(stream.encode())
    content = bytearray(file.read_bytes())
    matrix = content.index(b"tkhd") + 44  # after version, times, track, duration, layer and volume
    a, b, c, d = (value << 16 for value in TURNS[degrees])
    content[matrix : matrix + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    file.write_bytes(content)
    for frame in sampled_frames(file, 2):
        assert frame.image is not None
        assert frame.image.shape == upright.shape
        assert np.abs(frame.image[8:40].mean((0, 1)) - (255, 0, 0)).max() < 30
        assert np.abs(frame.image[56:88].mean((0, 1)) - (0, 0, 255)).max() < 30
