"""What a sweep measures, what it looks for, and which way is better. Imports neither torch nor Optuna."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dapl.errors import DaplError, nearest
from dapl.evaluation.selection import NAMES

LOWER_IS_BETTER = frozenset({"ece", "cross_entropy", "redundancy", "imbalance", "background_bias",
                             "region_background_share", "oirr", "class_size", "explanation_size"})  # fmt: skip
_NEITHER = "object_overlap"
_COMES_WITH = {
    "precision": "coverage",
    "recall": "coverage",
    "redundancy": "diversity",
    "imbalance": "diversity",
    "class_size": "sparsity",
    "explanation_size": "sparsity",
}
"""Number → the metric that gives it."""
ALWAYS = ("accuracy", "coverage", "diversity", "background_bias")
"""Metrics that every sweep measures."""
SHOWN = ("accuracy", "coverage", "precision", "recall", "diversity", "redundancy", "imbalance", "background_bias")
"""Their numbers, in the order of the table."""
KNOWN = tuple(name for name in (*NAMES, *_COMES_WITH) if name != "prototypes")


@dataclass(frozen=True)
class Objective:
    name: str
    maximise: bool

    def text(self) -> str:
        return f"{'highest' if self.maximise else 'lowest'} {self.name.replace('_', ' ')}"


def parse_objectives(words: Sequence[str]) -> tuple[Objective, ...]:
    """``accuracy,coverage``; ``name:min`` or ``name:max`` where the usual direction is not wanted."""
    found: dict[str, Objective] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        name, colon, way = word.partition(":")
        name = name.lower().replace("-", "_")
        if name not in KNOWN:
            raise DaplError(f"--objective: '{name}' is not known{nearest(name, KNOWN)}")
        if colon and way not in ("min", "max"):
            raise DaplError(f"--objective {word}: the direction is min or max.")
        if name == _NEITHER and not colon:
            raise DaplError(f"--objective {name}: neither more nor less of it is better; say {name}:min or {name}:max.")
        if name in found:
            raise DaplError(f"--objective: {name} is given twice.")
        found[name] = Objective(name, way == "max" if colon else name not in LOWER_IS_BETTER)
    return tuple(found.values())


def metric_of(number: str) -> str:
    """The metric that gives a number: precision comes with coverage."""
    return _COMES_WITH.get(number, number)


def metrics_for(objectives: Sequence[Objective]) -> tuple[str, ...]:
    """The metrics to measure, so that the objectives and the table have their numbers."""
    return tuple(dict.fromkeys((*ALWAYS, *(metric_of(objective.name) for objective in objectives))))


def numbers_for(objectives: Sequence[Objective]) -> tuple[str, ...]:
    """The numbers of the table."""
    return tuple(dict.fromkeys((*SHOWN, *(objective.name for objective in objectives))))
