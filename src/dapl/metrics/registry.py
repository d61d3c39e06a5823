"""The metrics by name: which numbers each gives, what it needs of the data, what it costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapl.common.errors import DaplError, nearest


@dataclass(frozen=True)
class Metric:
    """A name that ``--metrics`` takes."""

    name: str
    needs: tuple[str, ...] = ()
    """Of ``logits``, ``parts`` and ``masks``: what the model or the data must give."""
    cost: str = ""
    """Where it takes passes of its own: how many. Such a metric runs only when it is asked for."""


METRICS = (
    Metric("accuracy", ("logits",)),
    Metric("balanced_accuracy", ("logits",)),
    Metric("ece", ("logits",)),
    Metric("cross_entropy", ("logits",)),
    Metric("coverage", ("parts",)),
    Metric("diversity", ("parts",)),
    Metric("background_bias", ("masks",)),
    Metric("region_background_share", ("masks",)),
    Metric("object_overlap", ("masks",)),
    Metric("oirr", ("masks",)),
    Metric("consistency", ("parts",)),
    Metric("stability", ("parts",), cost="one pass over the images, with noise"),
    Metric("purity", ("parts",), cost="one pass over the training images"),
    Metric("faithfulness", cost="two passes over the images, with a region blurred out"),
    Metric("sparsity"),
    Metric("prototypes"),
)
COMPANIONS = frozenset({"object_overlap", "oirr", "consistency", "stability", "purity", "faithfulness", "sparsity"})
"""Those of docs/companions.md."""
ALIASES = {"background_overlap": "region_background_share"}
NAMES = tuple(metric.name for metric in METRICS)
BY_NAME = {metric.name: metric for metric in METRICS}


def chosen(names: Sequence[str] | str | None) -> frozenset[str]:
    """The metrics to measure: None for all that need no pass of their own, ``all`` for all, else those named."""
    if names is None:
        return frozenset(metric.name for metric in METRICS if not metric.cost)
    words = names.split(",") if isinstance(names, str) else list(names)
    words = [word.strip().lower().replace("-", "_") for word in words]
    words = [ALIASES.get(word, word) for word in words]
    if "all" in words:
        return frozenset(NAMES)
    for word in words:
        if word not in NAMES:
            raise DaplError(f"metrics: '{word}' is not known{nearest(word, (*NAMES, 'all'))}")
    return frozenset(words)


def needing(wanted: Iterable[str], what: str) -> list[str]:
    """Those of the wanted metrics that need this of model or data, in the order of the table."""
    return [metric.name for metric in METRICS if metric.name in wanted and what in metric.needs]
