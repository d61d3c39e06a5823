"""From the data section of a config to train, validation and test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dapl.config import CubData, DataSection, ToyBirdsData
from dapl.data.sample import Dataset, Splits
from dapl.data.splits import train_validation
from dapl.files import expand_path

Builder = Callable[[Any], tuple[Dataset, Dataset]]
DATASETS: dict[str, Builder] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Make a data set known by the name that ``data.name`` gives; a builder returns (train, test)."""

    def add(builder: Builder) -> Builder:
        DATASETS[name] = builder
        return builder

    return add


def build_splits(config: DataSection) -> Splits:
    train, test = DATASETS[config.name](config)  # type: ignore[attr-defined]
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
