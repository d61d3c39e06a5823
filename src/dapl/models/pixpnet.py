"""PixPNet (Carmichael et al., 2024): a prototype answers for the pixels of its receptive field, and for no others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dapl.models.backbone import Backbone
from dapl.models.contract import Embedding, PrototypeModel
from dapl.models.protopnet import Init, regular_addon
from dapl.models.prototypes import UnitPrototypes, one_class_each
from dapl.models.receptive import ReceptiveFields, receptive_fields


class PixPNet(PrototypeModel):
    """Cosine distance, log(1/(d + ε) + 1), and logits that are plain sums over the prototypes of a class.

    How much of the image a patch has seen is decided by the stage of the backbone; `to_pixels` paints each cell on
    its exact receptive field.

    >>> import torch
    >>> from dapl.models import PixPNet, create_backbone
    >>> model = PixPNet(create_backbone("test_efficientnet", weights="random"), classes=3)
    >>> model.activation_maps(torch.rand(1, 3, 64, 64)).shape
    torch.Size([1, 30, 2, 2])
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        prototypes_per_class: int = 10,
        width: int = 192,
        epsilon: float = 1e-6,
        addon_init: Init = "fan_out",
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.addon = regular_addon(backbone.channels, width, addon_init)
        self.prototypes = UnitPrototypes(
            one_class_each(classes, prototypes_per_class), groups=1, width=width, epsilon=epsilon
        )
        self._fields: dict[tuple[int, int], ReceptiveFields] = {}

    def embed(self, features: Tensor) -> Embedding:
        return Embedding(self.prototypes.comparable(self.addon(features).unsqueeze(1)))

    def classify(self, scores: Tensor) -> Tensor:
        table, counts = self.prototypes.counted(self.prototypes.kept)
        return (scores[:, table] * counts).sum(2)

    def class_weights(self) -> Tensor:
        prototypes = self.prototypes
        return (prototypes.membership & prototypes.kept.unsqueeze(1)).to(prototypes.vectors.dtype)

    def receptive_fields(self, size: tuple[int, int]) -> ReceptiveFields:
        """The fields of the backbone on images of this size; found once."""
        if size not in self._fields:
            self._fields[size] = receptive_fields(self.backbone, size)
        return self._fields[size]

    def field_share(self, image_size: int) -> float:
        size = (image_size, image_size)
        return self.receptive_fields(size).share(size)

    def facts(self, image_size: int) -> dict[str, Any]:
        height, width = self.receptive_fields((image_size, image_size)).size()
        return {"receptive_field": [height, width]}

    def to_pixels(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Each cell paints a Gaussian on its receptive field, as high as the cell is active; where several meet, the
        highest counts. Outside of all fields it is 0. …×H×W → …×size.

        A field that the image cuts keeps its Gaussian around the place of the cell, not around the middle of what is
        left: else all cells of a late stage, whose fields are the whole image, would paint the same.

        max over (r, c) of a[r, c]·g_r[y]·g_c[x] is taken along one axis after the other: no factor is negative.
        """
        fields = self.receptive_fields(size)
        rows = gaussians(fields.rows, size[0]).to(maps)  # H×S
        columns = gaussians(fields.columns, size[1]).to(maps)
        flat = maps.flatten(0, -3)
        painted = [_max_product(_max_product(one.mT, rows).mT, columns) for one in flat]
        return torch.stack(painted).view(*maps.shape[:-2], *size)


def _max_product(values: Tensor, weights: Tensor) -> Tensor:
    """max_h values[·, h]·weights[h, ·]: N×H, H×S → N×S."""
    return (values.unsqueeze(2) * weights).amax(1)


def gaussians(ends: Tensor, size: int) -> Tensor:
    """A Gaussian on each interval [first, end), σ a quarter of its length, 1 at its centre, 0 outside: H×2 → H×size.

    The centre is the middle of the interval; of one that the image cuts, the place of its cell.
    """
    place = torch.arange(size, dtype=torch.float64) + 0.5
    first, end = ends.double().unbind(1)
    cut = (first == 0) | (end == size)
    cells = (torch.arange(len(ends), dtype=torch.float64) + 0.5) * size / len(ends)
    middle, sigma = torch.where(cut, cells, (first + end) / 2).unsqueeze(1), (end - first).unsqueeze(1) / 4
    inside = (place >= first.unsqueeze(1)) & (place < end.unsqueeze(1))
    return torch.exp(-0.5 * ((place - middle) / sigma).square()) * inside
