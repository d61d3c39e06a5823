"""Interpretability in numbers: torchmetrics classes, and the pure functions that they are made of.

>>> import torch
>>> from dapl import metrics
>>> metrics.coverage(torch.tensor([[True, False], [True, False]]))
tensor(0.6667)

`dapl.metrics.functional` has every function, `dapl.metrics.registry` describes every metric.
"""

# ruff: noqa: F403
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dapl.metrics.registry import METRICS, NUMBERS

if TYPE_CHECKING:
    from dapl.metrics.classes import *
    from dapl.metrics.functional import *

__all__ = sorted(
    {number.class_name for number in NUMBERS.values() if number.class_name}
    | {metric.function for metric in METRICS if metric.function}
    | {"PartAssignment", "activation_regions", "assign", "explanation_size", "imbalance", "iou", "overlap"}
    | {"part_masks", "precision", "recall", "redundancy", "visible_parts"}
)


def __getattr__(name: str) -> Any:
    """Loaded when first asked for: the functions need torch, the classes torchmetrics, which takes two seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dapl.metrics.{'classes' if name[0].isupper() else 'functional'}"), name)


def __dir__() -> list[str]:
    return [*__all__, "functional", "registry"]
