"""COCO files made with pycocotools: masks as it decodes them, classes, keypoints, and every way a file can be wrong."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from dapl.common.errors import DaplError
from dapl.config import CocoData
from dapl.data.build import build_splits, list_files
from dapl.data.coco_masks import decode
from dapl.data.listing import ImageRecord, Listing
from dapl.data.sample import Dataset, Sample, Splits

pytest.importorskip("pycocotools", reason="pip install 'dapl[coco]'")
from pycocotools import mask as tools
from pycocotools.coco import COCO

PARTS = {1: ["nose", "left ear"], 2: ["left ear", "tail"]}


def blob(seed: int, size: tuple[int, int]) -> np.ndarray:
    """uint8 H×W: some ellipses, with holes, several pieces and ragged edges."""
    generator = np.random.default_rng(seed)
    image = Image.new("L", (size[1], size[0]), 0)
    for ink in (1, 1, 0):
        x, y = generator.uniform(0, size[1]), generator.uniform(0, size[0])
        ImageDraw.Draw(image).ellipse((x - 9, y - 6, x + 9, y + 6), fill=ink)
    mask = np.asarray(image).copy()
    mask[0, 0] = 1  # never empty
    return mask


def compressed(mask: np.ndarray) -> dict[str, Any]:
    encoded = tools.encode(np.asfortranarray(mask))
    return {"size": encoded["size"], "counts": encoded["counts"].decode()}


def uncompressed(mask: np.ndarray) -> dict[str, Any]:
    lengths = [len(list(run)) for _, run in groupby(mask.flatten(order="F").tolist())]
    return {"size": list(mask.shape), "counts": ([0] if mask[0, 0] else []) + lengths}


def polygons(seed: int, size: tuple[int, int]) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [(generator.uniform(0, 1, (5, 2)) * (size[1], size[0])).round(2).flatten().tolist() for _ in range(2)]


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """12 images of cats (1) and dogs (2); segmentations in turn polygons, compressed and uncompressed."""
    (tmp_path / "zoo" / "images").mkdir(parents=True)
    content: dict[str, list[dict[str, Any]]] = {
        "images": [],
        "annotations": [],
        "categories": [
            {"id": 2, "name": "dog", "keypoints": PARTS[2]},
            {"id": 1, "name": "cat", "keypoints": PARTS[1]},
            {"id": 10, "name": "unseen"},
        ],
    }
    for number in range(12):
        height, width = 20 + number, 34 - number
        noise = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "zoo" / "images" / f"{number}.png")
        mask = blob(number, (height, width))
        kinds = (polygons(number, (height, width)), compressed(mask), uncompressed(mask))
        content["images"].append({"id": 100 + number, "file_name": f"{number}.png", "height": height, "width": width})
        content["annotations"].append(
            {
                "id": number,
                "image_id": 100 + number,
                "category_id": 1 + number % 2,
                "bbox": [2, 3, 10, 12.5],
                "area": 80,
                "iscrowd": 0,
                "segmentation": kinds[number % 3],
                "keypoints": [4, 5, 2, 6, 7, number % 3],
            }
        )
    (tmp_path / "zoo" / "zoo.json").write_text(json.dumps(content))
    return tmp_path / "zoo" / "zoo.json"


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def listed(path: Path, **fields: Any) -> Listing:
    return list_files(CocoData(train=str(path), **fields))


def record_of(listing: Listing, name: str) -> ImageRecord:
    return next(record for record in listing if record.name == name)


def sample_of(path: Path, name: str, **fields: Any) -> Sample:
    dataset = listed(path, **fields).dataset()
    return dataset[list(dataset.names).index(name)]


def built(path: Path, **fields: Any) -> Splits:
    return build_splits(CocoData(train=str(path), **fields))


def mask_area(path: Path, name: str, **fields: Any) -> int:
    mask = sample_of(path, name, **fields).mask
    return int(mask.sum())


# --- masks ----------------------------------------------------------------------------------------------------------


def test_masks_are_what_pycocotools_decodes(zoo: Path) -> None:
    coco = COCO(str(zoo))
    seen = set()
    for annotation in coco.loadAnns(coco.getAnnIds()):
        name = coco.loadImgs(annotation["image_id"])[0]["file_name"]
        mask = sample_of(zoo, name).mask
        assert mask.dtype == torch.uint8
        expected = coco.annToMask(annotation)
        assert expected.any()
        assert np.array_equal(mask.numpy(), expected)
        written = annotation["segmentation"]
        seen.add("polygons" if isinstance(written, list) else type(written["counts"]).__name__)
    assert seen == {"polygons", "str", "list"}


def test_the_largest_object_decides(zoo: Path) -> None:
    """0.png shows a cat; a larger dog is added, a small cat, and a crowd of dogs that covers all."""
    full = compressed(np.ones((20, 34), np.uint8))

    def add(content: dict[str, Any]) -> None:
        common = {"image_id": 100, "iscrowd": 0}
        content["annotations"] += [
            common
            | {
                "id": 50,
                "category_id": 2,
                "bbox": [0, 0, 20, 10],
                "area": 200,
                "segmentation": [[0, 0, 20, 0, 20, 10, 0, 10]],
                "keypoints": [1, 2, 2, 3, 4, 2],
            },
            common
            | {"id": 51, "category_id": 2, "bbox": [24, 0, 4, 4], "segmentation": [[24, 0, 28, 0, 28, 4, 24, 4]]},
            common | {"id": 52, "category_id": 2, "area": 680, "segmentation": full, "iscrowd": 1},
        ]

    edit(zoo, add)
    sample = sample_of(zoo, "0.png")
    listing = listed(zoo)
    assert listing.classes[sample.label] == "dog"
    assert sample.box[0].tolist() == [0, 0, 20, 10]
    assert mask_area(zoo, "0.png") == 200
    assert mask_area(zoo, "0.png", mask_of="class") == 216
    assert dict(zip(listing.parts, sample.keypoints.tolist(), strict=True)) == {
        "left ear": [1, 2],
        "tail": [3, 4],
        "nose": [0, 0],
    }
    assert "on 1 images there are objects of several classes" in listing.notes[0]
    assert listing.faults == []


# --- classes, keypoints, boxes --------------------------------------------------------------------------------------


def test_categories_are_classes_and_keypoint_names_are_parts(zoo: Path) -> None:
    listing = listed(zoo)
    assert listing.classes == ["cat", "dog"]
    assert listing.parts == ["left ear", "tail", "nose"]
    cat = sample_of(zoo, "4.png")  # flag 1: annotated, but hidden
    assert cat.label == 0
    assert cat.visible.tolist() == [False, False, True]
    dog = sample_of(zoo, "5.png")
    assert dog.visible.tolist() == [True, True, False]
    assert dog.keypoints[:2].tolist() == [[4, 5], [6, 7]]
    assert dog.box[0].tolist() == [2, 3, 12, 15.5]


def test_a_category_with_the_classes_of_others_is_left_out(zoo: Path) -> None:
    edit(zoo, lambda content: content["annotations"][3].update(category_id=10))
    assert listed(zoo).classes == ["cat", "dog", "unseen"]
    only = listed(zoo, classes=["dog", "cat"])
    assert only.classes == ["cat", "dog"]
    assert [fault.text.partition(": ")[2] for fault in only.faults] == [
        "3.png is left out, no object of a known class is annotated on it."
    ]
    with pytest.raises(DaplError, match=r"data.classes: there is no class 'dig'; did you mean 'dog'"):
        listed(zoo, classes=["dig"])


@pytest.mark.parametrize("place", ["annotation", "annotation.attributes", "image", "image.attributes"])
def test_an_attribute_as_class(zoo: Path, place: str) -> None:
    def add(content: dict[str, Any]) -> None:
        for number, item in enumerate(content["annotations" if place.startswith("annotation") else "images"]):
            target = item.setdefault("attributes", {}) if place.endswith("attributes") else item
            target["coat"] = ("spotted", "plain", "striped")[number % 3]

    edit(zoo, add)
    listing = listed(zoo, class_from="attribute:coat")
    assert listing.classes == ["plain", "spotted", "striped"]
    assert [listing.classes[record.label] for record in listing][:3] == ["spotted", "plain", "striped"]
    assert listing.faults == []
    missing = listed(zoo, class_from="attribute:coat", classes=["plain"])
    assert {missing.classes[record.label] for record in missing} == {"plain"}


def test_attributes_that_are_missing(zoo: Path) -> None:
    def add(content: dict[str, Any]) -> None:
        for number, image in enumerate(content["images"]):
            image["coat"] = number % 2
        del content["images"][7]["coat"]
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] != 102]

    edit(zoo, add)
    listing = listed(zoo, class_from="attribute:coat")
    assert listing.classes == ["0", "1"]
    assert any("neither it nor its image has an attribute coat" in fault.text for fault in listing.faults)
    assert any("7.png is left out" in fault.text for fault in listing.faults)
    assert record_of(listing, "2.png").mask is None  # nothing is annotated on it, yet its class is known
    with pytest.raises(DaplError, match="'kind' is neither category nor attribute:NAME"):
        listed(zoo, class_from="kind")


# --- splits and folders ---------------------------------------------------------------------------------------------


def test_one_file_is_shared_out(zoo: Path) -> None:
    splits = built(zoo, test_share=0.34, validation_share=0.25)
    assert [len(getattr(splits, name)) for name in ("train", "validation", "test")] == [6, 2, 4]
    assert isinstance(splits.test, Dataset)
    assert splits.test.has_masks
    copy = pickle.loads(pickle.dumps(splits.test))
    assert torch.equal(copy[0].mask, splits.test[0].mask)


def cut(zoo: Path, name: str, rows: slice, folder: str) -> Path:
    """Some images of the zoo as a file of their own, in COCO's layout: annotations/ and a folder of images."""
    content = json.loads(zoo.read_text())
    root = zoo.parent / "layout"
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "annotations").mkdir(exist_ok=True)
    images = content["images"][rows]
    kept = {image["id"] for image in images}
    for image in images:
        (zoo.parent / "images" / image["file_name"]).rename(root / folder / image["file_name"])
    content |= {"images": images, "annotations": [a for a in content["annotations"] if a["image_id"] in kept]}
    (root / "annotations" / name).write_text(json.dumps(content))
    return root / "annotations" / name


def test_a_file_for_each_split(zoo: Path) -> None:
    train = cut(zoo, "instances_train2017.json", slice(0, 6), "train2017")
    val = cut(zoo, "instances_val2017.json", slice(6, 8), "val2017")
    test = cut(zoo, "instances_test2017.json", slice(8, 12), "held")
    splits = built(train, validation=str(val), test=str(test), test_images=str(test.parent.parent / "held"))
    assert [len(getattr(splits, name)) for name in ("train", "validation", "test")] == [6, 2, 4]
    assert splits.test[0].name == "8.png"
    assert splits.validation[1].image.shape == (3, 27, 27)


def test_images_that_are_not_there_are_named_before_anything_is_trained(zoo: Path) -> None:
    (zoo.parent / "images" / "3.png").unlink()
    with pytest.raises(DaplError, match=r"images/3.png: no such file, though .*zoo.json names it \(1 missing among 12"):
        built(zoo)
    with pytest.raises(DaplError, match=r"\(12 missing among 12 images\); .*data.images"):
        built(zoo, images=str(zoo.parent / "nowhere"))


def test_masks_from_a_folder_for_objects_without_a_segmentation(zoo: Path) -> None:
    edit(zoo, lambda content: content["annotations"][0].pop("segmentation"))
    with pytest.raises(DaplError, match=r"1 of 12 images have no mask, the first 0.png"):
        built(zoo)
    (zoo.parent / "masks" / "zoo").mkdir(parents=True)
    Image.new("L", (34, 20), 255).save(zoo.parent / "masks" / "zoo" / "0.png.png")
    assert built(zoo).train.has_masks
    assert mask_area(zoo, "0.png") == 34 * 20
    (zoo.parent / "masks").rename(zoo.parent / "elsewhere")
    assert mask_area(zoo, "0.png", masks=str(zoo.parent / "elsewhere")) == 34 * 20


# --- what is wrong with a file --------------------------------------------------------------------------------------


def test_an_unknown_image_id_is_said_and_the_rest_goes_on(zoo: Path) -> None:
    edit(zoo, lambda content: content["annotations"].append(content["annotations"][0] | {"id": 77, "image_id": 999}))
    listing = listed(zoo)
    (fault,) = listing.faults
    assert fault.text == f"{zoo}: annotations, item 12 (id 77): left out, there is no image 999."
    assert len(list(listing)) == 12
    splits = built(zoo)
    assert splits.train.dataset.dataset.warnings == [fault.text]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c["annotations"][2].update(category_id=5), "left out, there is no category 5"),
        (lambda c: c["images"][2].update(id=101), "the id 101 was used before"),
        (lambda c: c["images"][2].update(file_name="../../secret.png"), "leads out of the folder"),
        (lambda c: c["images"][2].update(file_name="/etc/secret.png"), "leads out of the folder"),
        (lambda c: c["images"][2].pop("file_name"), "it has no file_name or no id"),
        (lambda c: c["images"][2].update(file_name="1.png"), "1.png is left out, named twice"),
        (lambda c: c["annotations"][2].update(iscrowd=1), "2.png is left out, no object of a known class"),
        (lambda c: c["annotations"][2].update(keypoints=[1, 2, 2]), "its keypoints are left out, they are not 2 ×"),
        (lambda c: c["annotations"][2].update(keypoints=["a"] * 6), "its keypoints are left out, they are not 2 ×"),
    ],
)
def test_what_cannot_be_used_is_left_out_and_named(zoo: Path, change: Callable, why: str) -> None:
    edit(zoo, change)
    listing = listed(zoo)
    assert any(why in fault.text for fault in listing.faults)
    assert all(fault.text.startswith(str(zoo)) for fault in listing.faults)
    assert 11 <= len(list(listing)) <= 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "holds a list of images"),
        ('{"images": []}', "holds a list of annotations"),
        ('{"images": [1], "annotations": []}', "holds a list of images"),
        ('{"images": [], "annotations": [], "categories": []}', "holds no training image"),
    ],
)
def test_files_that_are_no_coco(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(DaplError, match=message):
        built(tmp_path / "bad.json")
    with pytest.raises(DaplError, match="no such file; give a COCO JSON file"):
        built(tmp_path / "missing.json")


def test_keypoints_and_boxes_outside(zoo: Path) -> None:
    edit(zoo, lambda content: content["annotations"][0].update(keypoints=[4, 5, 2, 60, 7, 2]))
    with pytest.raises(DaplError, match=r"annotation 0: left ear is marked visible at \(60, 7\), outside 0.png"):
        sample_of(zoo, "0.png")
    edit(zoo, lambda content: content["annotations"][1].update(bbox=[200, 3, 4, 4]))
    with pytest.raises(DaplError, match=r"annotation 1: the box .* lies outside 1.png"):
        sample_of(zoo, "1.png")


def test_the_fingerprint_changes_with_the_annotations(zoo: Path) -> None:
    before = built(zoo).train.fingerprint
    assert built(zoo).train.fingerprint == before
    edit(zoo, lambda content: content["annotations"][1]["segmentation"].update(counts="0d0"))
    after = built(zoo).train.fingerprint
    assert after != before
    edit(zoo, lambda content: content["annotations"][0]["keypoints"].__setitem__(0, 3))
    assert built(zoo).train.fingerprint not in (before, after)


def test_without_pycocotools_the_extra_is_named(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(DaplError, match=r"pip install 'dapl\[coco\]'"):
        built(zoo)


# --- segmentations ----------------------------------------------------------------------------------------------------


def test_run_lengths_round_trip() -> None:
    for seed in range(30):
        size = (7 + seed, 60 - seed)
        noise = np.random.default_rng(seed).integers(0, 2, size, dtype=np.uint8)
        mask = noise.repeat(3, 0)[: size[0]] if seed % 2 else noise  # longer runs, too
        for run_lengths in (compressed(mask), uncompressed(mask)):
            assert np.array_equal(decode(run_lengths, size, "here"), mask)
    for value in (0, 1):
        full = np.full((5, 4), value, np.uint8)
        assert np.array_equal(decode(compressed(full), (5, 4), "here"), full)


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ([[1, 1, 5, 5]], "neither run lengths nor a list of polygons"),
        ([[1, 1, 5, 5, 3, 3, 4]], "neither run lengths nor a list of polygons"),
        ([[1, 1, 5, "x", 3, 3]], "neither run lengths nor a list of polygons"),
        ([[1, 1, 5, float("nan"), 3, 3]], "neither run lengths nor a list of polygons"),
        ("mask.png", "neither run lengths nor a list of polygons"),
        ({"size": [4, 5], "counts": [20]}, "the mask is 5×4, but its image is 4×5"),
        ({"counts": [20]}, "the mask is None, but"),
        ({"size": [5, 4], "counts": [3, 3]}, "do not add up to 4×5 pixels"),
        ({"size": [5, 4], "counts": [30, -10]}, "do not add up"),
        ({"size": [5, 4], "counts": 20}, "do not add up"),
        ({"size": [5, 4], "counts": "b0P"}, "do not add up"),  # the last number does not end
        ({"size": [5, 4], "counts": "~~"}, "do not add up"),
        ({"size": [5, 4], "counts": "00"}, "do not add up"),
    ],
)
def test_a_segmentation_that_is_none_is_refused(segmentation: Any, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        decode(segmentation, (5, 4), "zoo.json, annotation 7")
