"""What all data of files has in common, whichever reader listed it: samples, faults, fingerprint."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dapl.common.errors import DaplError
from dapl.config import parse_config
from dapl.data.build import list_files
from dapl.data.listing import FileDataset, ImageRecord, Listing, MaskFile, refuse_unusable
from dapl.data.sample import Dataset


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    """Two classes of two images of 24×16 pixels, each with a mask, two keypoints and a box."""
    records = []
    for number in range(4):
        image, mask = tmp_path / f"{number}.png", tmp_path / f"{number}-mask.png"
        Image.fromarray(np.full((16, 24, 3), 60 * number, np.uint8)).save(image)
        Image.fromarray(np.full((16, 24), 255, np.uint8)).save(mask)
        points = np.array([[6, 4], [18, 12]], np.float32)
        records.append(
            ImageRecord(
                name=image.name,
                path=image,
                label=number % 2,
                mask=MaskFile(mask),
                mask_path=mask,
                points=points,
                visible=np.array([True, True]),
                box=(4.0, 2.0, 20.0, 14.0),
                origin="boxes.txt",
                points_origin="points.txt",
                lines=(2 * number + 1, 2 * number + 2),
            )
        )
    return Listing(str(tmp_path), ["finch", "owl"], ["beak", "tail"], {"train": records})


def changed(listing: Listing, index: int = 0, **fields: Any) -> FileDataset:
    """The data set with other fields of one record."""
    records = list(listing.records["train"])
    records[index] = replace(records[index], **fields)
    return replace(listing, records={"train": records}).dataset()


def points(x: float, y: float) -> np.ndarray:
    return np.array([[x, y], [18, 12]], np.float32)


def test_a_data_set_and_its_samples(listing: Listing) -> None:
    dataset = listing.dataset()
    assert isinstance(dataset, Dataset)
    assert (dataset.labels, dataset.has_masks) == ([0, 1, 0, 1], True)
    sample = dataset[2]
    assert (sample.name, sample.label) == ("2.png", 0)
    assert sample.keypoints.tolist() == [[6, 4], [18, 12]]
    assert sample.box[0].tolist() == [4, 2, 20, 14]
    assert repr(dataset) == f"FileDataset(train of {listing.source}: 4 images, 2 classes)"
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[2].image, sample.image)


def test_cropped_to_the_box(listing: Listing) -> None:
    sample = listing.dataset(crop="box")[1]
    assert sample.image.shape == (3, 12, 16)
    assert sample.keypoints.tolist() == [[2, 2], [14, 10]]


def test_unknown_words(listing: Listing) -> None:
    with pytest.raises(DaplError, match="has no split 'val'; give one of train"):
        listing.dataset("val")
    with pytest.raises(DaplError, match="unknown crop 'bird'; give one of none, box"):
        listing.dataset(crop="bird")  # type: ignore[arg-type]


def test_a_keypoint_on_the_edge_is_kept_and_one_outside_is_named(listing: Listing) -> None:
    edge = changed(listing, points=points(24.8, -0.5))[0]
    assert edge.visible.all()
    assert edge.keypoints[0].tolist() == pytest.approx([24, 0], abs=1e-3)
    message = r"points.txt, line 1: beak is marked visible at \(40, 8\), outside 0.png, which is 24×16"
    with pytest.raises(DaplError, match=message):
        changed(listing, points=points(40, 8))[0]
    nowhere = changed(listing, points=points(40, 8), visible=np.array([False, True]))[0]
    assert nowhere.keypoints[0].tolist() == [0, 0]  # what is not visible may be anywhere
    stray = changed(replace(listing, stray=0.05), points=points(25.1, 8))[0]
    assert stray.visible.tolist() == [False, True]


def test_boxes_are_clipped_and_one_outside_is_named(listing: Listing) -> None:
    clipped = changed(listing, box=(-5.0, 3.0, 30.0, 15.0))[0]
    assert clipped.box[0].tolist() == [0, 3, 24, 15]
    with pytest.raises(DaplError, match=r"boxes.txt: the box \(30, 3\) to \(40, 9\) lies outside 0.png"):
        changed(listing, box=(30.0, 3.0, 40.0, 9.0))[0]


def test_broken_images_and_masks_of_another_size(listing: Listing, tmp_path: Path) -> None:
    Image.new("L", (16, 24)).save(tmp_path / "1-mask.png")
    dataset = listing.dataset()
    with pytest.raises(DaplError, match=r"1-mask.png: the mask is 16×24 pixels, but its image .*1.png is 24×16"):
        dataset[1]
    sample, faults = dataset.examine(1)
    assert sample.mask is None
    assert [fault.kind for fault in faults] == ["mask"]
    with pytest.raises(DaplError, match=r"boxes.txt: says that 0.png is 24×17, but the image is 24×16"):
        changed(listing, size=(17, 24))[0]
    (tmp_path / "0.png").write_bytes(b"broken")
    with pytest.raises(DaplError, match=r"0.png: not an image, or its header is corrupt"):
        dataset[0]
    assert dataset.examine(0)[0] is None


def test_what_cannot_be_trained_on_is_refused(listing: Listing, tmp_path: Path) -> None:
    refuse_unusable(listing)
    finches = [record for record in listing if record.label == 0]
    with pytest.raises(DaplError, match=r"holds one class only \(finch\)"):
        refuse_unusable(replace(listing, records={"train": finches}))
    with pytest.raises(DaplError, match="holds no test image"):
        refuse_unusable(replace(listing, records=listing.records | {"test": []}))
    bare = [replace(record, mask=None) if record.label else record for record in listing]
    with pytest.raises(DaplError, match=r"2 of 4 images have no mask, the first 1.png; `dapl masks` makes"):
        refuse_unusable(replace(listing, records={"train": bare}))
    (tmp_path / "3.png").unlink()
    (tmp_path / "2-mask.png").unlink()
    with pytest.raises(DaplError, match=r"2-mask.png: no such file, .* \(2 missing among 4 images\); put them there"):
        refuse_unusable(listing)


def test_the_fingerprint_changes_with_all_that_changes_a_sample(listing: Listing, tmp_path: Path) -> None:
    seen = [listing.dataset().fingerprint]
    assert listing.dataset().fingerprint == seen[0]
    seen.append(listing.dataset(crop="box").fingerprint)
    seen.append(changed(listing, points=points(6.5, 4)).fingerprint)
    seen.append(changed(listing, visible=np.array([True, False])).fingerprint)
    seen.append(changed(listing, box=(4.0, 2.0, 20.0, 13.0)).fingerprint)
    seen.append(changed(listing, label=1).fingerprint)
    seen.append(changed(listing, mask=None).fingerprint)
    os.utime(tmp_path / "1.png", ns=(1, 1))
    seen.append(listing.dataset().fingerprint)
    os.utime(tmp_path / "1-mask.png", ns=(1, 1))
    seen.append(listing.dataset().fingerprint)
    assert len(set(seen)) == len(seen)


def test_the_listing_of_other_data_is_none() -> None:
    assert list_files(parse_config({"data": {"name": "toybirds"}}).data) is None
