"""Which data: one class a data set, told apart by `data.name`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapl.config.section import Section


class DataSection(Section):
    """Fields that every data set has."""

    image_size: int = Field(224, ge=32, description="Side of the square picture that the model sees, in pixels.")
    fit: Literal["stretch", "crop", "pad"] = Field(
        "stretch",
        description="How a picture becomes square: stretched (as ProtoPNet), the centre cropped, or padded.",
    )
    validation_share: float = Field(
        0.1, gt=0, lt=1, description="Share of train held out for validation, stratified by class (decision 8)."
    )
    validation_seed: int = Field(0, description="Seed of that hold-out; apart from `seed` so that seeds share it.")


class ToyBirdsData(DataSection):
    """Procedurally drawn birds with exact part masks."""

    name: Literal["toybirds"] = "toybirds"
    classes: int = Field(10, ge=2, description="Number of classes.")
    images_per_class: int = Field(30, ge=2, description="Training pictures of a class (validation is taken from them).")
    test_images_per_class: int = Field(20, ge=1, description="Test pictures of a class.")
    background_cue: float = Field(0.0, ge=0, le=1, description="Probability that the background betrays the class.")
    seed: int = Field(0, ge=0, description="Seed of the classes and pictures.")


class CubData(DataSection):
    """CUB-200-2011 in its published layout."""

    name: Literal["cub"] = "cub"
    root: str = Field("$DAPL_CUB", description="Folder of CUB_200_2011; ~ and environment variables are expanded.")
    classes: int | list[int | str] | None = Field(
        None, description="All classes (null), every n-th (an integer: 10 gives CUB-20), or a list of names or numbers."
    )
    crop: Literal["none", "box"] = Field("none", description="Whole pictures, or cut to the bounding box (decision 9).")


DataConfig = Annotated[ToyBirdsData | CubData, Field(discriminator="name")]
