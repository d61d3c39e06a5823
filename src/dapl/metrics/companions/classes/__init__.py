"""The companions as torchmetrics classes: they add up batches, and processes, in sums and counts, never in lists.

Arguments of ``update`` have the names of the functions'. Consistency, Stability, ObjectOverlap and OIRR can sit in one
``MetricCollection``; every state has a name of its own, so that a collection never takes two metrics for one.
"""

import dapl._torchvision  # noqa: F401  (before torchmetrics, which imports torchvision)
from dapl.metrics.companions.classes._masks import ObjectOverlap, OutsideInsideRelevanceRatio
from dapl.metrics.companions.classes._parts import Consistency, Purity, Stability
from dapl.metrics.companions.classes._scores import ExplanationSize, Faithfulness

__all__ = [
    "Consistency",
    "ExplanationSize",
    "Faithfulness",
    "ObjectOverlap",
    "OutsideInsideRelevanceRatio",
    "Purity",
    "Stability",
]
