"""An exported folder: its files, what the small ones say, and the patches of the prototypes as small JPEGs.

config.json         which model, its classes, how images are brought to it
model.safetensors   its weights
prototypes.json     where each prototype came from, and the part that its patch shows
prototypes/         the patch of each prototype, one JPEG each, so that explanations need no training data
prototypes.png      the wall of prototypes, for the model card
metrics.json        what `dapl evaluate` measured
README.md           the model card
model.onnx          the same model for ONNX Runtime

No file of it can run code when it is read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, Field
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.common.reading import checked, read_as, read_json
from dapl.config import ModelConfig
from dapl.explain.draw import encoded, to_pil
from dapl.explain.patches import Patch, PatchSource
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


def first_line(error: Exception) -> str:
    """What an exception of another library says, as much of it as fits into a message of ours."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no reason given"


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
