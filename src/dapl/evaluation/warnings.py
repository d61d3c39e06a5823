"""What makes the numbers of a model worthless, said in plain words: weights, maps and answers that say nothing.

And the one rule for background: every command and page goes by `lies_on_background`, `background_share` and
`background_warning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from dapl.evaluation.measures import Measurements
from dapl.evaluation.statistics import Number

NOT_FINITE = "the model has weights that are not finite, so that it has no maps"
FLAT_SHARE = 0.01
"""Constant maps are named when they are at least this share of all: a single one is no reason to doubt a model."""
LEVEL = 0.05
"""Accuracy is that of chance when chance reaches it with at least this probability."""
BACKGROUND_ABOVE = 0.5
"""A region, a prototype or a whole explanation is background where more of it than this lies off the object."""


def all_finite(model: nn.Module) -> bool:
    """Whether no weight and no buffer of a model is NaN or infinite.

    >>> layer = nn.Linear(1, 1)
    >>> _ = nn.init.constant_(layer.weight, float("nan"))
    >>> all_finite(layer), all_finite(nn.Linear(1, 1))
    (False, True)
    """
    return all(bool(value.isfinite().all()) for value in model.state_dict().values() if value.is_floating_point())


def chance_probability(right: int, images: int, share: float) -> float:
    """The probability that at least ``right`` of ``images`` answers are right when each is, with probability ``share``.

    The exact one-sided binomial test. ``share`` is that of the most frequent class: what is had by always naming it.

    >>> round(chance_probability(3, 10, 0.2), 4), chance_probability(0, 10, 0.2)
    (0.3222, 1.0)
    """
    from scipy.special import bdtrc  # scipy.stats has it too, and takes a second to load

    return float(bdtrc(right - 1, images, share))


def lies_on_background(share: float | None) -> bool:
    """The rule: whether more than half of something lies off the object. ``share``: how much of it does, in [0, 1].

    What is not known (None, NaN) is not background.

    >>> lies_on_background(0.79), lies_on_background(0.5), lies_on_background(None)
    (True, False, False)
    """
    return share is not None and share > BACKGROUND_ABOVE


def background_share(shares: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """How much of what several regions stand for lies off the object: the mean of their shares, by weight.

    ``shares``: of each region, what lies off the object; one that is not known (None, NaN) is left out. ``weights``:
    what each counts, e.g. the contributions of the prototypes to a logit (one below 0 counts as its size); None: all
    count the same. Returns None where nothing is known.

    >>> background_share([1.0, 0.0, None], weights=[3.0, 1.0, 5.0])
    0.75
    """
    weights = [1.0] * len(shares) if weights is None else weights
    known = [(s, abs(w)) for s, w in zip(shares, weights, strict=True) if s is not None and s == s]
    total = sum(weight for _, weight in known)
    return sum(share * weight for share, weight in known) / total if total else None


def background_warning(share: float | None) -> str | None:
    """The warning for reasons that rest on background, a clause with what to do; None where they do not.

    ``share``: of what the reasons rest on, how much lies off the object: the region background share of a model, or
    `background_share` of the regions of one prediction.

    >>> background_warning(0.79).split(";")[0]
    '79% of what the reasons rest on lies off the object: the model looks at background'
    """
    if share is None or not lies_on_background(share):
        return None
    return (
        f"{share:.0%} of what the reasons rest on lies off the object: the model looks at background; look at the "
        "masks (`dapl prepare check`), train with a foreground loss or a larger weight of it, or on images with more "
        "varied backgrounds"
    )


def warnings_of(measured: Measurements, finite: bool = True, numbers: Mapping[str, Number] | None = None) -> list[str]:
    """Reasons not to believe the numbers, each a clause; empty for a model that has learned something.

    ``numbers``: what was made of the measurements, for the share of background.
    """
    found = [] if finite else ["weights of the model are not finite"]
    if finite and (share := _flat_share(measured)) >= FLAT_SHARE:
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
