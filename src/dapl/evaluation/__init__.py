"""Measure a finished run, or any prototype model, under a protocol that is written down beside the numbers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dapl.evaluation.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from dapl.evaluation.auditor import PrototypeMaps, audit
    from dapl.evaluation.evaluator import evaluate
    from dapl.evaluation.result import Chance, Evaluation, table
    from dapl.evaluation.statistics import Number

__all__ = ["Chance", "Evaluation", "EvaluationProtocol", "Number", "PrototypeMaps", "audit", "evaluate", "table"]

_HOMES = {
    "Chance": "result",
    "Evaluation": "result",
    "Number": "statistics",
    "PrototypeMaps": "auditor",
    "audit": "auditor",
    "evaluate": "evaluator",
    "table": "result",
}


def __getattr__(name: str) -> Any:
    """Loaded when first asked for, so that a bad option is refused before torch is imported."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dapl.evaluation.{_HOMES[name]}"), name)
