"""Refiners: the same contract for all, what each makes of what it is told, and where rembg looks for its model."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dapl.common.operators  # noqa: F401  (before transformers)
from dapl.common.errors import DaplError
from dapl.masks.polygons import filled_box
from dapl.masks.refine import REMBG_VARIABLE, Prompt, Refiner, create_refiner, find_rembg_model, rembg_is_at_hand

SIZE = (90, 120)
TRUE = (np.mgrid[:90, :120][0] + 0.5 - 45) ** 2 / 28**2 + (np.mgrid[:90, :120][1] + 0.5 - 55) ** 2 / 35**2 <= 1
BOX = (20.0, 17.0, 90.0, 73.0)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    """An orange ellipse on blue noise."""
    noise = np.random.default_rng(0).integers(-20, 20, (*SIZE, 3))
    return (np.where(TRUE[..., None], (210, 140, 60), (60, 90, 160)) + noise).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module", params=["sam", "grabcut", "none"])
def refiner(request: pytest.FixtureRequest) -> Refiner:
    if request.param == "sam":
        return create_refiner("sam", str(request.getfixturevalue("tiny_sam")))
    return create_refiner(request.param)


PROMPTS = {
    "nothing": Prompt(),
    "box": Prompt(box=BOX),
    "points": Prompt(points=np.array([[40.0, 45.0], [70.0, 50.0]])),
    "mask": Prompt(mask=TRUE),
    "all": Prompt(BOX, np.array([[55.0, 45.0]]), TRUE),
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_any_prompt_gives_a_mask_of_the_image_and_the_same_again(
    refiner: Refiner, image: np.ndarray, prompt: Prompt
) -> None:
    before = image.copy()
    mask = refiner(image, prompt)
    assert mask.shape == SIZE
    assert mask.dtype == bool
    np.testing.assert_array_equal(refiner(image, prompt), mask)
    np.testing.assert_array_equal(image, before)


def iou(one: np.ndarray, other: np.ndarray) -> float:
    return float((one & other).sum() / (one | other).sum())


@pytest.mark.parametrize("shift", [(0, 0), (4, 0), (0, -4)])
def test_grabcut_mends_a_mask_that_is_off(image: np.ndarray, shift: tuple[int, int]) -> None:
    rough = np.roll(TRUE, shift, axis=(0, 1))
    found = create_refiner("grabcut")(image, Prompt(mask=rough))
    assert iou(found, TRUE) >= max(0.97, iou(rough, TRUE))


def test_grabcut_finds_the_object_in_its_box_or_at_the_centre_and_keeps_points(image: np.ndarray) -> None:
    grabcut = create_refiner("grabcut")
    assert iou(grabcut(image, Prompt(box=(15, 12, 95, 78))), TRUE) > 0.95
    assert iou(grabcut(image, Prompt()), TRUE) > 0.8
    assert grabcut(image, Prompt(box=BOX, points=np.array([[100.0, 45.0]])))[45, 100]


def test_grabcut_survives_a_mask_of_everything_or_nothing(image: np.ndarray) -> None:
    grabcut = create_refiner("grabcut")
    assert grabcut(image, Prompt(mask=np.ones(SIZE, bool))).all()
    assert not grabcut(image, Prompt(mask=np.zeros(SIZE, bool))).any()


def test_none_gives_back_what_it_was_told(image: np.ndarray) -> None:
    none = create_refiner("none")
    np.testing.assert_array_equal(none(image, PROMPTS["all"]), TRUE)
    box = none(image, PROMPTS["box"])
    assert box.sum() == 70 * 56
    assert box[17, 20]
    assert box[72, 89]
    assert none(image, Prompt()).all()


def test_filled_box_takes_pixels_by_their_centre() -> None:
    assert filled_box((0.6, 0.0, 2.5, 1.0), (2, 4)).astype(int).tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


def test_sam_hears_box_points_and_mask(image: np.ndarray, tiny_sam: Path) -> None:
    """Random weights: no mask is right, but each prompt must change what comes out."""
    sam = create_refiner("sam", str(tiny_sam))
    logits = []
    model = sam._model  # type: ignore[attr-defined]
    hook = model.register_forward_hook(lambda module, inputs, output: logits.append(output.pred_masks.clone()))
    points = np.array([[40.0, 45.0]])
    for prompt in (Prompt(BOX), Prompt(BOX, points), Prompt(BOX, points, TRUE), Prompt(BOX, points, ~TRUE)):
        sam(image, prompt)
    hook.remove()
    for one, other in pairwise(logits):
        assert one.shape[1:3] == (1, 1), "a box says which object is meant: one proposal"
        assert (one - other).abs().max() > 1e-5


@pytest.mark.parametrize("best", range(3))
def test_sam_takes_the_proposal_it_trusts_most(image: np.ndarray, tiny_sam: Path, best: int) -> None:
    """For a point the decoder is made to propose the left, the middle and the right third of the image."""
    sam = create_refiner("sam", str(tiny_sam))

    def thirds(module, inputs, output):
        masks, scores = output[0].clone().fill_(-1), output[1].clone().zero_()
        for third, columns in enumerate(np.array_split(np.arange(masks.shape[-1]), 3)):
            masks[..., third, :, columns] = 1
        scores[..., best] = 1
        return masks, scores, *output[2:]

    sam._model.mask_decoder.register_forward_hook(thirds)  # type: ignore[attr-defined]
    mask = sam(image, Prompt(points=np.array([[40.0, 45.0]])))
    expected = np.zeros(SIZE, bool)
    expected[:, 40 * best : 40 * (best + 1)] = True
    assert iou(mask, expected) > 0.9


def test_sams_mask_prompt_lies_where_the_image_lies(tiny_sam: Path) -> None:
    sam = create_refiner("sam", str(tiny_sam))
    prompt = sam._mask_prompt(TRUE)  # type: ignore[attr-defined]
    assert prompt.shape == (1, 1, 32, 32)
    assert (prompt[..., 24:, :] < 0).all()  # an image of 4:3 leaves the lower quarter empty
    rows, columns = np.nonzero(prompt[0, 0].numpy() > 0)
    assert abs((rows.mean() + 0.5) * 120 / 32 - 45) < 2
    assert abs((columns.mean() + 0.5) * 120 / 32 - 55) < 2


def test_bad_words(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"no refinement 'grabcat'; did you mean 'grabcut'"):
        create_refiner("grabcat")
    with pytest.raises(DaplError, match="but 'grabcut' has none"):
        create_refiner("grabcut", str(tmp_path))


def test_a_folder_without_a_sam(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(DaplError, match=r"holds no SAM that transformers can read .* config\.json"):
        create_refiner("sam", str(tmp_path))


def test_a_sam_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DaplError, match=r"neither a folder nor a model that the hub gives .* grabcut, which needs"):
        create_refiner("sam", str(tmp_path / "nowhere"))


@pytest.mark.parametrize(("method", "package"), [("sam", "transformers"), ("grabcut", "cv2")])
def test_without_the_package_the_message_names_the_extra(
    method: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DaplError, match=r"pip install 'dapl\[masks\]'"):
        create_refiner(method)


VARIABLES = (REMBG_VARIABLE, "DAPL_MODELS", "U2NET_HOME", "REMBG_HOME")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variable says where a model is, and there is none at home."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_where_the_model_is_looked_for(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rembg_model() is None
    assert not rembg_is_at_hand()
    places = [bare / "home" / "models" / "u2net" / "u2net.onnx", bare / "models" / "u2net.onnx", bare / "own.onnx"]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    monkeypatch.setenv("REMBG_HOME", str(bare / "home"))
    assert find_rembg_model() == str(places[0])
    monkeypatch.setenv("DAPL_MODELS", str(bare / "models"))
    assert find_rembg_model() == str(places[1])
    monkeypatch.setenv(REMBG_VARIABLE, str(places[2]))
    assert find_rembg_model() == str(places[2])
    assert find_rembg_model(str(places[1])) == str(places[1])
    assert find_rembg_model("isnet-general-use") is None


def test_what_is_missing_is_said(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rembg.sessions", None)
    with pytest.raises(DaplError, match=r"pip install 'dapl\[rembg\]'"):
        create_refiner("rembg")


@pytest.mark.slow
def test_birds_without_a_prompt() -> None:
    if not os.environ.get(REMBG_VARIABLE) or "DAPL_CUB" not in os.environ:
        pytest.skip(f"{REMBG_VARIABLE} (u2net.onnx) and DAPL_CUB are not set")
    pytest.importorskip("rembg", reason="pip install 'dapl[rembg]'")
    refiner, root, ious = create_refiner("rembg"), Path(os.environ["DAPL_CUB"]), []
    for file in sorted((root / "segmentations").glob("*/*.png"))[100::3000]:
        image = Image.open(root / "images" / file.parent.name / f"{file.stem}.jpg").convert("RGB")
        true, found = np.asarray(Image.open(file).convert("L")) >= 128, refiner(np.asarray(image), Prompt())
        ious.append((true & found).sum() / (true | found).sum())
    assert np.mean(ious) > 0.75
