"""Interpretability in numbers: pure functions in `functional`, torchmetrics classes here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dapl.metrics.functional.parts import part_masks

if TYPE_CHECKING:
    from dapl.metrics.classes import (
        BackgroundBias,
        Consistency,
        Coverage,
        Diversity,
        ExplanationSize,
        Faithfulness,
        Imbalance,
        ObjectOverlap,
        OutsideInsideRelevanceRatio,
        PartAssignment,
        PartPrecision,
        PartRecall,
        Purity,
        Redundancy,
        RegionBackgroundShare,
        Stability,
    )

__all__ = [
    "BackgroundBias",
    "Consistency",
    "Coverage",
    "Diversity",
    "ExplanationSize",
    "Faithfulness",
    "Imbalance",
    "ObjectOverlap",
    "OutsideInsideRelevanceRatio",
    "PartAssignment",
    "PartPrecision",
    "PartRecall",
    "Purity",
    "Redundancy",
    "RegionBackgroundShare",
    "Stability",
    "part_masks",
]


def __getattr__(name: str) -> Any:
    """The classes are loaded when first asked for: torchmetrics takes two seconds, which the functions do not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("dapl.metrics.classes"), name)
