"""Where each prototype came from and what became of it: the content of ``prototypes.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dapl.models.contract import PrototypeModel


@dataclass
class PrototypeRecord:
    """One prototype. Pixels are those of the square image that the model sees (``data.image_size``)."""

    index: int
    """j = class·N + head, from 0."""
    classes: list[str]
    """The class it belongs to; several after merging."""
    head: int
    kept: bool = True
    reason: str | None = None
    """Why it was removed."""
    image: str | None = None
    """Name of the training image it was projected on; None before projection."""
    location: list[int] | None = None
    """[row, column] on the feature grid."""
    box: list[int] | None = None
    """[left, top, right, bottom] in pixels, right and bottom exclusive: bounds of the activation region (of a head that
    sees a square and no more: that square); None before
    projection, and where the map is flat, so that there is no region."""
    outline: str | None = None
    """Outline of the activation region in pixels of that image, as path data of SVG; None where there is no region."""
    distance: float | None = None
    """Squared distance from the prototype to that patch before it became the patch."""
    foreground_share: float | None = None
    """Share of the patch that lies on the object; None without masks."""
    grounded: bool | None = None
    """False where no patch of the class had enough foreground, so that the best one was taken."""
    region_foreground: float | None = None
    """Mean foreground share of its region on the validation images of its class, as pruning saw it."""


def fresh_records(model: PrototypeModel, classes: Sequence[str]) -> list[PrototypeRecord]:
    membership, groups = model.prototypes.membership, model.prototypes.group_of.tolist()
    return [
        PrototypeRecord(j, [classes[c] for c in membership[j].nonzero().flatten().tolist()], groups[j])
        for j in range(len(model.prototypes))
    ]


def bounding_boxes(regions: Tensor) -> list[list[int] | None]:
    """bool P×H×W → for each left, top, right, bottom, the last two exclusive; None for an empty region.

    >>> bounding_boxes(torch.tensor([[[False, True, True]], [[False, False, False]]]))
    [[1, 0, 3, 1], None]
    """

    def ends(occupied: Tensor) -> tuple[Tensor, Tensor]:
        flags = occupied.int()
        return flags.argmax(1), occupied.shape[1] - flags.flip(1).argmax(1)

    columns, rows = regions.any(1), regions.any(2)
    left, right = ends(columns)
    top, bottom = ends(rows)
    boxes = torch.stack([left, top, right, bottom], dim=1).tolist()
    return [box if filled else None for box, filled in zip(boxes, rows.any(1).tolist(), strict=True)]


def records_to_json(records: Sequence[PrototypeRecord]) -> list[dict[str, Any]]:
    return [asdict(record) for record in records]


def records_from_json(values: Sequence[dict[str, Any]]) -> list[PrototypeRecord]:
    return [PrototypeRecord(**value) for value in values]
