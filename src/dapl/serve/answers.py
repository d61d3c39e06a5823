"""The answers of the API, as they stand in its OpenAPI schema."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dapl.runs.marks import NOTE_LENGTH

Box = tuple[int, int, int, int]


class Problem(BaseModel):
    detail: str = Field(description="What was wrong, in one sentence.")


class Measured(BaseModel):
    """On the test split, with a 95 % interval."""

    value: float
    low: float | None = None
    high: float | None = None


class RunFacts(BaseModel):
    name: str
    system: str
    backbone: str
    data: str
    image_size: int = Field(description="Side of the square image that the model sees; boxes are in its pixels.")
    heads: int = Field(description="Attention heads; 1 where a system has none.")
    classes: int
    prototypes: int
    kept: int = Field(description="Prototypes that were not removed.")
    examples: int = Field(description="Test images at hand.")
    note: str | None = Field(description="What is not at hand, in one sentence.")
    numbers: dict[str, Measured] = Field(description="What `dapl evaluate` measured.")


class ClassFacts(BaseModel):
    index: int
    name: str
    prototypes: list[int] = Field(description="Those that count.")


class Mark(BaseModel):
    prototype: int
    of: list[str] = Field(description="Classes of the prototype.")
    note: str
    at: str


class MarkList(BaseModel):
    marks: list[Mark]


class NewMark(BaseModel, extra="forbid"):
    note: str = Field("", max_length=NOTE_LENGTH, description="Why it is bad.")


class Source(BaseModel):
    """The training patch that a prototype is."""

    image: str = Field(description="Its name within the data set.")
    box: list[int] | None
    location: list[int] | None = Field(description="[row, column] on the feature grid.")
    foreground_share: float | None
    region_foreground: float | None
    grounded: bool | None


class Prototype(BaseModel):
    index: int
    of: list[str]
    head: int
    kept: bool
    reason: str | None = Field(description="Why it was removed.")
    weights: list[float] = Field(description="For each class of `of`.")
    source: Source | None
    patch: str | None = Field(description="URL of its training patch.")
    note: str | None = Field(description="Of its mark; null where it is not marked as bad.")


class PrototypeList(BaseModel):
    prototypes: list[Prototype]


class Example(BaseModel):
    index: int
    name: str
    label: int
    class_name: str
    image: str = Field(description="URL.")


class ExampleList(BaseModel):
    total: int = Field(description="Of all that fit the question.")
    examples: list[Example]


class Patch(BaseModel):
    """A close-up of the training image around a prototype's region."""

    image: str = Field(description="URL.")
    width: int
    height: int
    box: Box | None = Field(description="The region in it; null where it is the region.")


class Row(BaseModel):
    """One prototype's word for one class; contribution = similarity · weight, or 0 while it is switched off."""

    prototype: int
    of: list[str]
    own: bool = Field(description="Whether the explained class is one of them.")
    head: int
    similarity: float
    weight: float
    contribution: float
    switched_off: bool
    location: tuple[int, int] = Field(description="(row, column) on the feature grid.")
    place: tuple[float, float] = Field(description="The same as (x, y) in pixels of the image.")
    box: Box = Field(description="Left, top, right, bottom of its region in the image, the last two exclusive.")
    part: str | None
    part_from: str | None = Field(description="`image`: its region lies on it here; `prototype`: its patch shows it.")
    foreground: float | None = Field(description="Share of the region that lies on the object, where that is known.")
    background: bool
    source: Source | None
    heat: str = Field(description="URL of a transparent PNG: where it is active in the image.")
    attention: str | None = Field(description="The same: from where that place took its values.")
    patch: Patch | None


class Rest(BaseModel):
    prototypes: int
    contribution: float


class ClassEvidence(BaseModel):
    """total = Σ contribution of rows + rest = logit."""

    index: int
    name: str
    logit: float
    probability: float
    before: float = Field(description="The logit with every prototype switched on.")
    rows: list[Row]
    rest: Rest
    total: float


class Ranked(BaseModel):
    index: int
    name: str
    logit: float
    probability: float
    before: float = Field(description="The probability with every prototype switched on.")


class AskedImage(BaseModel):
    id: str = Field(description="For more questions about it, as long as the server remembers it.")
    name: str | None
    label: int | None = Field(description="Its true class, where that is known.")
    url: str = Field(description="The image as the model sees it.")


class Answer(BaseModel):
    image: AskedImage
    predicted: int = Field(description="The class with the highest logit.")
    predicted_before: int = Field(description="The same with every prototype switched on.")
    ranking: list[Ranked] = Field(description="The best classes and those explained, highest logit first.")
    classes: list[ClassEvidence]
    switched_off: list[int]
