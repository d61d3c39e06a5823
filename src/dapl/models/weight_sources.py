"""Weights that have a name in a config: what they bring with them, where their file is, and what must be said of them.

Weights are more than numbers. Those of a converted network want its paddings and its normalisation, they have a
licence, and what they were trained on may have to be said beside an accuracy. A source keeps all of that together, so
that ``model.backbone.weights: inat_birds`` is all that a config has to say. Imports no torch.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError, WriteError
from dapl.common.files import expand_path, replacing
from dapl.common.reading import LARGEST_DATA, read_bytes

VARIABLE = "DAPL_MODELS"
_DEFAULT_FOLDER = "~/.cache/dapl/models"
_MOST_BYTES = 1 << 28
_SECONDS = 30


@dataclass(frozen=True)
class WeightSource:
    """One named source of weights."""

    name: str
    """As ``model.backbone.weights`` writes it."""
    backbone: str
    """The timm model that the weights are of."""
    file: str
    """The weights under timm's names; made from ``published`` where it is missing."""
    published: str
    """The file as it was published, below ``address``."""
    address: str
    checksum: str
    """SHA-256 of the published file."""
    licence: str
    title: str
    """What it is, in a few words."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """How timm has to create the model."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    folded: bool = False
    """Whether batch-norm is folded into the convolutions, and only adds a bias."""
    notices: Mapping[str, str] = field(default_factory=dict)
    """What must be said beside an accuracy, by the name of the data set."""


INAT_BIRDS = WeightSource(
    name="inat_birds",
    backbone="mobilenetv2_100",
    file="mobilenetv2_100_inat_birds.safetensors",
    published="mobilenet_v2_1.0_224_inat_bird_quant.tflite",
    address="https://raw.githubusercontent.com/google-coral/test_data/master/",
    checksum="350fcd8cf1df1560060d464595dfed8b174b05792788052896004848d9ad04f9",
    licence="Apache-2.0",
    title="iNaturalist birds, 965 labels (Google Coral, Apache-2.0)",
    arguments={"pad_type": "same"},
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    folded=True,
    notices={
        "cub": "the backbone was trained on birds of iNaturalist: 150 of CUB's 200 species are, by common name, among "
        "its 965 labels, and whether photographs are in both is unknown; do not compare with backbones of ImageNet"
    },
)
SOURCES = {source.name: source for source in (INAT_BIRDS,)}


def notice(weights: str, data: str) -> str | None:
    """What must be said beside an accuracy on this data with these weights; None where there is nothing.

    >>> "150 of CUB's 200 species" in notice("inat_birds", "cub")
    True
    >>> notice("auto", "cub") is notice("inat_birds", "toybirds") is None
    True
    """
    return SOURCES[weights].notices.get(data) if weights in SOURCES else None


def models_folder(folder: str | None = None) -> Path:
    """Where the files of sources are: ``folder``, else $DAPL_MODELS, else ~/.cache/dapl/models."""
    return expand_path(folder or os.environ.get(VARIABLE) or _DEFAULT_FOLDER, "model.backbone.weights_folder")


def published_file(source: WeightSource, folder: Path) -> bytes:
    """The file of a source as it was published, from ``folder`` or else downloaded into it, with its checksum right."""
    file = folder / source.published
    if file.is_file():
        return _checked(read_bytes(file, "delete it", LARGEST_DATA), source, file)
    content = _checked(_download(source, folder), source, source.address + source.published)
    with suppress(WriteError), replacing(file) as temporary:  # a folder that may only be read is no reason to stop
        temporary.write_bytes(content)
    return content


def _download(source: WeightSource, folder: Path) -> bytes:
    address = source.address + source.published
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            return answer.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise DaplError(
            f"model.backbone.weights: {source.name} is neither in {folder} nor to be had from {address} ({error}); put "
            f"{source.file} or {source.published} into a folder and name it by {VARIABLE} or "
            "--model.backbone.weights_folder."
        ) from error


def _checked(content: bytes, source: WeightSource, where: Path | str) -> bytes:
    """A file that is not what was published is not used, whoever changed it."""
    if hashlib.sha256(content).hexdigest() != source.checksum:
        raise DaplError(
            f"{where}: its SHA-256 is not that of {source.name}; delete the file and fetch it again from "
            f"{source.address}{source.published}."
        )
    return content
