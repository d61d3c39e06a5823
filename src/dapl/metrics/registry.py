"""The metrics, each described once: which numbers it gives, what it needs, what it costs. Imports no torch.

Whatever names a metric reads it here: `dapl evaluate` and its table, the torchmetrics classes, `report`, `serve`, the
card of `export`, the objectives of `sweep`, the columns of `compare` and the audit. How to add one: docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from dapl.common.errors import DaplError, nearest

Better = Literal["higher", "lower"]
Need = Literal["logits", "maps", "parts", "points", "masks", "model"]
"""``logits``: class predictions; ``maps``: prototypes that have activation maps; ``parts``: where the parts of an
object are; ``points``: their keypoints; ``masks``: where the object is; ``model``: scores, vectors, weights and
training images, which an audit of a foreign model does not have."""


@dataclass(frozen=True)
class MetricNumber:
    """One number that a metric gives.

    >>> number("redundancy").better
    'lower'
    """

    name: str
    heading: str
    better: Better | None = "higher"
    """Which way is better; None where neither is."""
    bounds: tuple[float, float] = (0.0, 1.0)
    percent: bool = False
    """Whether people read it in percent."""
    headline: bool = False
    """Whether short overviews show it: the top of a report, the facts of `dapl serve`, the table of a sweep."""
    column: str = ""
    """The heading of its column in `dapl compare` where it is always shown; others are shown where asked for."""
    class_name: str = ""
    """The torchmetrics class in `dapl.metrics`, where there is one."""


@dataclass(frozen=True)
class Metric:
    """A name that ``--metrics`` takes.

    >>> metric("coverage").needs
    ('maps', 'parts')
    """

    name: str
    numbers: tuple[MetricNumber, ...]
    """The first bears the name of the metric, the others are what it is made of."""
    needs: tuple[Need, ...] = ()
    """What model and data must give; the first that is missing is the reason that users read."""
    cost: str = ""
    """The passes that it takes beyond the one over the images. A metric with a cost runs only when it is asked for."""
    function: str = ""
    """The pure function in `dapl.metrics.functional`, where there is one."""
    scoped: bool = False
    """Whether the protocol's scope decides what it is a mean of (decision 12); else it is measured on the images."""
    card: bool = False
    """Whether the card of an exported model shows its first number."""


_ANY, _UP = (-inf, inf), (0.0, inf)
METRICS = (
    Metric(
        "accuracy",
        (MetricNumber("accuracy", "accuracy", percent=True, headline=True, column="accuracy"),),
        ("logits",),
        card=True,
    ),
    Metric(
        "balanced_accuracy",
        (MetricNumber("balanced_accuracy", "balanced accuracy", percent=True),),
        ("logits",),
        card=True,
    ),
    Metric("ece", (MetricNumber("ece", "calibration error (ECE)", "lower"),), ("logits",), card=True),
    Metric("cross_entropy", (MetricNumber("cross_entropy", "cross-entropy", "lower", _UP),), ("logits",)),
    Metric(
        "coverage",
        (
            MetricNumber("coverage", "Coverage", headline=True, column="Coverage", class_name="Coverage"),
            MetricNumber("precision", "precision", column="precision", class_name="PartPrecision"),
            MetricNumber("recall", "recall", column="recall", class_name="PartRecall"),
        ),
        ("maps", "parts"),
        function="coverage",
        scoped=True,
        card=True,
    ),
    Metric(
        "diversity",
        (
            MetricNumber("diversity", "Diversity", headline=True, column="Diversity", class_name="Diversity"),
            MetricNumber("redundancy", "redundancy", "lower", column="redundancy", class_name="Redundancy"),
            MetricNumber("imbalance", "imbalance", "lower", column="imbalance", class_name="Imbalance"),
        ),
        ("maps", "parts"),
        function="diversity",
        scoped=True,
        card=True,
    ),
    Metric(
        "one_to_one_coverage",
        (MetricNumber("one_to_one_coverage", "one-to-one Coverage", class_name="OneToOneCoverage"),),
        ("maps", "parts"),
        function="one_to_one_coverage",
        scoped=True,
    ),
    Metric(
        "parts_per_prototype",
        (MetricNumber("parts_per_prototype", "parts per prototype", None, _UP, class_name="PartsPerPrototype"),),
        ("maps", "parts"),
        function="parts_per_prototype",
        scoped=True,
    ),
    Metric(
        "islands",
        (MetricNumber("islands", "islands per region", "lower", _UP, class_name="IslandsPerRegion"),),
        ("maps",),
        function="islands",
        scoped=True,
    ),
    Metric(
        "island_coverage",
        (MetricNumber("island_coverage", "Coverage, largest islands"),),
        ("maps", "parts"),
        scoped=True,
    ),
    Metric(
        "island_diversity",
        (MetricNumber("island_diversity", "Diversity, largest islands"),),
        ("maps", "parts"),
        scoped=True,
    ),
    Metric(
        "part_identity",
        (
            MetricNumber("part_identity", "part identity", column="identity", class_name="PartIdentity"),
            MetricNumber("part_identity_null", "with prototypes renamed", None, column="its null"),
            MetricNumber("part_identity_sides", "left and right apart"),
            MetricNumber("part_identity_sides_null", "apart, prototypes renamed", None),
        ),
        ("maps", "parts"),
        function="part_identity",
    ),
    Metric(
        "background_bias",
        (MetricNumber("background_bias", "background bias", "lower", headline=True, class_name="BackgroundBias"),),
        ("maps", "masks"),
        function="background_bias",
        scoped=True,
        card=True,
    ),
    Metric(
        "region_background_share",
        (
            MetricNumber(
                "region_background_share",
                "region background share",
                "lower",
                headline=True,
                column="region background",
                class_name="RegionBackgroundShare",
            ),
        ),
        ("maps", "masks"),
        function="region_background_share",
        scoped=True,
    ),
    Metric(
        "object_overlap",
        (MetricNumber("object_overlap", "object overlap", None, class_name="ObjectOverlap"),),
        ("maps", "masks"),
        function="object_overlap",
    ),
    Metric(
        "oirr",
        (MetricNumber("oirr", "outside/inside ratio (OIRR)", "lower", _UP, class_name="OutsideInsideRelevanceRatio"),),
        ("maps", "masks"),
        function="outside_inside_relevance_ratio",
    ),
    Metric(
        "distinctiveness",
        (MetricNumber("distinctiveness", "distinctiveness", class_name="Distinctiveness"),),
        ("maps",),
        function="distinctiveness",
    ),
    Metric(
        "comprehensiveness",
        (MetricNumber("comprehensiveness", "comprehensiveness", class_name="Comprehensiveness"),),
        ("maps", "masks"),
        function="comprehensiveness",
    ),
    Metric(
        "consistency",
        (MetricNumber("consistency", "consistency", class_name="Consistency"),),
        ("maps", "points"),
        function="consistency",
        card=True,
    ),
    Metric(
        "stability",
        (MetricNumber("stability", "stability", class_name="Stability"),),
        ("maps", "points", "model"),
        "one pass over the images, with noise",
        function="stability",
        card=True,
    ),
    Metric(
        "purity",
        (MetricNumber("purity", "purity", class_name="Purity"),),
        ("maps", "points", "model"),
        "one pass over the training images",
        function="purity",
        card=True,
    ),
    Metric(
        "faithfulness",
        (
            MetricNumber(
                "faithfulness", "faithfulness", "higher", _ANY, column="faithfulness", class_name="Faithfulness"
            ),
            MetricNumber("similarity_lost_region", "lost with the region", None, _ANY),
            MetricNumber("similarity_lost_random", "lost with its control", None, _ANY),
            MetricNumber("faithfulness_wins", "region loses more"),
            MetricNumber("own_share", "carried by its own pixels", "higher", _ANY),
            MetricNumber("control_matched", "control as described", None),
        ),
        ("maps", "model"),
        "four passes over the images, with regions blurred out",
        function="faithfulness",
    ),
    Metric(
        "spatial_misalignment",
        (
            MetricNumber(
                "spatial_misalignment", "spatial misalignment (PLC)", "lower", class_name="SpatialMisalignment"
            ),
            MetricNumber("activation_change", "activation change (PAC)", "lower", (-inf, 1.0)),
            MetricNumber("rank_change", "rank change (PRC)", "lower", _ANY),
            MetricNumber("accuracy_change", "accuracy change (AC)", "lower", (-1.0, 1.0)),
            MetricNumber("attacked_share", "share of pixels attacked", None),
        ),
        ("maps", "model"),
        "some steps of gradient, each of them three passes over the images that were attacked",
        function="spatial_misalignment",
    ),
    Metric(
        "sparsity",
        (
            MetricNumber("sparsity", "sparsity", "higher", _UP),
            MetricNumber("class_size", "prototypes per class", "lower", _UP),
            MetricNumber("explanation_size", "prototypes per explanation", "lower", _UP, class_name="ExplanationSize"),
        ),
        ("maps", "model"),
        function="sparsity",
    ),
    Metric("prototypes", (), ("maps", "model")),
)
ALIASES = {"background_overlap": "region_background_share"}
NAMES = tuple(metric.name for metric in METRICS)
NUMBERS = {number.name: number for metric in METRICS for number in metric.numbers}
"""Every number by its name, in the order of the tables."""
HEADLINES = tuple(number.name for number in NUMBERS.values() if number.headline)
_BY_NAME = {metric.name: metric for metric in METRICS}
_GIVEN_BY = {number.name: metric for metric in METRICS for number in metric.numbers}


def metric(name: str) -> Metric:
    """What is known of a metric.

    >>> metric("oirr").needs
    ('maps', 'masks')
    """
    return _BY_NAME[name]


def number(name: str) -> MetricNumber:
    """What is known of a number.

    >>> number("recall").bounds, number("object_overlap").better
    ((0.0, 1.0), None)
    """
    return NUMBERS[name]


def given_by(number_name: str) -> Metric:
    """The metric that gives a number.

    >>> given_by("precision").name
    'coverage'
    """
    return _GIVEN_BY[number_name]


def chosen(names: Sequence[str] | str | None) -> frozenset[str]:
    """The metrics to measure: None for all that need no pass of their own, ``all`` for all, else those named.

    >>> sorted(chosen("coverage, Background-Bias"))
    ['background_bias', 'coverage']
    """
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


_REASONS: dict[Need, str] = {
    "logits": "the model has no `logits` method to predict with",
    "maps": "the model has no prototypes",
    "parts": "the data has no part annotations (neither part masks nor keypoints) to say what a part is",
    "points": "the data has no part annotations (neither part masks nor keypoints) to say what a part is",
    "masks": "the data has no foreground masks to tell the object from its background",
    "model": "an audit has only maps; it needs the model's scores, vectors or training images",
}


def missing_needs(names: Iterable[str], has: Iterable[str]) -> dict[str, str]:
    """The metrics that model and data do not allow, in the order of the table, each with the reason.

    >>> missing_needs(["accuracy", "oirr"], ["logits", "maps"])
    {'oirr': 'the data has no foreground masks to tell the object from its background'}
    """
    wanted, there = set(names), set(has)
    missing = {}
    for one in METRICS:
        lacking = [need for need in one.needs if need not in there]
        if one.name in wanted and lacking:
            missing[one.name] = _REASONS[lacking[0]]
    return missing


def data_gives(parts: Sequence[str], has_masks: bool) -> set[str]:
    """What a data set gives of what metrics need.

    >>> sorted(data_gives(parts=["beak", "tail"], has_masks=False))
    ['parts', 'points']
    """
    return ({"parts", "points"} if parts else set()) | ({"masks"} if has_masks else set())


def shown(name: str, value: float, digits: int = 4) -> str:
    """A number for people.

    >>> shown("accuracy", 0.8157), shown("coverage", 0.589, digits=3)
    ('81.57%', '0.589')
    """
    return f"{value:.{digits - 2}%}" if NUMBERS[name].percent else f"{value:.{digits}f}"
