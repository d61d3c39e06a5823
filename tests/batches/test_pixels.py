"""Annotations at the size of the model's image, kept beside the pixels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dapl.batches.pixels import AnnotationReader, load_annotations, load_pixels, open_annotations, pixels_key
from dapl.common.errors import DaplError
from dapl.data.cub import read_cub
from dapl.data.sample import Sample
from dapl.data.toybirds import ToyBirds
from dapl.data.transforms import fit


@pytest.fixture(scope="module")
def birds() -> ToyBirds:
    return ToyBirds(classes=2, images_per_class=3, size=50)


@pytest.mark.parametrize("how", ["stretch", "crop", "pad"])
def test_cached_annotations_are_those_of_the_fitted_samples(birds: ToyBirds, tmp_path: Path, how):
    found = load_annotations(birds, 36, how, tmp_path)
    assert len(found) == len(birds)
    masks = found.part_masks()
    for index in range(len(birds)):
        sample = fit(birds[index], 36, how)
        assert torch.equal(found.keypoints[index], sample.keypoints.as_subclass(Tensor))  # type: ignore[union-attr]
        assert torch.equal(found.visible[index], sample.visible)
        assert torch.equal(found.boxes[index], sample.box.as_subclass(Tensor)[0])  # type: ignore[union-attr]
        assert torch.equal(masks[index], sample.part_masks.as_subclass(Tensor).bool())  # type: ignore[union-attr]


def test_rows_are_read_in_any_order(birds: ToyBirds, tmp_path: Path):
    cached = load_annotations(birds, 40, "stretch", tmp_path).rows([4, 0, 4])
    read = AnnotationReader(birds, 40, "stretch").read([4, 0, 4])
    assert torch.equal(cached.keypoints, read.keypoints)
    assert torch.equal(cached.part_masks(), read.part_masks())  # type: ignore[arg-type]


def test_whoever_decodes_the_images_writes_annotations_as_well(birds: ToyBirds, tmp_path: Path):
    load_pixels(birds, 40, "stretch", tmp_path)
    assert open_annotations(tmp_path, pixels_key(birds, 40, "stretch"), 40) is not None


def test_an_older_cache_without_annotations_gets_them(birds: ToyBirds, tmp_path: Path):
    load_pixels(birds, 40, "stretch", tmp_path)
    (tmp_path / f"{pixels_key(birds, 40, 'stretch')}-annotations.npz").unlink()
    told: list[int] = []
    assert len(load_annotations(birds, 40, "stretch", tmp_path, advance=told.append)) == len(birds)
    assert sum(told) == len(birds)


def test_keypoints_without_part_masks(tiny_cub: Path, tmp_path: Path):
    dataset = read_cub(tiny_cub).dataset("test")
    found = load_annotations(dataset, 64, "stretch", tmp_path / "cache")
    assert found.packed is None
    assert found.part_masks() is None
    assert found.visible.any()
    assert not list((tmp_path / "cache").glob("*-parts.npy"))


def test_part_masks_for_some_images_only_are_refused(birds: ToyBirds):
    class Patchy:
        classes, parts, labels, names = birds.classes, birds.parts, birds.labels, birds.names
        has_masks, fingerprint = True, "patchy"

        def __len__(self) -> int:
            return len(birds)

        def __getitem__(self, index: int) -> Sample:
            return replace(birds[index], part_masks=None) if index == 2 else birds[index]

    with pytest.raises(DaplError, match="train/000/0002: has no part masks, unlike the first image"):
        AnnotationReader(Patchy(), 40, "stretch").read([0, 1, 2])
