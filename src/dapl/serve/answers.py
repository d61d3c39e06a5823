"""The answers of the API, as they stand in its OpenAPI schema; what they say of evidence is described in `explain`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dapl.explain.drawings import Label
from dapl.explain.evidence import Rest, Source
from dapl.explain.local import ShownReason
from dapl.runs.marks import NOTE_LENGTH


class Problem(BaseModel):
    detail: str = Field(description="What was wrong, in one sentence.")


class Health(BaseModel):
    status: str = Field(description="ok.")


class MeasuredNumber(BaseModel):
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
    numbers: dict[str, MeasuredNumber] = Field(description="What `dapl evaluate` measured.")
    warning: str | None = Field(description="Why its numbers and reasons are not to be believed, where that is so.")
    notice: str | None = Field(description="What must be said beside the accuracy, where there is something.")


class ClassFacts(BaseModel):
    index: int
    name: str
    prototypes: list[int] = Field(description="Those that count.")


class ListedMark(BaseModel):
    prototype: int
    of: list[str] = Field(description="Classes of the prototype.")
    note: str
    at: str


class MarkList(BaseModel):
    marks: list[ListedMark]


class NewMark(BaseModel, extra="forbid"):
    note: str = Field("", max_length=NOTE_LENGTH, description="Why it is bad.")


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


class Ranked(BaseModel):
    index: int
    name: str
    logit: float
    probability: float
    before: float = Field(description="The probability with every prototype switched on.")


class ClassAnswer(BaseModel):
    """total = Σ contribution of rows + rest = logit."""

    index: int
    name: str
    logit: float
    probability: float
    before: float = Field(description="The logit with every prototype switched on.")
    rows: list[ShownReason]
    labels: list[Label] = Field(description="The names of the rows that have a region, and where they point to.")
    notes: list[str] = Field(description="Which rows look at the same spot.")
    warning: str | None = Field(description="What must be said where the reasons rest on background.")
    rest: Rest
    total: float


class AnsweredImage(BaseModel):
    id: str = Field(description="For more questions about it, as long as the server remembers it.")
    name: str | None
    label: int | None = Field(description="Its true class, where that is known.")
    url: str = Field(description="The image as the model sees it.")
    seen: str = Field(description="Which part of the image file that is, as a sentence; empty where it is all of it.")


class Answer(BaseModel):
    image: AnsweredImage
    predicted: int = Field(description="The class with the highest logit.")
    predicted_before: int = Field(description="The same with every prototype switched on.")
    ranking: list[Ranked] = Field(description="The best classes and those explained, highest logit first.")
    classes: list[ClassAnswer]
    switched_off: list[int]
