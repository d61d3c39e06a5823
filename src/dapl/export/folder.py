"""An exported folder: its files, what the small ones say, the patches of the prototypes as JPEGs, the model card.

config.json         which model, its classes, how images are brought to it
model.safetensors   its weights
prototypes.json     where each prototype came from, and the part that its patch shows
prototypes/         the patch of each prototype, one JPEG each, so that explanations need no training data
prototypes.png      the wall of prototypes, for the model card
metrics.json        what `dapl evaluate` measured
README.md           the model card: what a person reads first on the hub, and the front matter that the hub reads
model.onnx          the same model for ONNX Runtime

No file of it can run code when it is read.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from PIL import Image
from pydantic import BaseModel, Field
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.common.reading import checked, read_as, read_json
from dapl.config import ModelConfig
from dapl.evaluation.result import chance_sentence, warning_text
from dapl.explain.draw import encoded, to_pil
from dapl.explain.patches import Patch, PatchSource
from dapl.metrics.registry import METRICS as REGISTERED
from dapl.metrics.registry import NUMBERS, shown
from dapl.runs.outlines import moved
from dapl.runs.schemas import PrototypeLook, PrototypeRecord

FORMAT = 1
CONFIG, WEIGHTS, CARD, METRICS = "config.json", "model.safetensors", "README.md", "metrics.json"
RECORDS, IMAGES, WALL, ONNX = "prototypes.json", "prototypes", "prototypes.png", "model.onnx"
NAMES = (CONFIG, WEIGHTS, CARD, METRICS, RECORDS, IMAGES, WALL, ONNX)
LARGEST = 160
"""Longer side of a prototype's image in pixels; a patch that is smaller stays as it is."""
QUALITY = 88
MAX_BYTES = 1 << 20
"""An image of an export that is larger was not made by us."""


class ExportData(BaseModel, frozen=True):
    """How an image is brought to the model; the fields are called as in the data section of a config."""

    name: str = Field("", description="Name of the data set that the model was trained on.")
    image_size: int = Field(ge=2, le=4096)
    fit: Literal["stretch", "crop", "pad"]


class ExportConfig(BaseModel, frozen=True):
    """config.json. What is not known is ignored: the hub and newer versions may add fields."""

    format: Literal[1] = 1
    library_name: Literal["dapl"] = "dapl"
    version: str = Field("", description="Version of dapl that exported it.")
    model: ModelConfig
    classes: list[str] = Field(min_length=1, description="In the order of the logits.")
    data: ExportData
    mean: list[float] = Field(min_length=3, max_length=3, description="Subtracted inside the model from [0, 1].")
    std: list[float] = Field(min_length=3, max_length=3, description="Divided by after that.")


class PatchRecord(BaseModel, frozen=True):
    """An image in prototypes/."""

    index: int = Field(ge=0)
    outline: str | None = Field(None, pattern=r"^[MLZ0-9. -]*$", description="Of its region, as path data of SVG.")


class ExportRecords(BaseModel):
    """prototypes.json."""

    prototypes: list[PrototypeRecord] = []
    patches: list[PatchRecord] = []
    looks: list[PrototypeLook] = Field([], description="Where each prototype looks, as `dapl evaluate` measured it.")


def image_name(prototype: int) -> str:
    """Name of the file in prototypes/, made from the number and never read from a file: no export can name a path."""
    return f"{prototype:05d}.jpg"


ADVICE = "`dapl export RUN` makes a whole folder"


def read_config(folder: Path) -> ExportConfig:
    path = folder / CONFIG
    values = read_json(path, ADVICE)
    if not isinstance(values, dict) or values.get("library_name") != "dapl":
        raise DaplError(f"{path}: does not describe a model of dapl; `dapl export RUN` makes a folder that does.")
    if values.get("format") != FORMAT:
        raise DaplError(f"{path}: export format {values.get('format')!r}, this version reads {FORMAT}; export it anew.")
    return checked(values, ExportConfig, path, "export the run anew")


def read_records(folder: Path) -> ExportRecords:
    path = folder / RECORDS
    return read_as(path, ExportRecords, "export the run anew")


def check_replaceable(folder: Path) -> None:
    """Only an earlier export may be replaced: a folder with anything else in it is refused."""
    if not folder.exists():
        return
    foreign = [] if not folder.is_dir() else sorted(path.name for path in folder.iterdir() if path.name not in NAMES)
    if not folder.is_dir() or foreign:
        what = f"holds {foreign[0]}, which no export does" if foreign else "is not a folder"
        raise DaplError(f"{folder}: {what}; name a new folder with --out.")


@dataclass(frozen=True)
class ExportedImage:
    """What a prototype was projected on, with some of its surroundings."""

    jpeg: bytes = field(repr=False)
    outline: str | None = None
    """Outline of the prototype's region in it, as path data of SVG."""


class ExportedPatches(PatchSource):
    """Patches from the images of an export."""

    def __init__(self, images: Mapping[int, ExportedImage]) -> None:
        super().__init__()
        self.images = images

    def patch(self, record: PrototypeRecord) -> Patch | None:
        image = self.images.get(record.index)
        if image is None:
            return None
        try:
            return Patch(decoded(image.jpeg, record.index), None, image.outline)
        except DaplError as error:
            self.problem = self.problem or str(error)
            return None


def take_images(
    records: list[PrototypeRecord], patches: PatchSource, cropped: bool = False
) -> dict[int, ExportedImage]:
    """The image of every prototype whose source is at hand, by index; ``cropped``: all that its head saw."""
    found = {}
    for record in records:
        patch = patches.patch(record)
        if patch is not None:
            found[record.index] = _encoded(patch.cut() if cropped else patch.close_up())
    return found


def _encoded(patch: Patch) -> ExportedImage:
    image = to_pil(patch.image)
    outline, longer = patch.outline, max(image.size)
    if longer > LARGEST:
        scale = LARGEST / longer
        image = image.resize(
            (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.LANCZOS
        )
        outline = None if outline is None else moved(outline, 0, 0, scale)
    return ExportedImage(encoded(image, "JPEG", quality=QUALITY, subsampling=0, optimize=True), outline)


def decoded(jpeg: bytes, prototype: int) -> Tensor:
    """uint8 3×h×w. Nothing but a JPEG of a sane size is tried."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
            if max(image.size) > 4 * LARGEST:
                raise DaplError(f"the image of prototype {prototype} is too large; export the run anew.")
            pixels = np.array(image.convert("RGB"))
    except DaplError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken data
        raise DaplError(f"the image of prototype {prototype} is no JPEG ({error}); export the run anew.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


_SYSTEMS = {
    "parts": "Parts (heads that are parts, each judged by its own crop of the image)",
    "dapl": "DAPL (Diversity-Aware Prototype Learning)",
    "protopnet": "ProtoPNet",
    "protopshare": "ProtoPShare",
    "pixpnet": "PixPNet",
    "blackbox": "a linear layer on pooled features, without prototypes",
}
_FITTED = {"stretch": "stretched to a square", "crop": "cut to the central square", "pad": "padded to a square"}

_PLAIN = re.compile(r"[\w .,'()-]+")


@dataclass(frozen=True)
class ModelCard:
    """What README.md of an exported folder says; ``str(card)`` is the file."""

    config: ExportConfig
    metrics: Mapping[str, Any] | None
    """As `dapl evaluate` wrote them."""
    prototypes: int
    kept: int
    beside: int
    """Prototypes of which more than half lies off the object."""
    has_images: bool
    has_wall: bool
    has_onnx: bool

    def __str__(self) -> str:
        front = yaml.safe_dump(self._front_matter(), sort_keys=False, allow_unicode=True)
        sections = filter(None, (self._about(), self._use(), self._numbers(), self._patches()))
        return f"---\n{front}---\n\n" + "\n\n".join(sections) + "\n"

    @property
    def _protocol(self) -> Mapping[str, Any]:
        return (self.metrics or {}).get("protocol", {})

    def _measured(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The numbers of the card that metrics.json of the run has."""
        numbers = (self.metrics or {}).get("numbers")
        for name in (metric.name for metric in REGISTERED if metric.card):
            number = numbers.get(name) if isinstance(numbers, dict) else None
            if isinstance(number, dict) and _finite(number.get("value")):
                yield name, number

    def _front_matter(self) -> dict[str, Any]:
        system = self.config.model.system
        found: dict[str, Any] = {
            "library_name": "dapl",
            "pipeline_tag": "image-classification",
            "tags": list(dict.fromkeys(("dapl", system, "prototypes", "interpretability"))),
        }
        measured = [
            {"type": name, "name": NUMBERS[name].heading, "value": number["value"]} for name, number in self._measured()
        ]
        if measured:
            data = str(self._protocol.get("data") or self.config.data.name or "unknown")
            dataset = {"type": data, "name": data, "split": str(self._protocol.get("split", "test"))}
            results = [{"task": {"type": "image-classification"}, "dataset": dataset, "metrics": measured}]
            found["model-index"] = [{"name": f"{system}-{data}", "results": results}]
        return found

    def _about(self) -> str:
        config = self.config
        system, classes = _SYSTEMS.get(config.model.system, config.model.system), config.classes
        text = f"An image classifier of {len(classes)} classes: {system} on {config.model.backbone.name}."
        if self.prototypes:
            text += (
                f" It compares parts of an image with {self.kept} prototypes, each of them a patch of a training "
                "image, and its logits are sums of similarity × weight: every decision can be taken apart into what "
                "looked like what."
            )
        names = ", ".join(map(_code, classes[:10])) + (f", … ({len(classes) - 10} more)" if len(classes) > 10 else "")
        title = f"# {system.split(' (')[0]} on {html.escape(config.data.name) or 'images'}"
        return f"{title}\n\n{text}\n\nClasses: {names}. `config.json` has them in the order of the logits."

    def _use(self) -> str:
        size, how = self.config.data.image_size, _FITTED[self.config.data.fit]
        code = ["import dapl", 'model = dapl.load("FOLDER")', 'print(model.predict("image.jpg"))']
        if self.prototypes:
            code.append('model.explain("image.jpg").save("why.html")')
        paragraphs = [
            "## Use",
            "With `dapl` installed and `FOLDER` the folder of this file:",
            "\n".join(["```python", *code, "```"]),
            "From the hub, by its name, the model is `dapl.export.hub.ExportedModel.from_pretrained(NAME)`.",
            f"Images are {how} of {size}×{size} pixels; normalisation is inside the model.",
        ]
        if self.has_onnx:
            outputs = "`logits` B×C, `scores` B×P and activation `maps` B×P×H×W"
            paragraphs.append(
                f"`{ONNX}` is the same model for ONNX Runtime: `images` float32 B×3×{size}×{size}, RGB in [0, 1], in; "
                f"{outputs if self.prototypes else '`logits` B×C and `scores`'} out."
            )
        return "\n\n".join(paragraphs)

    def _numbers(self) -> str:
        rows = [
            f"| {NUMBERS[name].heading} | {shown(name, number['value'], 3)} | {_interval(name, number)} |"
            for name, number in self._measured()
        ]
        if not rows:
            return "## Numbers\n\nNothing was measured before the export."
        where = html.escape(f"{self._protocol.get('data', 'data')}, {self._protocol.get('split', 'test')} split")
        if isinstance(self._protocol.get("images"), int):
            where += f", {self._protocol['images']} images"
        table = "\n".join(["| | value | 95 % interval |", "|---|---|---|", *rows])
        text = f"## Numbers\n\nOn {where}; `{METRICS}` has all of them and the protocol.\n\n{table}"
        chance = chance_sentence((self.metrics or {}).get("chance"))
        text += f"\n\n{chance}" if chance else ""
        said = self._protocol.get("notice")
        text += f"\n\nAbout the accuracy: {html.escape(str(said), quote=False)}." if said else ""
        warnings = (self.metrics or {}).get("warnings")
        return text + (f"\n\n**Warning:** {html.escape(warning_text(warnings), quote=False)}" if warnings else "")

    def _patches(self) -> str:
        if not self.has_images:
            return ""
        text = f"## Prototypes\n\n`{IMAGES}/` holds the patch of each; `prototypes.json` says where it came from."
        if self.beside:
            text += f" Of {self.beside} of the {self.kept}, more than half lies off the object."
        return text + (f"\n\n![Prototypes, one row per class]({WALL})" if self.has_wall else "")


def _code(name: str) -> str:
    """A name as it is, whatever it holds. One with signs that HTML or Markdown read has them as numbers.

    >>> _code("Indigo Bunting"), _code("<b>")
    ('`Indigo Bunting`', '<code>&#60;b&#62;</code>')
    """
    name = " ".join(name.split())
    if _PLAIN.fullmatch(name):
        return f"`{name}`"
    return f"<code>{''.join(sign if _PLAIN.fullmatch(sign) else f'&#{ord(sign)};' for sign in name)}</code>"


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _interval(name: str, number: Mapping[str, Any]) -> str:
    low, high = (number.get(end, math.nan) for end in ("low", "high"))
    return f"{shown(name, low, 3)} … {shown(name, high, 3)}" if _finite(low) and _finite(high) else ""
