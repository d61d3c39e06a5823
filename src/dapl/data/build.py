"""From the data section of a config, or from data sets handed over in Python, to train, validation and test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dapl.common.errors import DaplError
from dapl.common.files import expand_path
from dapl.common.plugins import DATASET_GROUP, find_builder
from dapl.config import CocoData, CubData, DataSection, FaceForensicsData, FolderData, GivenData, ToyBirdsData
from dapl.config.data import ShardData, SplitData, TableData
from dapl.data.sample import SPLITS, Dataset, Sample, Splits, train_validation

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

    counts = {"train": config.images_per_class, "test": config.test_images_per_class}
    train, test = (
        ToyBirds(config.classes, count, config.image_size, config.seed, config.background_cue, split)
        for split, count in counts.items()
    )
    return train, test


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

        files = {split: file for split in SPLITS if (file := path(split)) is not None}
        folders = {"train": path("images")} | {split: path(f"{split}_images") for split in ("validation", "test")}
        images = {split: folders[split] or folders["train"] for split in files}
        return read_coco(files, images, config.class_from, config.mask_of, config.classes, path("masks"))
    return None


def split_listing(listing: Listing, config: DataSection) -> Splits:
    """What the data does not tell apart itself is taken out of train, stratified: the same for the same seeds."""
    crop = config.crop if isinstance(config, CubData) else "none"
    return _by_split({split: listing.dataset(split, crop) for split in listing.records}, config)


@register("webdataset")
def _shards(config: ShardData) -> Splits:
    from dapl.data.shards import read_shards

    return _by_split(read_shards(expand_path(config.root, "data.root")), config)


@register("huggingface")
def _tables(config: TableData) -> Splits:
    from dapl.data.huggingface import read_tables

    root = str(expand_path(config.root, "data.root"))
    return _by_split(read_tables(root, config.image, config.label, config.mask), config)


def _by_split(found: Mapping[str, Dataset], config: DataSection) -> Splits:
    """What the data does not tell apart itself is taken out of train."""
    train = found["train"]
    if "test" in found:
        test = found["test"]
    else:
        assert isinstance(config, SplitData)
        train, test = train_validation(train, config.test_share, config.split_seed)
    if "validation" in found:
        return Splits(train, found["validation"], test)
    return _with_validation(train, test, config)


@register("given")
def _given(config: GivenData) -> Splits:
    raise DaplError(_NOT_BY_NAME)


# --- data handed over in Python -------------------------------------------------------------------------------------

_ATTRIBUTES = ("classes", "parts", "labels", "names", "has_masks", "fingerprint", "__len__", "__getitem__")
_NOT_BY_NAME = (
    "data.name: given stands for data handed over in Python: train(config, out, splits=Splits(train, validation, test))"
    " and evaluate(run, splits=…); see docs/own-data.md."
)


class InMemorySplits:
    """Splits on their way through `launch`: Fabric takes dataclasses apart and refuses frozen ones."""

    def __init__(self, splits: Splits) -> None:
        self._splits = (splits.train, splits.validation, splits.test)

    def splits(self) -> Splits:
        return Splits(*self._splits)


def hand_over(config: DataSection, splits: Splits | None) -> InMemorySplits | None:
    """None where the config itself says which data; an error where it does not fit what was handed over."""
    if splits is None:
        if isinstance(config, GivenData):
            raise DaplError(_NOT_BY_NAME)
        return None
    if not isinstance(config, GivenData):
        name = getattr(config, "name", "?")
        raise DaplError(
            f"data.name: is {name}, but splits were handed over, and a run must not say that it saw other data than it "
            f"did; set config.data = GivenData(…), or leave splits out."
        )
    for which in SPLITS:
        check_dataset(getattr(splits, which), which)
        for what in ("classes", "parts"):
            if list(getattr(getattr(splits, which), what)) != list(getattr(splits.train, what)):
                raise DaplError(f"splits.{which}.{what}: not those of splits.train; they must be, and in that order.")
    return InMemorySplits(splits)


def check_dataset(dataset: Dataset, which: str = "train") -> None:
    """Refuse what is not a `Dataset`; only the first image is read."""
    field = f"splits.{which}"
    missing = next((name for name in _ATTRIBUTES if not hasattr(dataset, name)), None)
    if missing is not None:
        raise DaplError(f"{field}: has no {missing}; a data set has {', '.join(_ATTRIBUTES)}, see docs/own-data.md.")
    count = len(dataset)
    if not count:
        raise DaplError(f"{field}: is empty; hand over one image or more.")
    for name in ("labels", "names"):
        if len(getattr(dataset, name)) != count:
            raise DaplError(f"{field}.{name}: {len(getattr(dataset, name))} of them for {count} images.")
    wrong = next((label for label in dataset.labels if not 0 <= label < len(dataset.classes)), None)
    if wrong is not None:
        raise DaplError(f"{field}.labels: {wrong} is no index of the {len(dataset.classes)} classes.")
    name, times = Counter(dataset.names).most_common(1)[0]
    if times > 1:
        raise DaplError(f"{field}.names: {name!r} stands there {times} times; the name of an image is its own.")
    _check_sample(dataset[0], dataset, f"{field}[0]")


def _check_sample(sample: Sample, dataset: Dataset, field: str) -> None:
    if not isinstance(sample, Sample):
        raise DaplError(f"{field}: is a {type(sample).__name__}; a data set yields dapl.data.sample.Sample.")
    if (sample.name, sample.label) != (dataset.names[0], dataset.labels[0]):
        raise DaplError(f"{field}: its name or label is not what names and labels say.")
    frame, parts = tuple(sample.image.shape[-2:]), len(dataset.parts)
    _check_tensor(f"{field}.image", sample.image, torch.uint8, (3, *frame))
    if (sample.mask is not None) != dataset.has_masks:
        has, says = "a" if sample.mask is not None else "no", dataset.has_masks
        raise DaplError(f"{field}.mask: there is {has} mask, but has_masks is {says}; all images have one, or none.")
    _check_tensor(f"{field}.mask", sample.mask, torch.uint8, frame)
    _check_tensor(f"{field}.keypoints", sample.keypoints, torch.float32, (parts, 2))
    _check_tensor(f"{field}.visible", sample.visible, torch.bool, (parts,))
    _check_tensor(f"{field}.part_masks", sample.part_masks, torch.uint8, (parts, *frame))
    _check_tensor(f"{field}.box", sample.box, torch.float32, (1, 4))


def _check_tensor(field: str, tensor: Any, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if tensor is not None and (tensor.dtype, tuple(tensor.shape)) != (dtype, tuple(shape)):
        found, wanted = ("×".join(map(str, sides)) for sides in (tensor.shape, shape))
        raise DaplError(f"{field}: is {tensor.dtype} {found}; it must be {dtype} {wanted}.")
