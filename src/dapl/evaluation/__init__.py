"""Measure a finished run, or any prototype model, under a protocol that is written down beside the numbers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dapl.evaluation.protocol import Protocol

if TYPE_CHECKING:
    from dapl.evaluation.outside import PrototypeMaps, audit
    from dapl.evaluation.result import Evaluation, Number, table
    from dapl.evaluation.whole_run import evaluate

__all__ = ["Evaluation", "Number", "Protocol", "PrototypeMaps", "audit", "evaluate", "table"]

_HOMES = {
    "Evaluation": "result",
    "Number": "result",
    "PrototypeMaps": "outside",
    "audit": "outside",
    "evaluate": "whole_run",
    "table": "result",
}


def __getattr__(name: str) -> Any:
    """Loaded when first asked for, so that a bad option is refused before torch is imported."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dapl.evaluation.{_HOMES[name]}"), name)
