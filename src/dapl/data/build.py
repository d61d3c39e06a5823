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
    return built if isinstance(built, Splits) else _with_validation(built[0], built[1], config)


def _with_validation(train: Dataset, test: Dataset, config: DataSection) -> Splits:
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
@register("faceforensics")
@register("folder")
@register("coco")
def _listed(config: DataSection) -> Splits:
    from dapl.data.listing import refuse_unusable

    listing = list_files(config)
    assert listing is not None
    refuse_unusable(listing)
    return split_listing(listing, config)


def list_files(config: DataSection) -> Listing | None:
    """The images of a data set that is a list of files, good and bad ones; None for other data."""

    def path(field: str) -> Path | None:
        value = getattr(config, field)
        return None if value is None else expand_path(value, f"data.{field}")

    if isinstance(config, CubData):
        from dapl.data.cub import read_cub

        return read_cub(expand_path(config.root, "data.root"), config.classes)
    if isinstance(config, FaceForensicsData):
        from dapl.data.faceforensics import read_faceforensics

        return read_faceforensics(expand_path(config.root, "data.root"))
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


def split_listing(listing: Listing, config: DataSection) -> Splits:
    """What the data does not tell apart itself is taken out of train, stratified: the same for the same seeds."""
    crop = config.crop if isinstance(config, CubData) else "none"
    train: Dataset = listing.dataset("train", crop)
    if "test" in listing.records:
        test: Dataset = listing.dataset("test", crop)
    else:
        assert isinstance(config, SplitData)
        train, test = train_validation(train, config.test_share, config.split_seed)
    if "validation" in listing.records:
        return Splits(train, listing.dataset("validation", crop), test)
    return _with_validation(train, test, config)


@register("given")
def _given(config: GivenData) -> tuple[Dataset, Dataset]:
    from dapl.data.in_memory import not_by_name

    raise not_by_name()
