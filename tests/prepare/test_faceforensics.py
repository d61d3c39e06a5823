"""`dapl prepare faceforensics` on videos of a real face, with the real MediaPipe: whole, broken, killed, resumed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.spatial import ConvexHull
from skimage import data
from skimage.draw import polygon2mask

from dapl.cli import main

REAL = "original_sequences/youtube/c23/videos"
FAKE = "manipulated_sequences/Deepfakes/c23/videos"
OPTIONS = ("--frames", "2", "--size", "64", "--refine", "none", "--quiet")


@pytest.fixture(autouse=True)
def _model(face_model: Path) -> None:
    """Without it there is nothing to test."""


@pytest.fixture
def root(face_videos: Path, tmp_path: Path) -> Path:
    """The videos of real and Deepfakes, one's own to break."""
    copy = tmp_path / "FaceForensics++"
    for folder in ("splits", REAL, FAKE):
        shutil.copytree(face_videos / folder, copy / folder)
    return copy


@pytest.fixture(scope="module")
def small(face_videos: Path, face_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real and Deepfakes prepared with `OPTIONS`; copy it before you change it."""
    out = tmp_path_factory.mktemp("small") / "out"
    assert prepare(face_videos, out, "--face-model", str(face_model)) == 0
    return out


@pytest.fixture
def done(small: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(small, tmp_path / "done"))


def prepare(root: Path, out: Path, *options: str) -> int:
    return main(["prepare", "faceforensics", str(root), str(out), "--methods", "Deepfakes", *OPTIONS, *options])


def manifest(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]


def content(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in (".lock", "prepare.json")
    }


def test_all_five_classes(face_videos: Path, prepared_faces: tuple[Path, str]) -> None:
    out, said = prepared_faces
    lines = manifest(out)
    assert Counter((line["split"], line["label"]) for line in lines) == {
        (split, label): 6
        for split in ("train", "val", "test")
        for label in ("real", "Deepfakes", "Face2Face", "FaceSwap", "NeuralTextures")
    }
    assert "NeuralTextures" in said
    assert str(out / "manifest.jsonl") in said
    assert "left out" not in said
    for line in lines:
        assert line["face"] is True
        assert line["faces"] == 1
        assert line["left_out"] is None
        assert line["method"] == "grabcut"
        assert line["agreement"] > 0.7
        assert (face_videos / line["source"]).is_file()
        assert line["time"] == pytest.approx(line["frame"] / 10)
        mask = np.asarray(Image.open(out / line["file"].replace(".png", "-mask.png")))
        assert set(np.unique(mask)) == {0, 255}
        assert line["mask_area"] == pytest.approx((mask > 0).mean(), abs=1e-4)
        assert Image.open(out / line["file"]).size == (96, 96)


def test_no_identity_is_in_two_splits(prepared_faces: tuple[Path, str]) -> None:
    seen: dict[str, set[str]] = {}
    for line in manifest(prepared_faces[0]):
        for one in Path(line["source"]).stem.split("_"):
            seen.setdefault(one, set()).add(line["split"])
    assert len(seen) == 6
    assert all(len(splits) == 1 for splits in seen.values())


def test_the_hull_mask_is_that_of_the_saved_landmarks(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prepare(root, out, "--size", "224") == 0
    for line in manifest(out):
        folder = (out / line["file"]).parent
        points = np.load(folder / "landmarks.npy")[line["row"]]
        other = polygon2mask((224, 224), points[ConvexHull(points).vertices][:, ::-1] - 0.5)
        mask = np.asarray(Image.open(out / line["file"].replace(".png", "-mask.png"))) > 0
        assert (mask & other).sum() / (mask | other).sum() >= 0.98


def test_the_cut_out_is_what_the_manifest_says(face_videos: Path, prepared_faces: tuple[Path, str]) -> None:
    """The crop's place in the frame, and the frame in the video."""
    import av

    out = prepared_faces[0]
    for line in manifest(out)[::20]:
        with av.open(str(face_videos / line["source"])) as container:
            frame = list(container.decode(video=0))[line["frame"]].to_ndarray(format="rgb24")
        left, top, side = line["crop"]
        expected = np.asarray(Image.fromarray(frame[top : top + side, left : left + side]).resize((96, 96)))
        found = np.asarray(Image.open(out / line["file"]))
        assert np.abs(found.astype(int) - expected).mean() < 1


def test_what_cannot_be_used_is_left_out_and_told(
    root: Path, tmp_path: Path, write_video: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    truncated, empty = root / REAL / "000.mp4", root / REAL / "001.mp4"
    truncated.write_bytes(truncated.read_bytes()[: truncated.stat().st_size * 6 // 10])
    empty.write_bytes(b"")
    cup = data.coffee()[:240, :240]
    write_video(root / REAL / "003.mp4", [cup] * 4)
    (root / FAKE / "004_005.mp4").unlink()
    (root / FAKE / "000_004.mp4").write_bytes(b"")
    out = tmp_path / "out"
    assert prepare(root, out, "--frames", "6") == 1

    why = {}
    for line in manifest(out):
        if line["left_out"] is not None:
            why.setdefault(Path(line["source"]).name, []).append(line)
    assert set(why) == {"000.mp4", "001.mp4", "003.mp4", "004_005.mp4", "000_004.mp4"}
    assert all("damaged or truncated video" in line["left_out"] for line in why["000.mp4"])
    assert 0 < len(why["000.mp4"]) < 6
    assert [line["frame"] for line in why["001.mp4"]] == [None]
    assert "not a video that can be read" in why["001.mp4"][0]["left_out"]
    assert [(line["face"], line["faces"], line["left_out"]) for line in why["003.mp4"]] == [
        (False, 0, "no face found")
    ] * 4
    assert why["004_005.mp4"][0]["left_out"] == "test.json names this video, and it is not there"
    assert why["000_004.mp4"][0]["left_out"] == "no split names this video"
    kept = Counter(Path(line["source"]).name for line in manifest(out) if line["file"])
    assert kept["000.mp4"] == 6 - len(why["000.mp4"])
    assert sum(kept[name] == 6 for name in kept) == 6 - 3 + 6 - 1  # real and Deepfakes without the broken ones

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 5
    for name in why:
        assert sum(line.startswith("left out: ") and f"/{name}: " in line for line in said) == 1
    assert any("003.mp4: 4 of 4 frames: no face found" in line for line in said)


def test_of_two_faces_the_largest(root: Path, tmp_path: Path, write_video: Callable[..., None], capsys) -> None:
    near = data.astronaut()[:240, 96:336]
    far = np.asarray(Image.fromarray(near).resize((160, 160)))
    frame = np.full((240, 400, 3), 128, np.uint8)
    frame[40:200, :160], frame[:, 160:] = far, near
    write_video(root / REAL / "000.mp4", [frame] * 4)
    out = tmp_path / "out"
    assert prepare(root, out) == 0
    both = [line for line in manifest(out) if line["source"].endswith("/000.mp4")]
    assert [line["faces"] for line in both] == [2, 2]
    assert all(line["crop"][0] >= 160 for line in both)
    assert "2 frames show more than one face; the largest was taken." in capsys.readouterr().out


def test_masks_by_sam(root: Path, tmp_path: Path, tiny_sam: Path) -> None:
    """Its weights are random, so most of its masks have little to do with a face and the hull is taken instead."""
    out = tmp_path / "out"
    assert prepare(root, out, "--refine", "sam", "--sam-model", str(tiny_sam)) == 0
    lines = manifest(out)
    for line in lines:
        assert line["method"] == ("sam" if line["agreement"] >= 0.5 else "hull")
    assert len({line["agreement"] for line in lines}) > 1
    assert json.loads((out / "prepare.json").read_text())["sam_model"] == str(tiny_sam)


def test_the_same_command_again_does_nothing_and_says_the_same(root: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    (root / REAL / "000.mp4").write_bytes(b"")
    assert prepare(root, out) == 1
    first, before = capsys.readouterr(), content(out)
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*/*")}
    assert prepare(root, out) == 1
    assert capsys.readouterr() == first
    assert content(out) == before
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*/*/*")} == stamps


def test_a_video_put_right_is_taken_in(root: Path, face_videos: Path, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (root / REAL / "000.mp4").write_bytes(b"")
    (root / REAL / "001.mp4").unlink()
    assert prepare(root, out) == 1
    for name in ("000.mp4", "001.mp4"):
        shutil.copy2(face_videos / REAL / name, root / REAL / name)
    assert prepare(root, out) == 0
    assert content(out) == content(small)


def test_workers_give_the_same_files(root: Path, small: Path, tmp_path: Path) -> None:
    assert prepare(root, tmp_path / "two", "--workers", "2") == 0
    assert content(tmp_path / "two") == content(small)


def start(root: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dapl", "prepare", "faceforensics", str(root), str(out), "--methods", "Deepfakes"]
    return subprocess.Popen([*command, *OPTIONS, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    for _ in range(6000):
        if what() or (process is not None and process.poll() is not None):
            return
        time.sleep(0.01)
    raise AssertionError("waited for a minute")


@pytest.fixture(scope="module")
def whole(face_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All six frames of each video, so that there is time to kill the process at work."""
    out = tmp_path_factory.mktemp("whole") / "out"
    prepare(face_videos, out, "--frames", "6")
    return out


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_and_started_again_it_goes_on(root: Path, whole: Path, tmp_path: Path, workers: str) -> None:
    out = tmp_path / "out"
    process = start(root, out, "--frames", "6", "--workers", workers)
    wait_for(lambda: len(list(out.glob("*/*/*/video.json"))) >= 2, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers_of = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    assert process.poll() is None, "it was through before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers_of))
    assert not (out / "manifest.jsonl").exists()

    done = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*/*") if not path.parent.name.startswith(".")}
    leftover = out / "train" / "real" / ".000.99999.tmp"
    leftover.mkdir(parents=True)
    (leftover / "00000.png").write_bytes(b"half an image")
    assert prepare(root, out, "--frames", "6") == 0
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in done.items())
    assert not list(out.rglob("*.tmp"))
    assert content(out) == content(whole)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_other_settings_are_refused(root: Path, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(done)
    assert prepare(root, done, "--size", "80") == 2
    assert "was prepared with another size (64 then, 80 now)" in capsys.readouterr().err
    assert content(done) == before


def test_something_else_in_its_place_is_left_alone(root: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    assert prepare(root, tmp_path / "mine") == 2
    assert "is not empty, and nothing that this command made" in capsys.readouterr().err
    assert prepare(root, tmp_path / "mine" / "thesis.tex") == 2
    assert "cannot be written (File exists)" in capsys.readouterr().err


def test_a_disk_that_takes_no_more(root: Path, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the way of a folder stands for it: the system refuses to write, half of the videos are through."""
    shutil.rmtree(done / "test")
    (done / "test").write_text("…")
    assert prepare(root, done) == 2
    assert "The same command goes on where it stopped" in capsys.readouterr().err
    (done / "test").unlink()
    assert prepare(root, done) == 0


def test_two_at_once_are_refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fcntl = pytest.importorskip("fcntl")
    out = tmp_path / "out"
    out.mkdir()
    with (out / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert prepare(root, out) == 2
    assert "another process is at work there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--frames", "0"), "--frames: 0 is too small; give 1 or more"),
        (("--size", "8"), "--size: 8 is too small; give 32 or more"),
        (("--margin", "-1"), "--margin: -1.0 is too small"),
        (("--workers", "0"), "--workers: 0 is too small"),
        (("--sam-model", "folder"), "--sam-model: only for --refine sam"),
        (("--methods", "Deepfake"), "did you mean 'Deepfakes'"),
        (("--face-model", "nowhere.task"), "nowhere.task: no such file"),
        (("--refine", "sam", "--sam-model", "."), "holds no SAM that transformers can read"),
    ],
)
def test_bad_options(root: Path, tmp_path: Path, capsys, options: tuple[str, ...], message: str) -> None:
    assert prepare(root, tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.jsonl").exists()


def test_a_margin_that_is_no_number(root: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:  # by the parser, before the command begins
        prepare(root, tmp_path / "out", "--margin", "nan")
    assert ended.value.code == 2
    assert "argument --margin: is nan; give a number" in capsys.readouterr().err


def test_a_bad_model_in_a_worker_reaches_the_user(root: Path, tmp_path: Path, capsys) -> None:
    model = tmp_path / "face_landmarker.task"
    model.write_bytes(b"not a model")
    assert prepare(root, tmp_path / "out", "--workers", "2", "--face-model", str(model)) == 2
    assert "not a model of MediaPipe's Face Landmarker" in capsys.readouterr().err


def test_progress_says_what_is_done_already(root: Path, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(done / "val" / "real" / "002")
    options = [option for option in OPTIONS if option != "--quiet"]
    assert main(["prepare", "faceforensics", str(root), str(done), "--methods", "Deepfakes", *options]) == 0
    assert capsys.readouterr().err == "11 of 12 videos are done already\n"
