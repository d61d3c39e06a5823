"""`dapl.load`: a model in three lines, from a run or an export, for images of any kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import TypeAdapter

import dapl
from dapl.common.errors import DaplError
from dapl.config import ModelConfig, parse_config
from dapl.explain.classifier import Classifier
from dapl.explain.evidence import ModelRecords
from dapl.export.hub import is_exported
from dapl.models.build import build_model
from dapl.runs.loading import load_run
from dapl.training.trainer import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    config = parse_config(
        {
            "data": {
                "name": "toybirds",
                "classes": 3,
                "images_per_class": 5,
                "test_images_per_class": 1,
                "image_size": 64,
            },
            "model": {"backbone": {"name": "test_efficientnet", "weights": "random"}, "heads": 2, "head_dim": 4},
            "schedule": [{"stage": "warm_up", "epochs": 1, "batch_size": 16}, {"stage": "project"}],
            "cache": {"folder": str(folder / "cache")},
            "runtime": {"accelerator": "cpu", "workers": 0},
        }
    )
    return train(config, folder / "run", quiet=True).folder


@pytest.fixture(scope="module")
def model(trained: Path) -> Classifier:
    return dapl.load(trained)


@pytest.fixture
def array() -> np.ndarray:
    """uint8 H×W×3."""
    return np.random.default_rng(0).integers(0, 256, (80, 100, 3), dtype=np.uint8)


def test_three_lines(trained: Path, tmp_path: Path, array: np.ndarray) -> None:
    Image.fromarray(array).save(tmp_path / "bird.png")
    model = dapl.load(str(trained))
    prediction = model.predict(tmp_path / "bird.png")
    path = model.explain(tmp_path / "bird.png").save(tmp_path / "why.html")
    assert prediction.class_name in path.read_text(encoding="utf-8")
    assert prediction.class_name == model.explain(tmp_path / "bird.png").predicted_name
    assert model.classes[prediction.class_index] == prediction.class_name


def test_probabilities(model: Classifier, array: np.ndarray) -> None:
    prediction = model.predict(array)
    shares = list(prediction.probabilities.values())
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert next(iter(prediction.probabilities.items())) == (prediction.class_name, prediction.probability)
    explained = model.explain(array).probabilities
    for label, name in enumerate(model.classes):
        assert prediction.probabilities[name] == pytest.approx(float(explained[label]), abs=1e-5)


def test_all_kinds_of_images_are_the_same_image(model: Classifier, array: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(array).save(tmp_path / "bird.png")
    expected = model.pixels(tmp_path / "bird.png")
    assert expected.shape == (3, 64, 64)
    assert expected.dtype == torch.uint8
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for image in (str(tmp_path / "bird.png"), Image.fromarray(array), array, tensor, tensor / 255, array / 255.0):
        assert torch.equal(model.pixels(image), expected)


def test_odd_images(model: Classifier, array: np.ndarray) -> None:
    grey = array[:, :, 0]
    assert torch.equal(model.pixels(grey), model.pixels(np.stack([grey] * 3, axis=2)))
    assert torch.equal(model.pixels(Image.fromarray(grey)), model.pixels(grey))
    clear = Image.fromarray(np.dstack((array, np.zeros((80, 100), np.uint8))))
    assert model.pixels(clear).unique().tolist() == [255]
    turned = Image.fromarray(array)
    turned.getexif()[0x0112] = 3
    assert torch.equal(model.pixels(turned), model.pixels(array[::-1, ::-1]))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 2), np.uint8), r"shape \(2, 4, 4\); an array is H×W×3 or H×W"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), r"shape \(4, 4, 3\); a tensor is 3×H×W"),
        (np.full((4, 4, 3), 2.0), "must lie between 0 and 1"),
        (np.full((4, 4, 3), np.nan), "must lie between 0 and 1"),
        (np.zeros((4, 4, 3), np.int64), "must lie between 0 and 1"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (Image.new("F", (4, 4)), "pixels of 32 bits"),
        (17, "not a int"),
        ("no/such/file.jpg", "no such file"),
    ],
)
def test_what_is_no_image_is_refused(model: Classifier, image: object, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        model.predict(image)  # type: ignore[arg-type]


def test_a_image_of_16_bits_is_read_as_its_file_is(model: Classifier, tmp_path: Path) -> None:
    levels = (np.arange(64 * 64, dtype=np.uint16) * 16).reshape(64, 64)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    with Image.open(tmp_path / "deep.png") as image:
        assert image.mode.startswith("I")
        assert model.predict(image) == model.predict(tmp_path / "deep.png")


def test_classes_by_name_and_by_index(model: Classifier) -> None:
    name = model.classes[1]
    assert (
        model.class_index(name)
        == model.class_index(name.lower())
        == model.class_index(1)
        == model.class_index("1")
        == 1
    )
    cub = Classifier(model.model, ModelRecords(["001.Albatross", "002.Auklet", "7"]), 64, "stretch")
    assert cub.class_index("auklet") == 1
    assert cub.class_index("7") == 2  # a name before a number
    with pytest.raises(DaplError, match="did you mean"):
        cub.class_index("Albatrus")
    for wrong in (3, -1, "-1"):
        with pytest.raises(DaplError, match="counted from 0"):
            cub.class_index(wrong)


def test_an_export_is_the_same_model(trained: Path, model: Classifier, tmp_path: Path, array: np.ndarray) -> None:
    from dapl.export.export import export_run

    folder = export_run(trained, tmp_path / "export", formats=("hub",), quiet=True).folder
    exported = dapl.load(folder)
    assert exported.predict(array) == model.predict(array)
    mine, theirs = exported.explain(array), model.explain(array)
    assert [row.prototype for row in mine.classes[0].rows] == [row.prototype for row in theirs.classes[0].rows]
    assert "<image" in mine.html()
    record = mine.classes[0].rows[0].record
    assert record is not None
    assert exported.patches.patch(record) is not None  # without the training data
    assert exported.sample("train/000/0000") is None


def test_a_model_without_prototypes_predicts_and_is_not_explained(array: np.ndarray) -> None:
    config: Any = TypeAdapter(ModelConfig).validate_python(
        {"system": "blackbox", "backbone": {"name": "test_efficientnet", "weights": "random"}}
    )
    silent = Classifier(build_model(config, 3).eval(), ModelRecords(["a", "b", "c"]), 64, "stretch")
    assert sum(silent.predict(array).probabilities.values()) == pytest.approx(1)
    with pytest.raises(DaplError, match="no prototypes"):
        silent.explain(array)


def test_a_run_is_not_taken_for_an_export(trained: Path, tmp_path: Path) -> None:
    assert not is_exported(trained)
    with pytest.raises(DaplError, match="not a run directory"):
        dapl.load(tmp_path)


def test_importing_dapl_imports_no_torch() -> None:
    code = "import dapl, sys; assert callable(dapl.load); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_function_stays_in_its_place(trained: Path) -> None:
    assert callable(dapl.load)
    assert load_run(trained).classes == dapl.load(trained).classes
