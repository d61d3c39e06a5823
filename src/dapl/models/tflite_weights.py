"""Weights of a convolutional network out of a quantised .tflite file, under the names that timm has for them.

Such a file holds integers q with a scale s and a zero point z per tensor, and stands for s·(q − z). Its batch-norm is
folded: a convolution there is convolution and normalisation here. Convolutions come in the order in which they are
computed, which is timm's too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dapl.common.errors import DaplError

_TYPES = {2: np.dtype("<i4"), 3: np.dtype("u1"), 9: np.dtype("i1")}
"""Types of numbers of the format that a quantised network uses: int32, uint8, int8."""


def convert(content: bytes, network: nn.Module, path: Path) -> dict[str, Tensor]:
    """The file's tensors as a state dict of the timm model ``network``; ``path`` is named where something is wrong.

    Batch-norm becomes the identity plus the folded bias: mean 0, variance 1 − ε, weight 1. A classifier keeps the
    classes that the file has.
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
    try:
        import tflite
    except ImportError as error:
        raise DaplError(
            "to convert a .tflite file, dapl reads it with the package tflite; `pip install 'dapl[tflite]'`."
        ) from error
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
