"""The data set of faces on what the real command made, and the whole path from videos to numbers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dapl.batches.pixels import AnnotationReader
from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import FaceForensicsData, load_config
from dapl.data.build import build_splits
from dapl.data.faceforensics import read_faceforensics
from dapl.data.sample import Dataset

CONFIG = Path(__file__).parents[2] / "configs" / "faceforensics-densenet161.yaml"
CLASSES = ["real", "Deepfakes", "Face2Face", "FaceSwap", "NeuralTextures"]


@pytest.fixture(scope="module")
def made(prepared_faces: tuple[Path, str]) -> Path:
    """Leave it as it is."""
    return prepared_faces[0]


@pytest.fixture
def faces(made: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(made, tmp_path / "faces"))


def test_the_contract(made: Path) -> None:
    dataset = read_faceforensics(made).dataset("validation")
    assert isinstance(dataset, Dataset)
    assert list(dataset.classes) == CLASSES
    assert len(dataset) == 2 * 5 * 3
    assert len(set(dataset.names)) == len(dataset)
    assert dataset.has_masks
    for index, name in enumerate(dataset.names):
        assert name.split("/")[:2] == ["val", CLASSES[dataset.labels[index]]]


def test_a_sample(made: Path) -> None:
    dataset = read_faceforensics(made).dataset("train")
    sample = dataset[7]
    assert sample.image.shape == (3, 96, 96)
    assert sample.name == dataset.names[7]
    assert sample.mask.shape == (96, 96)
    assert 0.2 < sample.mask.float().mean() < 0.7
    assert sample.part_masks.shape == (10, 96, 96)
    assert sample.visible.all()
    x1, y1, x2, y2 = sample.box[0].tolist()
    points = torch.as_tensor(sample.keypoints)
    assert ((points >= torch.tensor([x1, y1])) & (points <= torch.tensor([x2, y2]))).all()
    inside = sample.part_masks.amax(0)[int(y1) : int(y2) + 1, int(x1) : int(x2) + 1]
    assert inside.sum() == sample.part_masks.amax(0).sum()
    assert (sample.mask & sample.part_masks.amax(0)).sum() / sample.part_masks.amax(0).sum() > 0.9


def test_every_part_can_be_covered_by_half(made: Path) -> None:
    """A region is 5 % of the image and τ is 0.5: a part above 10 % of it could never be assigned."""
    for split in ("train", "validation", "test"):
        dataset = read_faceforensics(made).dataset(split)
        for index in range(len(dataset)):
            masks = dataset[index].part_masks
            largest = masks.float().mean((1, 2)).max()
            assert largest < 0.1
            assert largest * (1 + 2 * 0.15) ** 2 > 0.1  # without a margin, as docs/faces.md warns


def test_reading_needs_none_of_the_packages_that_made_it(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("mediapipe", "cv2", "av", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    assert read_faceforensics(made).dataset("train")[0].part_masks is not None


def test_the_official_validation_is_used(made: Path) -> None:
    splits = build_splits(FaceForensicsData(root=str(made), validation_share=0.5))
    for split, name in ((splits.train, "train"), (splits.validation, "val"), (splits.test, "test")):
        assert len(split) == 30
        assert all(one.startswith(f"{name}/") for one in split.names)
    assert len({split.fingerprint for split in (splits.train, splits.validation, splits.test)}) == 3


def test_annotations_are_exact(made: Path) -> None:
    dataset = read_faceforensics(made).dataset("test")
    annotations = AnnotationReader(dataset, 64, "stretch").read([0, 4])
    masks = annotations.part_masks()
    assert masks.shape == (2, 10, 64, 64)
    assert masks.any((2, 3)).all()


def test_the_fingerprint_follows_the_files(faces: Path) -> None:
    before = read_faceforensics(faces).dataset("train").fingerprint
    assert read_faceforensics(faces).dataset("train").fingerprint == before
    name = read_faceforensics(faces).dataset("train").names[0]
    mask = faces / name.replace(".png", "-mask.png")
    mask.write_bytes(mask.read_bytes())
    assert read_faceforensics(faces).dataset("train").fingerprint != before


@pytest.mark.parametrize("file", ["{}.png", "{}-mask.png", "landmarks.npy"])
def test_a_missing_file_is_named(faces: Path, file: str) -> None:
    name = Path(read_faceforensics(faces).dataset("train").names[0])
    gone = faces / name.parent / file.format(name.stem)
    gone.unlink()
    with pytest.raises(DaplError, match=rf"{gone.name}: no such file.*remove the folder of this video and run"):
        build_splits(FaceForensicsData(root=str(faces)))


@pytest.mark.parametrize("points", [np.zeros((1, 468, 2), np.float32), np.zeros((9, 5, 2), np.float32)])
def test_landmarks_of_something_else(faces: Path, points: np.ndarray) -> None:
    dataset = read_faceforensics(faces).dataset("train")
    np.save(faces / Path(dataset.names[2]).parent / "landmarks.npy", points)
    with pytest.raises(DaplError, match=r"landmarks\.npy: not the landmarks that the manifest tells of"):
        dataset[2]


def test_a_preparation_that_was_not_begun_or_not_finished(faces: Path) -> None:
    with pytest.raises(DaplError, match=r"prepare\.json: no such file; data\.root is the folder OUT"):
        read_faceforensics(faces.parent)
    (faces / "manifest.jsonl").unlink()
    with pytest.raises(DaplError, match=r"manifest\.jsonl: no such file; .* `dapl prepare faceforensics ROOT OUT`"):
        read_faceforensics(faces)


def test_a_broken_manifest_names_the_line(faces: Path) -> None:
    with (faces / "manifest.jsonl").open("a") as stream:
        stream.write('{"split": "train"')
    with pytest.raises(DaplError, match=r"manifest\.jsonl, line 91: not a line of a manifest"):
        read_faceforensics(faces)


def test_a_class_without_a_frame(faces: Path) -> None:
    lines = (faces / "manifest.jsonl").read_text().splitlines()
    kept = [line for line in lines if (json.loads(line)["split"], json.loads(line)["label"]) != ("val", "FaceSwap")]
    (faces / "manifest.jsonl").write_text("\n".join(kept) + "\n")
    with pytest.raises(DaplError, match="FaceSwap has no validation image; the manifest says why"):
        read_faceforensics(faces)


def test_videos_to_a_trained_and_measured_model(
    made: Path, tmp_path: Path, tiny_fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ({"stage": "warm_up", "epochs": 1}, {"stage": "joint", "epochs": 1}, {"stage": "project"})
    config = tiny_fields | {
        "data": {"name": "faceforensics", "root": str(made), "image_size": 64},
        "loss": {"foreground": {"weight": 20.0}},
        "schedule": [*stages, {"stage": "last_layer", "epochs": 1}, {"stage": "prune"}],
        "cache": {"folder": str(tmp_path / "cache")},
    }
    (tmp_path / "faces.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", str(tmp_path / "faces.yaml"), "--out", str(tmp_path / "run")]) == 0
    described = json.loads((tmp_path / "run" / "data.json").read_text())
    assert described["images"] == {"train": 30, "validation": 30, "test": 30}
    assert described["parts"][:2] == ["left eye", "right eye"]
    closing = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert closing["protocol"]["tau"] == 0.5  # that of faces, with nobody saying so

    assert main(["evaluate", str(tmp_path / "run")]) == 0
    measured = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (measured["protocol"]["tau"], measured["protocol"]["part_mode"]) == (0.5, "exact")
    assert measured["rows_without_visible_parts"] == 0
    shown = capsys.readouterr().out
    for name in ("coverage", "diversity", "background_bias"):
        assert 0 <= measured["numbers"][name]["low"] <= measured["numbers"][name]["high"] <= 1
    assert "Coverage" in shown


def test_the_papers_setting() -> None:
    config = load_config(CONFIG)
    assert config.data.name == "faceforensics"
    assert config.model.heads * len(CLASSES) == 50
    assert (config.model.head_dim, config.loss.foreground.weight) == (16, 20)
    assert load_config(CONFIG, {"model.head_dim": 8}).model.head_dim == 8
