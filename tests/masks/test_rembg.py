"""rembg: where its model is looked for, and with the model at hand, what it finds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dapl.common.errors import DaplError
from dapl.masks.prompt import Prompt
from dapl.masks.refine import create_refiner
from dapl.masks.rembg import MODEL_VARIABLE, find_model, is_at_hand

VARIABLES = (MODEL_VARIABLE, "DAPL_MODELS", "U2NET_HOME", "REMBG_HOME")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variable says where a model is, and there is none at home."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_where_the_model_is_looked_for(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model() is None
    assert not is_at_hand()
    places = [bare / "home" / "models" / "u2net" / "u2net.onnx", bare / "models" / "u2net.onnx", bare / "own.onnx"]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    monkeypatch.setenv("REMBG_HOME", str(bare / "home"))
    assert find_model() == str(places[0])
    monkeypatch.setenv("DAPL_MODELS", str(bare / "models"))
    assert find_model() == str(places[1])
    monkeypatch.setenv(MODEL_VARIABLE, str(places[2]))
    assert find_model() == str(places[2])
    assert find_model(str(places[1])) == str(places[1])
    assert find_model("isnet-general-use") is None


def test_what_is_missing_is_said(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rembg.sessions", None)
    with pytest.raises(DaplError, match=r"pip install 'dapl\[rembg\]'"):
        create_refiner("rembg")


@pytest.mark.slow
def test_birds_without_a_prompt() -> None:
    if not os.environ.get(MODEL_VARIABLE) or "DAPL_CUB" not in os.environ:
        pytest.skip(f"{MODEL_VARIABLE} (u2net.onnx) and DAPL_CUB are not set")
    pytest.importorskip("rembg", reason="pip install 'dapl[rembg]'")
    refiner, root, ious = create_refiner("rembg"), Path(os.environ["DAPL_CUB"]), []
    for file in sorted((root / "segmentations").glob("*/*.png"))[100::3000]:
        image = Image.open(root / "images" / file.parent.name / f"{file.stem}.jpg").convert("RGB")
        true, found = np.asarray(Image.open(file).convert("L")) >= 128, refiner(np.asarray(image), Prompt())
        ious.append((true & found).sum() / (true | found).sum())
    assert np.mean(ious) > 0.75
