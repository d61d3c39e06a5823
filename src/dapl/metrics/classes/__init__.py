"""The metrics as torchmetrics classes: they add up batches, and processes, in sums and counts, never in lists.

Each ``update`` takes the arguments of its function by the same names, so that one ``MetricCollection`` can be fed
everything at once and hands each metric what it asks for::

    metrics = MetricCollection([Coverage(), Diversity(), BackgroundBias()])
    metrics.update(regions=regions, assigned=assigned, visible=visible, kept=kept, maps=maps, masks=masks)

``scope`` says what the number is a mean of (decision 12):

- ``image``: the number of each image, averaged over images. Images in which no part is visible have none: they are
  skipped, and counted in ``skipped``.
- ``dataset``: the assignments of all images pooled, as if they were one large image; the number is computed once.
- ``projection``: each prototype on its own source image. The caller feeds one row a *class* instead of one an image
  (see docs/metrics.md); from there on it is the mean over rows, as for ``image``.
"""

import dapl._torchvision  # noqa: F401  (before torchmetrics, which imports torchvision)
from dapl.metrics.classes._assignment import PartAssignment
from dapl.metrics.classes._background import BackgroundBias, RegionBackgroundShare
from dapl.metrics.classes._coverage import Coverage, PartPrecision, PartRecall
from dapl.metrics.classes._diversity import Diversity, Imbalance, Redundancy
from dapl.metrics.classes._mean import Scope

__all__ = [
    "BackgroundBias",
    "Coverage",
    "Diversity",
    "Imbalance",
    "PartAssignment",
    "PartPrecision",
    "PartRecall",
    "Redundancy",
    "RegionBackgroundShare",
    "Scope",
]
