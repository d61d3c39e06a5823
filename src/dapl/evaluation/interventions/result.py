"""What a run of interventions found: numbers with intervals, as a table, as JSON and as a drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapl.common.files import write_json
from dapl.common.tables import Column
from dapl.evaluation.statistics import Number

HEADINGS = {
    "completeness": "Com",
    "correctness": "Cor = SD",
    "contrastivity": "Con = TS",
    "mean": "mean",
    "csdc": "CSDC",
    "preservation": "PC",
    "deletion": "DC",
    "distractibility": "D",
}
"""Columns of the table, as the paper abbreviates them, the summaries first. Correctness is single deletion (SD) and
contrastivity is target sensitivity (TS), so each of these stands there once."""
MODEL_HEADINGS = {
    "accuracy": "accuracy",
    "background_independence": "background independence (BI)",
    "scene_independence": "same label at another place",
}
ABOUT = {
    "drops": "drops (what the logits really lose)",
    "shuffled": "shuffled (chance)",
    "even": "even (the same on every pixel)",
    "oracle": "oracle (another model, right by construction)",
}
"""The explanations that stand beside those that were asked for."""


@dataclass(frozen=True)
class Interventions:
    """Scores of explanations against interventions on drawn birds.

    >>> found = dapl.evaluation.interventions.run_interventions("runs/birds")     # doctest: +SKIP
    >>> found["own", "completeness"]                                              # doctest: +SKIP
    0.71
    """

    protocol: dict[str, Any]
    """Every choice that decides the numbers."""
    explanations: Mapping[str, Mapping[str, Number]]
    """By the name of the explanation, then of the score (`HEADINGS`)."""
    model: Mapping[str, Number]
    """What no explanation takes part in (`MODEL_HEADINGS`)."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Images on which each protocol applies."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """The share of the relevance that makes a piece important: the one that is best for each explanation."""

    def __getitem__(self, place: tuple[str, str]) -> float:
        """The value of a score of an explanation."""
        explanation, score = place
        return self.explanations[explanation][score].value

    def __repr__(self) -> str:
        rows = [f"{name} {numbers['mean'].value:.3f}" for name, numbers in self.explanations.items()]
        return f"Interventions({self.protocol['images']} images; mean of the scores: {', '.join(rows)})"

    def rows(self) -> list[dict[str, Any]]:
        """The table, one row per explanation, with the interval of each summary beside it."""
        return [
            {"explanation": ABOUT.get(name, name)} | {score: _cell(score, numbers[score]) for score in HEADINGS}
            for name, numbers in self.explanations.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not a number is null."""
        return {
            "protocol": self.protocol,
            "model": _plain(self.model),
            "explanations": {name: _plain(numbers) for name, numbers in self.explanations.items()},
            "counts": dict(self.counts),
            "thresholds": dict(self.thresholds),
        }

    def save(self, path: Path) -> Path:
        write_json(path, self.to_json())
        return path


COLUMNS = [Column("explanation"), *(Column(name, heading) for name, heading in HEADINGS.items())]


def _cell(score: str, number: Number) -> str:
    if math.isnan(number.value):
        return "–"
    if score in ("completeness", "correctness", "contrastivity"):
        return f"{number.value:.2f} [{number.low:.2f}, {number.high:.2f}]"
    return f"{number.value:.2f}"


def _plain(numbers: Mapping[str, Number]) -> dict[str, dict[str, float | None]]:
    return {
        name: {end: value if math.isfinite(value) else None for end, value in vars(number).items()}
        for name, number in numbers.items()
    }


def notes(found: Interventions) -> list[str]:
    """What stands below the table."""
    protocol, lines = found.protocol, []
    for name, number in found.model.items():
        lines.append(f"{MODEL_HEADINGS[name]}: {number.value:.3f}  [{number.low:.3f}, {number.high:.3f}]")
    lines.append(
        f"toy birds, {protocol['split']}: {protocol['images']} images, of which {found.counts['csdc']} count for CSDC "
        f"(rightly labelled) and {found.counts['target_sensitivity']} for TS (the model itself reacts)"
    )
    lines.append(
        f"in brackets 95 % intervals, {protocol['resamples']:,} resamples of the images; chance for SD and TS is 0.5"
    )
    return lines
