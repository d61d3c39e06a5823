"""Weights that have a name in a config: what they bring with them, where their file is, and what must be said of them.

Weights are more than numbers. Those of a converted network want its paddings and its normalisation, they have a
licence, and what they were trained on may have to be said beside an accuracy. A source keeps all of that together, so
that ``model.backbone.weights: inat_birds`` is all that a config has to say.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dapl.common.errors import DaplError, WriteError, needing
from dapl.common.files import expand_path, replacing
from dapl.common.reading import LARGEST_DATA, read_bytes

VARIABLE = "DAPL_MODELS"
_DEFAULT_FOLDER = "~/.cache/dapl/models"
_MOST_BYTES = 1 << 28
_SECONDS = 30
_TYPES = {2: np.dtype("<i4"), 3: np.dtype("u1"), 9: np.dtype("i1")}
"""Types of numbers of a .tflite file that a quantised network uses: int32, uint8, int8."""


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


def converted_tflite(content: bytes, network: nn.Module, path: Path) -> dict[str, Tensor]:
    """A quantised .tflite file as a state dict of the timm model ``network``; ``path`` is named where it is not one.

    Such a file holds integers q with a scale s and a zero point z per tensor, and stands for s·(q − z). Convolutions
    come in the order in which they are computed, which is timm's too. Batch-norm is folded into them there, and becomes
    the identity plus the folded bias here: mean 0, variance 1 − ε, weight 1. A classifier keeps the classes that the
    file has.
    """
    try:
        layers = list(_layers(content))
    except DaplError:
        raise
    except Exception as error:  # the reader of the format checks nothing and fails somewhere
        raise DaplError(f"{path}: cannot be read as a .tflite file ({type(error).__name__}: {error}).") from error
    expected = list(_convolutions(network))
    if len(layers) != len(expected):
        raise DaplError(
            f"{path}: has {len(layers)} layers with weights where the model has {len(expected)}; these are the "
            "weights of another one."
        )
    state: dict[str, Tensor] = {}
    for (weight, bias), (name, module, normalisation) in zip(layers, expected, strict=True):
        shape = tuple(module.weight.shape)
        if weight.shape != shape and not (isinstance(module, nn.Linear) and weight.shape[1:] == shape[1:]):
            raise DaplError(
                f"{path}: a layer of shape {tuple(weight.shape)} stands where the model has {name}.weight {shape}; "
                "these are the weights of another one."
            )
        state[f"{name}.weight"] = weight
        if normalisation is None:
            state[f"{name}.bias"] = bias
        else:
            state |= _identity_plus(bias, *normalisation)
    return state


def _identity_plus(bias: Tensor, name: str, module: nn.BatchNorm2d) -> dict[str, Tensor]:
    """A batch-norm that only adds: (x − 0)/√(1 − ε + ε)·1 + bias."""
    return {
        f"{name}.weight": torch.ones_like(bias),
        f"{name}.bias": bias,
        f"{name}.running_mean": torch.zeros_like(bias),
        f"{name}.running_var": torch.full_like(bias, 1 - module.eps),
        f"{name}.num_batches_tracked": torch.tensor(0),
    }


def _convolutions(network: nn.Module) -> Iterator[tuple[str, Any, tuple[str, nn.BatchNorm2d] | None]]:
    """Name and module of each layer with weights, with the batch-norm that follows it, in order."""
    found: tuple[str, Any] | None = None
    for name, module in network.named_modules():
        if found is not None and isinstance(module, nn.BatchNorm2d):
            yield *found, (name, module)
            found = None
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            if found is not None:
                yield *found, None
            found = name, module
    if found is not None:
        yield *found, None


def _layers(content: bytes) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights in torch's layout, and bias, of each convolution and linear layer in order."""
    with needing("to convert a .tflite file, dapl reads it with the package tflite", "tflite"):
        import tflite
    model = tflite.Model.GetRootAsModel(content, 0)
    graph, operators = model.Subgraphs(0), tflite.BuiltinOperator
    axes = {
        operators.CONV_2D: (0, 3, 1, 2),  # out×H×W×in → out×in×H×W
        operators.DEPTHWISE_CONV_2D: (3, 0, 1, 2),  # 1×H×W×channels → channels×1×H×W
        operators.FULLY_CONNECTED: (0, 1),
    }
    for number in range(graph.OperatorsLength()):
        operator = graph.Operators(number)
        code = model.OperatorCodes(operator.OpcodeIndex())
        kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())  # files from before there were 127 kinds
        if kind in axes:
            weight, bias = (_numbers(model, graph.Tensors(operator.Inputs(place))) for place in (1, 2))
            yield torch.from_numpy(np.ascontiguousarray(weight.transpose(axes[kind]))), torch.from_numpy(bias)


def _numbers(model: Any, tensor: Any) -> np.ndarray:
    """s·(q − z), float32 in the shape that the file gives."""
    if tensor.Type() not in _TYPES:
        raise ValueError(f"numbers of type {tensor.Type()}, which no quantised network has")
    values = model.Buffers(tensor.Buffer()).DataAsNumpy().view(_TYPES[tensor.Type()]).reshape(tensor.ShapeAsNumpy())
    quantised = tensor.Quantization()
    if quantised.ScaleLength() != 1:
        raise ValueError("a scale for each channel, where one for each tensor is read")
    scale, zero = quantised.ScaleAsNumpy()[0], quantised.ZeroPointAsNumpy()[0]
    return ((values.astype(np.float64) - zero) * scale).astype(np.float32)
