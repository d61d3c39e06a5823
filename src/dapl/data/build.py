"""From the data section of a config to train, validation and test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapl.common.files import expand_path
from dapl.common.plugins import DATASET_GROUP, find_builder
from dapl.config import CocoData, CubData, DataSection, FaceForensicsData, FolderData, GivenData, ToyBirdsData
from dapl.config.data import SplitData
from dapl.data.sample import Dataset, Splits, train_validation

if TYPE_CHECKING:
    from dapl.data.listing import Listing

Builder = Callable[[Any], tuple[Dataset, Dataset] | Splits]
DATASETS: dict[str, Builder] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Make a data set known by the name that ``data.name`` gives.

    A builder returns (train, test), and validation is taken out of train; or `Splits` where the data set says itself
    what is for validation.
    """

    def add(builder: Builder) -> Builder:
        DATASETS[name] = builder
        return builder

    return add


def build_splits(config: DataSection) -> Splits:
    name: str = config.name  # type: ignore[attr-defined]
    built = find_builder(name, DATASETS, DATASET_GROUP, "data.name")(config)
    if isinstance(built, Splits):
        return built
    train, test = built
    kept, validation = train_validation(train, config.validation_share, config.validation_seed)
    return Splits(kept, validation, test)


@register("toybirds")
def _toybirds(config: ToyBirdsData) -> tuple[Dataset, Dataset]:
    from dapl.data.toybirds import ToyBirds

    def birds(split: str, images_per_class: int) -> ToyBirds:
        return ToyBirds(
            classes=config.classes,
            images_per_class=images_per_class,
            size=config.image_size,
            seed=config.seed,
            background_cue=config.background_cue,
            split=split,
        )

    return birds("train", config.images_per_class), birds("test", config.test_images_per_class)


@register("cub")
def _cub(config: CubData) -> tuple[Dataset, Dataset]:
    from dapl.data.cub import Cub200

    root = expand_path(config.root, "data.root")
    return tuple(  # type: ignore[return-value]
        Cub200(root, split=split, classes=config.classes, crop=config.crop) for split in ("train", "test")
    )


@register("faceforensics")
def _faceforensics(config: FaceForensicsData) -> Splits:
    """The official validation split, not a share of train: frames of one video would be on both sides of that."""
    from dapl.data.faceforensics import FaceForensics, read_manifest

    root = expand_path(config.root, "data.root")
    manifest = read_manifest(root)
    return Splits(*(FaceForensics(root, split, manifest) for split in ("train", "val", "test")))


@register("folder")
@register("coco")
def _listed(config: SplitData) -> tuple[Dataset, Dataset] | Splits:
    from dapl.data.listing import refuse_unusable, split_listing

    listing = list_files(config)
    assert listing is not None
    refuse_unusable(listing)
    return split_listing(listing, config.test_share, config.split_seed)


def list_files(config: DataSection) -> Listing | None:
    """The images of a folder or of COCO files as they are listed, good and bad; None for other data."""

    def path(field: str) -> Path | None:
        value = getattr(config, field)
        return None if value is None else expand_path(value, f"data.{field}")

    if isinstance(config, FolderData):
        from dapl.data.folder import read_folder

        return read_folder(expand_path(config.root, "data.root"), path("masks"), path("keypoints"))
    if isinstance(config, CocoData):
        from dapl.data.coco import read_coco

        files = {split: file for split in ("train", "validation", "test") if (file := path(split)) is not None}
        folders = {"train": path("images")} | {split: path(f"{split}_images") for split in ("validation", "test")}
        images = {split: folders[split] or folders["train"] for split in files}
        return read_coco(files, images, config.class_from, config.mask_of, config.classes, path("masks"))
    return None


@register("given")
def _given(config: GivenData) -> tuple[Dataset, Dataset]:
    from dapl.data.in_memory import not_by_name

    raise not_by_name()
