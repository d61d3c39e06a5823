"""The metrics as torchmetrics classes: they add up batches, and processes, in sums and counts, never in lists.

Each ``update`` takes the arguments of its function by the same names, so that one ``MetricCollection`` can be fed
everything at once and hands each metric what it asks for::

    metrics = MetricCollection([Coverage(), Diversity(), BackgroundBias()])
    metrics.update(regions=regions, assigned=assigned, visible=visible, kept=kept, maps=maps, masks=masks)

``scope`` says what the number is a mean of (decision 12):

- ``image``: the number of each image, averaged over images. Images in which no part is visible have none: they are
  skipped, and counted in ``skipped``.
- ``dataset``: the assignments of all images pooled, as if they were one large image; the number is computed once.
- ``projection``: each prototype on its own source image. The caller feeds one row per *class* instead of one per image
  (see docs/metrics.md); from there on it is the mean over rows, as for ``image``.
"""

# ruff: noqa: F401  (this is where they are imported from)
import dapl.common.operators  # before torchmetrics, which imports torchvision
from dapl.metrics.classes.base import Scope
from dapl.metrics.classes.coverage import (
    Coverage,
    Diversity,
    Imbalance,
    IslandsPerRegion,
    OneToOneCoverage,
    PartAssignment,
    PartIdentity,
    PartPrecision,
    PartRecall,
    PartsPerPrototype,
    Redundancy,
)
from dapl.metrics.classes.explanations import (
    BackgroundBias,
    Comprehensiveness,
    Distinctiveness,
    ObjectOverlap,
    OutsideInsideRelevanceRatio,
    RegionBackgroundShare,
    SpatialMisalignment,
)
from dapl.metrics.classes.prototypes import Consistency, ExplanationSize, Faithfulness, Purity, Stability
