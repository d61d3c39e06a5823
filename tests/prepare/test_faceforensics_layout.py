"""Where the videos are and which split they belong to; nothing here opens a video."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dapl.common.errors import DaplError
from dapl.data.faceforensics_files import MANIPULATIONS
from dapl.prepare.faceforensics import labels_of, make_plan, read_splits

SPLITS = {"train": [["000", "001"], ["010", "011"]], "val": [["002", "003"]], "test": [["004", "005"]]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The published layout with empty files."""
    write_splits(tmp_path, SPLITS)
    for pairs in SPLITS.values():
        for one, other in pairs:
            touch(tmp_path / "original_sequences/youtube/c23/videos", one, other)
            for method in MANIPULATIONS:
                folder = tmp_path / "manipulated_sequences" / method / "c23/videos"
                touch(folder, f"{one}_{other}", f"{other}_{one}")
    return tmp_path


def write_splits(root: Path, splits: dict[str, Any]) -> None:
    (root / "splits").mkdir(exist_ok=True)
    for name, pairs in splits.items():
        (root / "splits" / f"{name}.json").write_text(json.dumps(pairs))


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.mp4").touch()


def test_every_video_is_in_one_split_with_its_identities(root: Path) -> None:
    plan = make_plan(root, "c23", labels_of(None))
    assert len(plan.videos) == 8 * 5
    assert plan.missing == plan.unnamed == []
    members = {split: {one for pair in pairs for one in pair} for split, pairs in SPLITS.items()}
    for video in plan.videos:
        assert set(video.name.split("_")) <= members[video.split]
        assert (root / video.source).is_file()
    assert len({video.folder for video in plan.videos}) == 40


def test_missing_and_unnamed_videos_are_told_apart(root: Path) -> None:
    gone = "manipulated_sequences/FaceSwap/c23/videos/003_002.mp4"
    (root / gone).unlink()
    mixed = "manipulated_sequences/Deepfakes/c23/videos/000_004.mp4"  # a train face on a test video
    (root / mixed).touch()
    plan = make_plan(root, "c23", labels_of(None))
    assert [(video.split, video.label, video.source) for video in plan.missing] == [("val", "FaceSwap", gone)]
    assert plan.unnamed == [("Deepfakes", mixed)]
    assert not any(video.source in (gone, mixed) for video in plan.videos)


def test_chosen_methods_keep_the_published_order(root: Path) -> None:
    labels = labels_of(["NeuralTextures", "Deepfakes"])
    assert labels == ("real", "Deepfakes", "NeuralTextures")
    assert {video.label for video in make_plan(root, "c23", labels).videos} == set(labels)


def test_unknown_method() -> None:
    with pytest.raises(DaplError, match=r"no manipulation 'DeepFake'; did you mean 'Deepfakes'"):
        labels_of(["DeepFake"])


def test_another_compression_is_offered(root: Path) -> None:
    with pytest.raises(DaplError, match=r"youtube/c40/videos: no such folder; there are videos of --compression c23"):
        make_plan(root, "c40", labels_of(None))


def test_a_method_that_was_not_downloaded(root: Path) -> None:
    shutil.rmtree(root / "manipulated_sequences/FaceSwap/c23/videos")
    with pytest.raises(DaplError, match=r"FaceSwap/c23/videos: no such folder; .* leave FaceSwap out with --methods"):
        make_plan(root, "c23", labels_of(None))


def test_an_identity_in_two_pairs_is_refused(root: Path) -> None:
    write_splits(root, SPLITS | {"test": [["004", "001"]]})
    with pytest.raises(DaplError, match=r"video 001 is in train\.json and in test\.json; a split may not share a face"):
        make_plan(root, "c23", labels_of(None))
    write_splits(root, SPLITS | {"train": [["000", "001"], ["001", "010"]]})
    with pytest.raises(DaplError, match="video 001 is twice in one split"):
        read_splits(root / "splits")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; put the official"),
        ("[[", "not JSON"),
        ("{}", "not a list of pairs"),
        ('[["000"]]', "not a list of pairs"),
        ("[[0, 1]]", "not a list of pairs"),
        ('[["../../etc", "001"]]', "not a list of pairs"),
        ("[]", "names no video"),
    ],
)
def test_bad_split_files(root: Path, text: str | None, message: str) -> None:
    file = root / "splits" / "val.json"
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(DaplError, match=rf"val\.json: {message}"):
        make_plan(root, "c23", labels_of(None))


def test_no_video_at_all(root: Path) -> None:
    for video in root.rglob("*.mp4"):
        video.unlink()
    with pytest.raises(DaplError, match="none of the videos that the splits name is there"):
        make_plan(root, "c23", labels_of(None))
