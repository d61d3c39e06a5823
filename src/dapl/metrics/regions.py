"""Activation regions as a model itself shows its maps on a picture."""

from __future__ import annotations

from torch import Tensor

from dapl.metrics.functional import activation_regions
from dapl.models.contract import PrototypeModel


def model_regions(model: PrototypeModel, maps: Tensor, size: int, percentile: float = 95.0) -> Tensor:
    """maps …×M×H×W → regions bool …×M×size×size; bicubic ones are made by two small matrix products."""
    if type(model).to_pixels is PrototypeModel.to_pixels:
        return activation_regions(maps, size, percentile)
    return activation_regions(model.to_pixels(maps, (size, size)), None, percentile)
