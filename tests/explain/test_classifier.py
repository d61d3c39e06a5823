"""`dapl.load`: a model in three lines, from a run or an export, for images of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import TypeAdapter

import dapl
from dapl.common.errors import DaplError
from dapl.config import ModelConfig
from dapl.explain.classifier import Classifier
from dapl.explain.parts import ModelRecords
from dapl.export.hub import is_exported
from dapl.models.build import build_model


@pytest.fixture
def array() -> np.ndarray:
    """uint8 H×W×3."""
    return np.random.default_rng(0).integers(0, 256, (80, 100, 3), dtype=np.uint8)


def test_three_lines(dapl_run: Path, tmp_path: Path, array: np.ndarray) -> None:
    Image.fromarray(array).save(tmp_path / "bird.png")
    model = dapl.load(str(dapl_run))
    prediction = model.predict(tmp_path / "bird.png")
    path = model.explain(tmp_path / "bird.png").save(tmp_path / "why.html")
    assert prediction.class_name in path.read_text(encoding="utf-8")
    assert prediction.class_name == model.explain(tmp_path / "bird.png").predicted_name
    assert model.classes[prediction.class_index] == prediction.class_name


def test_probabilities(classifier: Classifier, array: np.ndarray) -> None:
    prediction = classifier.predict(array)
    shares = list(prediction.probabilities.values())
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert next(iter(prediction.probabilities.items())) == (prediction.class_name, prediction.probability)
    explained = classifier.explain(array).probabilities
    for label, name in enumerate(classifier.classes):
        assert prediction.probabilities[name] == pytest.approx(float(explained[label]), abs=1e-5)


def test_all_kinds_of_images_are_the_same_image(classifier: Classifier, array: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(array).save(tmp_path / "bird.png")
    expected = classifier.pixels(tmp_path / "bird.png")
    assert expected.shape == (3, 64, 64)
    assert expected.dtype == torch.uint8
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for image in (str(tmp_path / "bird.png"), Image.fromarray(array), array, tensor, tensor / 255, array / 255.0):
        assert torch.equal(classifier.pixels(image), expected)


def test_odd_images(classifier: Classifier, array: np.ndarray) -> None:
    grey = array[:, :, 0]
    assert torch.equal(classifier.pixels(grey), classifier.pixels(np.stack([grey] * 3, axis=2)))
    assert torch.equal(classifier.pixels(Image.fromarray(grey)), classifier.pixels(grey))
    clear = Image.fromarray(np.dstack((array, np.zeros((80, 100), np.uint8))))
    assert classifier.pixels(clear).unique().tolist() == [255]
    turned = Image.fromarray(array)
    turned.getexif()[0x0112] = 3
    assert torch.equal(classifier.pixels(turned), classifier.pixels(array[::-1, ::-1]))


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
def test_what_is_no_image_is_refused(classifier: Classifier, image: object, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        classifier.predict(image)  # type: ignore[arg-type]


def test_an_image_of_16_bits_is_read_as_its_file_is(classifier: Classifier, tmp_path: Path) -> None:
    levels = (np.arange(64 * 64, dtype=np.uint16) * 16).reshape(64, 64)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    with Image.open(tmp_path / "deep.png") as image:
        assert image.mode.startswith("I")
        assert classifier.predict(image) == classifier.predict(tmp_path / "deep.png")


def test_classes_by_name_and_by_index(classifier: Classifier) -> None:
    name = classifier.classes[1]
    assert {classifier.class_index(one) for one in (name, name.lower(), 1, "1")} == {1}
    cub = Classifier(classifier.model, ModelRecords(["001.Albatross", "002.Auklet", "7"]), 64, "stretch")
    assert cub.class_index("auklet") == 1
    assert cub.class_index("7") == 2  # a name before a number
    with pytest.raises(DaplError, match="did you mean"):
        cub.class_index("Albatrus")
    for wrong in (3, -1, "-1"):
        with pytest.raises(DaplError, match="counted from 0"):
            cub.class_index(wrong)


def test_an_export_is_the_same_model(dapl_run: Path, classifier: Classifier, tmp_path: Path, array: np.ndarray) -> None:
    from dapl.export.export import export_run

    folder = export_run(dapl_run, tmp_path / "export", formats=("hub",), quiet=True).folder
    exported = dapl.load(folder)
    assert exported.predict(array) == classifier.predict(array)
    mine, theirs = exported.explain(array), classifier.explain(array)
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


def test_a_run_is_not_taken_for_an_export(dapl_run: Path, tmp_path: Path) -> None:
    assert not is_exported(dapl_run)
    with pytest.raises(DaplError, match="not a run directory"):
        dapl.load(tmp_path)


def test_a_list_gives_a_list(classifier: Classifier, array: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [array, Image.fromarray(array[::-1]), array[:, ::-1].copy(), array / 255.0, array[:40]]
    alone = [classifier.predict(image) for image in images]
    passes: list[int] = []
    forward = classifier.model.forward
    monkeypatch.setattr(classifier.model, "forward", lambda batch: passes.append(len(batch)) or forward(batch))
    monkeypatch.setattr("dapl.explain.classifier._BATCH", 2)
    together = classifier.predict(images)
    assert passes == [2, 2, 1]
    assert [one.class_name for one in together] == [one.class_name for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=1e-5)
    assert classifier.predict([]) == []
    assert len(classifier.predict(tuple(images[:1]))) == 1


def test_objects_say_what_they_are(classifier: Classifier, array: np.ndarray) -> None:
    assert repr(classifier) == (
        "Classifier(dapl · test_mambaout · toybirds: 3 classes, 9 prototypes, images of 64 pixels)"
    )
    prediction, why = classifier.predict(array), classifier.explain(array, top=2)
    assert repr(prediction).startswith(f"Prediction({prediction.class_name} {prediction.probability:.1%}, ")
    assert repr(why).startswith(f"LocalExplanation(image: {why.predicted_name} ")
    assert repr(why).endswith("%, 2 classes, 4 prototypes)")
    assert all(len(repr(one)) < 200 for one in (classifier, prediction, why))


def test_the_page_says_what_of_the_image_the_model_saw(classifier: Classifier) -> None:
    portrait = Image.new("RGB", (60, 100), "teal")
    assert classifier.explain(portrait).seen == "", "the whole image, fitted to a square"
    words = (classifier.model, classifier.known, classifier.image_size)
    cropped = Classifier(*words, "crop")
    said = "The model sees the centre square of the image: 40 % of it, top and bottom, are cut off."
    found = cropped.explain(portrait)
    assert found.seen == said
    assert said in found.html()
    assert "left and right" in cropped.explain(portrait.rotate(90, expand=True)).seen
    assert cropped.explain(Image.new("RGB", (100, 99))).seen == ""
