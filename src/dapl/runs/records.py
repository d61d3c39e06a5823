"""Where each prototype came from and what became of it: the content of ``prototypes.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from dapl.common.reading import checked
from dapl.models.contract import PrototypeModel
from dapl.runs.schemas import PrototypeRecord, Records

__all__ = ["PrototypeRecord", "bounding_boxes", "fresh_records", "records_from_json", "records_to_json"]
_RECORDS: TypeAdapter[list[PrototypeRecord]] = TypeAdapter(Records)


def fresh_records(model: PrototypeModel, classes: Sequence[str]) -> list[PrototypeRecord]:
    groups = model.prototypes.group_of.tolist()
    return [
        PrototypeRecord(j, [classes[c] for c in own], groups[j]) for j, own in enumerate(model.prototypes.classes_of())
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


def records_from_json(values: Any, where: object) -> list[PrototypeRecord]:
    """``where`` they were read, for the sentence on what is wrong with them."""
    return checked(values, _RECORDS, f"{where}: prototypes", "restore it from a copy, or train anew")
