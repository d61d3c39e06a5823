"""What makes the numbers of a model worthless, said in plain words: maps and answers that say nothing.

The rule for background is that of `dapl.metrics.naming`, which every command and page goes by.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dapl.evaluation.measures import Measurements
from dapl.evaluation.statistics import Number
from dapl.metrics.naming import background_warning

FLAT_SHARE = 0.05
"""Constant maps are named when they are at least this share of all: where a similarity may be 0, as in the system
parts, a few prototypes that see nothing of theirs are no reason to doubt a model."""
LEVEL = 0.05
"""Accuracy is that of chance when chance reaches it with at least this probability."""


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
