"""Which data: one class per data set, told apart by `data.name`; other packages may bring more."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from dapl.common.plugins import DATASET_GROUP
from dapl.config.section import LARGEST_SEED, MOST_CLASSES, Section, or_plugin

_MOST_IMAGES = 10_000_000


class DataSection(Section):
    """Fields that every data set has."""

    tau: ClassVar[float] = 0.2
    """τ of Coverage and Diversity on this data, where none is given: the share of a part that a region must cover."""

    image_size: int = Field(224, ge=32, le=4096, description="Side of the square image that the model sees, in pixels.")
    fit: Literal["stretch", "crop", "pad"] = Field(
        "stretch",
        description="How an image becomes square: stretched (as ProtoPNet), the centre cropped, or padded.",
    )
    validation_share: float = Field(
        0.1, gt=0, lt=1, description="Share of train held out for validation, stratified by class (decision 8)."
    )
    validation_seed: int = Field(
        0,
        ge=-LARGEST_SEED,
        le=LARGEST_SEED,
        description="Seed of that hold-out; apart from `seed` so that seeds share it.",
    )


class ToyBirdsData(DataSection):
    """Procedurally drawn birds with exact part masks."""

    name: Literal["toybirds"] = "toybirds"
    classes: int = Field(10, ge=2, le=MOST_CLASSES, description="Number of classes.")
    images_per_class: int = Field(
        30, ge=2, le=1_000_000, description="Training images per class (validation is taken from them)."
    )
    test_images_per_class: int = Field(20, ge=1, le=1_000_000, description="Test images per class.")
    background_cue: float = Field(0.0, ge=0, le=1, description="Probability that the background gives the class away.")
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="Seed of the classes and images.")

    @model_validator(mode="after")
    def _can_be_listed(self) -> ToyBirdsData:
        images = self.classes * (self.images_per_class + self.test_images_per_class)
        if images > _MOST_IMAGES:
            raise ValueError(f"{images:,} images are more than the {_MOST_IMAGES:,} that can be listed. Ask for fewer.")
        return self


class CubData(DataSection):
    """CUB-200-2011 in its published layout."""

    name: Literal["cub"] = "cub"
    root: str = Field("$DAPL_CUB", description="Folder of CUB_200_2011; ~ and environment variables are expanded.")
    classes: int | list[int | str] | None = Field(
        None, description="All classes (null), every n-th (an integer: 10 gives CUB-20), or a list of names or numbers."
    )
    crop: Literal["none", "box"] = Field("none", description="Whole images, or cut to the bounding box (decision 9).")


class FaceForensicsData(DataSection):
    """Faces of FaceForensics++ with its official train, val and test, as `dapl prepare faceforensics` leaves them."""

    tau: ClassVar[float] = 0.5  # the paper's for faces

    name: Literal["faceforensics"] = "faceforensics"
    root: str = Field(
        "$DAPL_FACEFORENSICS",
        description="Folder that was prepared (not the videos); ~ and environment variables are expanded.",
    )


class SplitData(DataSection):
    """Fields of data that may come without a test split of its own."""

    test_share: float = Field(
        0.2, gt=0, lt=1, description="Share held out for test, stratified by class, where the data has no test split."
    )
    split_seed: int = Field(0, ge=-LARGEST_SEED, le=LARGEST_SEED, description="Seed of that hold-out.")


class FolderData(SplitData):
    """A folder of class folders, maybe below train, val and test, maybe with masks/ and a table of keypoints."""

    name: Literal["folder"] = "folder"
    root: str = Field(description="The folder; ~ and environment variables are expanded.")
    masks: str | None = Field(None, description="Folder of masks named like the images; null: ROOT/masks if there.")
    keypoints: str | None = Field(
        None, description="CSV of keypoints (image, part, x, y[, visible]); null: ROOT/keypoints.csv if there."
    )


class ShardData(SplitData):
    """Tar shards in the layout of WebDataset; see docs/own-data.md."""

    name: Literal["webdataset"] = "webdataset"
    root: str = Field(description="Folder of train-….tar and maybe validation-….tar and test-….tar; ~ is expanded.")


class TableData(SplitData):
    """Parquet files or another data set of the library `datasets`; see docs/own-data.md."""

    name: Literal["huggingface"] = "huggingface"
    root: str = Field(description="Folder of Parquet files or of `save_to_disk`, or a name on the Hugging Face Hub.")
    image: str = Field("image", description="Column of the images.")
    label: str = Field("label", description="Column of the classes, as numbers or names.")
    mask: str | None = Field(None, description="Column of the masks; null: there are none.")


class CocoData(SplitData):
    """COCO JSON: boxes, segmentations, keypoints."""

    name: Literal["coco"] = "coco"
    train: str = Field(description="JSON file of the training images; ~ and environment variables are expanded.")
    validation: str | None = Field(None, description="JSON file for validation; null: `validation_share` of train.")
    test: str | None = Field(None, description="JSON file for test; null: `test_share` of train.")
    images: str | None = Field(None, description="Folder of the images; null: near the JSON file.")
    validation_images: str | None = Field(None, description="The same for validation; null: as `images`.")
    test_images: str | None = Field(None, description="The same for test; null: as `images`.")
    class_from: str = Field(
        "category", description="category, or attribute:NAME of the annotation or the image: what a class is."
    )
    classes: list[str] | None = Field(None, description="Only these classes; null: all that occur.")
    mask_of: Literal["object", "class"] = Field(
        "object", description="Foreground: the largest object, or all objects of its class in the image."
    )
    masks: str | None = Field(
        None, description="Folder of masks for objects without segmentation; null: masks/ beside the JSON file."
    )


class GivenData(DataSection):
    """Data sets handed over in Python; see docs/own-data.md."""

    name: Literal["given"] = "given"


DataConfig = Annotated[
    ToyBirdsData | CubData | FaceForensicsData | FolderData | ShardData | TableData | CocoData | GivenData,
    Field(discriminator="name"),
    or_plugin(DATASET_GROUP, "name"),
    SerializeAsAny(),
]
