"""What the passes of an evaluation leave behind, and the reasons not to believe it.

A pass fills the columns of `Rows`, a few numbers per image; `Measurements` are those of all passes. What makes the
numbers of a model worthless is told from them in plain words: maps and answers that say nothing. The rule for
background is that of `dapl.metrics.naming`, which every command and page goes by.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dapl.evaluation.protocol import EvaluationProtocol
from dapl.evaluation.statistics import Number
from dapl.metrics import functional as F
from dapl.metrics.naming import background_warning
from dapl.processes.interface import Processes, sum_rows

FLAT_SHARE = 0.05
"""Constant maps are named when they are at least this share of all: where a similarity may be 0, as in the system
parts, a few prototypes that see nothing of theirs are no reason to doubt a model."""
LEVEL = 0.05
"""Accuracy is that of chance when chance reaches it with at least this probability."""


class Rows:
    """Columns by name, n rows each, filled batch by batch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.columns: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"Rows({self.count}, {', '.join(self.columns) or 'empty'})"

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def add(self, rows: Tensor, found: Mapping[str, Tensor | None]) -> None:
        """Values B×… of these rows (long B); a column that is None is left out."""
        for name, value in found.items():
            if value is not None:
                if name not in self.columns:
                    self.columns[name] = torch.zeros((self.count, *value.shape[1:]), dtype=value.dtype)
                self.columns[name][rows] = value.detach().cpu()

    def merged(self, processes: Processes) -> Rows:
        """The rows that all processes filled, each a share of them (the rest is 0)."""
        if processes.world_size > 1:
            kinds = {name: (column.shape, str(column.dtype)) for name, column in self.columns.items()}
            for name, (shape, kind) in _from_first(kinds, processes):
                dtype = getattr(torch, kind.removeprefix("torch."))
                column = self.columns.get(name, torch.zeros(shape, dtype=dtype))
                self.columns[name] = sum_rows(column.byte() if dtype == torch.bool else column, processes).to(dtype)
        return self


def _from_first(kinds: dict[str, Any], processes: Processes) -> Iterator[tuple[str, Any]]:
    """What the first process says, in all of them; one that had no images knows of no columns."""
    said = json.dumps(kinds).encode() if processes.global_rank == 0 else b""
    length = int(processes.sum(torch.tensor(len(said), device=processes.device)))
    letters = torch.zeros(length, dtype=torch.uint8, device=processes.device)
    if said:
        letters.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    return iter(json.loads(bytes(processes.sum(letters).tolist())).items())


@dataclass(frozen=True)
class Measurements:
    """All that the passes of an evaluation left behind, and what it is about."""

    names: frozenset[str]
    """The metrics to give."""
    protocol: EvaluationProtocol
    classes: Sequence[str]
    parts: Sequence[str]
    """Empty where no metric with parts was asked for."""
    labels: Tensor
    """long n, of the images."""
    images: Rows
    """One row per image."""
    scoped: Rows
    """The same, or one row per class in scope projection: for metrics that the scope decides."""
    kept: Tensor
    """bool C×M: which prototypes of each class count."""
    once: dict[str, Tensor] = field(default_factory=dict)
    """What was not measured image by image."""
    part_names: Sequence[str] = ()
    """The names of all parts of the data, whatever was asked for."""

    def assigned(self, tau: float | None = None, column: str = "overlap") -> Tensor:
        """bool n×M×K: which prototypes are on which parts. ``column``: what covers them, regions or their islands."""
        rows = self.scoped
        return F.assign(rows[column], self.protocol.tau if tau is None else tau, rows["visible"], rows["kept"])

    def heads_on_parts(self) -> Tensor:
        """K×M: how often prototype m of its class is on part k, where that is visible."""
        shown = self.scoped["visible"].unsqueeze(1) & self.scoped["kept"].unsqueeze(2)
        return (self.assigned().sum(0) / shown.sum(0)).T

    def heads_overlap(self) -> Tensor:
        """M×M: the mean IoU of the regions of two prototypes of a class; NaN on the diagonal."""
        kept = self.scoped["kept"]
        both = (kept.unsqueeze(2) & kept.unsqueeze(1)).float()
        found = (self.scoped["ious"] * both).sum(0) / both.sum(0)
        return found.fill_diagonal_(torch.nan)

    def row_labels(self) -> Tensor:
        """The class of each row of ``scoped``."""
        return self.labels if self.scoped is self.images else torch.arange(len(self.classes))

    @property
    def pooled(self) -> bool:
        return self.protocol.scope == "dataset"


def chance_probability(right: int, images: int, share: float) -> float:
    """The probability that at least ``right`` of ``images`` answers are right when each is, with probability ``share``.

    The exact one-sided binomial test. ``share`` is that of the most frequent class: what is had by always naming it.

    >>> round(chance_probability(3, 10, 0.2), 4), chance_probability(0, 10, 0.2)
    (0.3222, 1.0)
    """
    from scipy.special import bdtrc  # scipy.stats has it too, and takes a second to load

    return float(bdtrc(right - 1, images, share))


def warnings_of(measured: Measurements, numbers: Mapping[str, Number] | None = None) -> list[str]:
    """Reasons not to believe the numbers, each a clause; empty for a model that has learned something.

    ``numbers``: what was made of the measurements, for the share of background.
    """
    found = []
    if (share := _flat_share(measured)) >= FLAT_SHARE:
        found.append(f"{share:.0%} of the maps are constant: they have no region and lie on no part")
    if "right" in measured.images:
        found += _chance(measured.images["right"], measured.labels)
    region = (numbers or {}).get("region_background_share")
    if region is not None and (said := background_warning(region.value)) is not None:
        found.append(said)
    return found


def _flat_share(measured: Measurements) -> float:
    """The share of constant maps among those of all images and prototypes that count."""
    rows = measured.images if "flat" in measured.images else measured.scoped
    if "flat" not in rows:
        return 0.0
    flat, counted = (int(rows[name].sum()) for name in ("flat", "mapped"))
    return flat / max(1, counted)


def _chance(right: Tensor, labels: Tensor) -> list[str]:
    images, hits = len(labels), int(right.sum())
    share = float(labels.bincount().max()) / images
    probability = chance_probability(hits, images, share)
    if probability < LEVEL:
        return []
    return [
        f"the accuracy of {hits / images:.1%} is that of chance: always naming the most frequent class has {share:.1%} "
        f"(exact binomial test, p = {probability:.2g})"
    ]
