"""What the files of a run hold, with bounds: the schemas by which all of them are read. Imports no torch.

Fields that are not named here pass through, so that a newer version may add some; what older versions called
otherwise is understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field

MOST = 10**9
Count = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Name = Annotated[str, Field(strict=True, max_length=10_000)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]


def _box(sides: list[int]) -> list[int]:
    left, top, right, bottom = sides
    if not (left < right and top < bottom):
        raise ValueError("a box is [left, top, right, bottom] with left < right and top < bottom")
    return sides


BoxSides = Annotated[list[Count], Field(min_length=4, max_length=4), AfterValidator(_box)]

Location = Annotated[list[Count], Field(min_length=2, max_length=2)]


@dataclass
class PrototypeRecord:
    """One prototype. Pixels are those of the square image that the model sees (``data.image_size``)."""

    index: Count
    """j = class·N + head, from 0."""
    classes: list[Name]
    """The class it belongs to; several after merging."""
    head: Count
    kept: Flag = True
    reason: Name | None = None
    """Why it was removed."""
    image: Name | None = None
    """Name of the training image it was projected on; None before projection."""
    location: Location | None = None
    """[row, column] on the feature grid."""
    box: BoxSides | None = None
    """[left, top, right, bottom] in pixels, right and bottom exclusive: bounds of the activation region (of a head that
    sees a square and no more: that square); None before
    projection, and where the map is flat, so that there is no region."""
    outline: Annotated[str, Field(strict=True, max_length=1_000_000)] | None = None
    """Outline of the activation region in pixels of that image, as path data of SVG; None where there is no region."""
    distance: Number | None = None
    """Squared distance from the prototype to that patch before it became the patch."""
    foreground_share: Number | None = None
    """Share of the patch that lies on the object; None without masks."""
    grounded: Flag | None = None
    """False where no patch of the class had enough foreground, so that the best one was taken."""
    region_foreground: Number | None = None
    """Mean foreground share of its region on the validation images of its class, as pruning saw it."""


def _numbered(records: list[PrototypeRecord]) -> list[PrototypeRecord]:
    for place, record in enumerate(records):
        if record.index != place:
            raise ValueError(f"place {place} holds prototype {record.index}, where they stand in order")
    return records


Records = Annotated[list[PrototypeRecord], AfterValidator(_numbered)]


class _File(BaseModel):
    model_config = ConfigDict(extra="allow")


class DataFile(_File):
    """data.json."""

    classes: list[Name] = Field(min_length=1)
    parts: list[Name] = []
    images: dict[Name, Count] = Field({}, validation_alias=AliasChoices("images", "pictures"))


class PrototypesFile(_File):
    """prototypes.json."""

    prototypes: Records


class EnvironmentFile(_File):
    """environment.json."""

    versions: dict[Name, Name | None] = {}


class NumberEntry(_File):
    """A number of an evaluation with its interval; null where there is none."""

    value: Number | None
    low: Number | None = None
    high: Number | None = None


class MeasuredUnder(_File):
    """The protocol of an evaluation, as far as others read it."""

    data: Name | None = None
    split: Name | None = None
    images: Count = Field(0, validation_alias=AliasChoices("images", "pictures"))
    scope: Name | None = None
    part_mode: Name | None = None
    tau: Number | None = None
    percentile: Number | None = None
    notice: Name | None = None


class EvaluationFile(_File):
    """metrics.json."""

    protocol: MeasuredUnder
    numbers: dict[Name, NumberEntry]
    prototypes: dict[Name, Number | None] = {}
    missing: dict[Name, Name] = {}
    warnings: list[Name] = []
    curves: dict[Name, list[Number | None]] = {}
    chance: dict[Name, Any] | None = None


class KnownEvaluation(_File):
    """metrics/<split>.json."""

    key: dict[Name, Any]
    metrics: list[Name]
    evaluation: EvaluationFile


class LogLine(_File):
    """A line of metrics.jsonl."""

    event: Name
    stage: Count
    name: Name | None = None
    epoch: Count | None = None
    seconds: Number | None = None
    train: dict[Name, Number] | None = None
    validation: dict[Name, Number] | None = None


class CheckpointFacts(_File):
    """What a checkpoint knows beside its tensors."""

    best: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    epoch_sums: dict[Name, Number] = {}
    shared_backbone: Name | list[Name] = []
    prototypes: Records | None = None


class CheckpointHeader(_File):
    """JSON in the header of a checkpoint."""

    format: Count
    position: Annotated[list[Count], Field(min_length=3, max_length=3)]
    facts: CheckpointFacts


@dataclass(frozen=True)
class PrototypeLook:
    """Where one prototype looks, over the images of its classes in the split that `dapl evaluate` measured.

    Plain numbers; what they are called, and which of them is bad, is decided in `dapl.metrics.naming`.
    """

    index: int
    on_object: float | None = None
    """Share of its region that lies on the object, mean over the images; None without masks, or when it was removed."""
    parts: dict[str, float] = field(default_factory=dict)
    """By the name of a part: in which share of the images that show the part the prototype is on it."""
    same_spot: list[int] = field(default_factory=list)
    """Other prototypes of its classes whose regions are nearly the same."""
    shared: dict[str, float] = field(default_factory=dict)
    """By the name of a part: the share of the image that region and part have in common, mean over the same images."""


def looks_to_json(looks: Sequence[PrototypeLook], split: str) -> dict[str, Any]:
    """The content of metrics/prototypes.json; `looks_from_json` reads it.

    >>> looks_to_json([PrototypeLook(0, 0.9)], "test")["split"]
    'test'
    """
    return {"split": split, "prototypes": [asdict(look) for look in looks]}


def looks_from_json(values: dict[str, Any]) -> list[PrototypeLook]:
    """What `looks_to_json` wrote.

    >>> looks_from_json(looks_to_json([PrototypeLook(0, 0.9)], "test"))[0].on_object
    0.9
    """
    return [PrototypeLook(**value) for value in values["prototypes"]]
