"""Frames out of real video files, whole and broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dapl.common.errors import DaplError
from dapl.prepare.faceforensics_video import VideoError, sampled_frames, wanted_frames

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
        assert frame.image is not None
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
