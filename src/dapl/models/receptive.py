"""Exact receptive fields: which pixels of the image a cell of the feature map can depend on at all."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.common.operators import timm

_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU, nn.ELU, nn.Mish)


class ReceptiveFields(NamedTuple):
    """For each row (column) of the feature grid the first pixel row (column) that it sees and the one after the last.

    Fields of cells are rectangles, rows × columns, cut to the image.
    """

    rows: Tensor
    """long H×2."""
    columns: Tensor
    """long W×2."""

    def size(self) -> tuple[int, int]:
        """Height and width of the largest field."""
        height, width = (int((ends[:, 1] - ends[:, 0]).max()) for ends in self)
        return height, width

    def share(self, size: tuple[int, int]) -> float:
        """The share of an image of this size that a field covers, mean over cells.

        >>> ReceptiveFields(torch.tensor([[0, 2], [1, 4]]), torch.tensor([[0, 4]])).share((4, 4))
        0.625
        """
        rows, columns = (float((ends[:, 1] - ends[:, 0]).double().mean()) for ends in self)
        return rows * columns / (size[0] * size[1])


def receptive_fields(backbone: nn.Module, size: tuple[int, int]) -> ReceptiveFields:
    """Found by asking, not by a formula: by the gradient of a cell in a copy of the network where nothing cancels out.

    In the copy every weight is positive, activations pass everything on and maxima are means, so the gradient of a cell
    is not zero exactly where some path leads from a pixel to it, whatever the strides, paddings, branches and
    concatenations are. Squeeze-and-excitation and attention pool over the whole image and are seen as such.
    """
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller draws its images in
        probe = _transparent(backbone)
        image = torch.ones(1, 3, *size, dtype=torch.float64, requires_grad=True)
        features = probe(image)[0].sum(0)
        height, width = features.shape
        rows, columns = torch.zeros(height, 2, dtype=torch.long), torch.zeros(width, 2, dtype=torch.long)
        for cell in range(max(height, width)):  # the diagonal shows every row and every column once
            row, column = min(cell, height - 1), min(cell, width - 1)
            (gradient,) = torch.autograd.grad(features[row, column], image, retain_graph=True)
            seen = gradient[0].abs().sum(0) > 0
            if not seen.any():
                raise DaplError("receptive fields: no pixel is seen to reach a cell; use another backbone or stage.")
            rows[row], columns[column] = _ends(seen.any(1)), _ends(seen.any(0))
    return ReceptiveFields(rows, columns)


def _ends(seen: Tensor) -> Tensor:
    found = seen.nonzero().flatten()
    return torch.stack([found[0], found[-1] + 1])


def _transparent(backbone: nn.Module) -> nn.Module:
    """A double-precision copy through which every path from a pixel to a cell shows in the gradient."""
    probe = copy.deepcopy(backbone).cpu().double().eval().requires_grad_(False)
    for module in probe.modules():  # each keeps its place and its hooks, by which timm takes the maps of some families
        if isinstance(module, nn.MaxPool2d):
            module.forward = _as_mean(module).forward  # type: ignore[method-assign]
        elif isinstance(module, _ACTIVATIONS):
            module.forward = nn.Identity().forward  # type: ignore[method-assign]
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            # Some families hide the activation in the normalisation; what stays is positive and so passes on.
            _neutral(module)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in probe.named_parameters():
        if parameter.dim() > 1:
            # Means, so that values stay near 1 however deep the network is; not of equal weights, of which layers that
            # subtract a mean (LayerNorm, standardised convolutions) would leave nothing.
            weights = torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator) + 0.5
            parameter.copy_(weights / parameter[0].numel())
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.fill_(1.0)
    return probe


def _neutral(norm: nn.Module) -> None:
    norm.running_mean.zero_()  # type: ignore[union-attr,operator]
    norm.running_var.fill_(1.0)  # type: ignore[union-attr,operator]


def _as_mean(pool: nn.MaxPool2d) -> nn.Module:
    kernel, stride = _pair(pool.kernel_size), _pair(pool.stride or pool.kernel_size)
    if _pair(pool.dilation) != (1, 1):
        raise DaplError("receptive fields: the backbone has a dilated max pooling, which has no mean of its shape.")
    if isinstance(pool, timm.layers.pool2d_same.MaxPool2dSame):
        return timm.layers.pool2d_same.AvgPool2dSame(kernel, stride, ceil_mode=pool.ceil_mode)
    return nn.AvgPool2d(kernel, stride, _pair(pool.padding), ceil_mode=pool.ceil_mode)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
