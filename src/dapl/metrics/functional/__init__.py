"""The paper's interpretability metrics as pure functions: tensors in, tensors out, batched, on any device.

A batch of maps becomes numbers in three steps, each a function here::

    regions = activation_regions(maps, size)            # A_j, bool (…, P, H, W)
    visible = visible_parts(parts, visible)             # parts M_k, bool (…, K, H, W)
    assigned = assign(overlap(regions, parts), 0.2, visible, kept)     # bool (…, P, K)
    coverage(assigned, visible, kept), diversity(regions, assigned, visible, kept)

Leading axes (…) are images, mostly one. ``visible`` (…, K) takes the parts that cannot be seen out of K, ``kept``
(…, P) takes pruned prototypes out of P. An image in which no part is visible has no Coverage and no Diversity: NaN.
"""

from dapl.metrics.functional._background import background_bias, region_background_share
from dapl.metrics.functional._coverage import assign, coverage, overlap, precision, recall, visible_parts
from dapl.metrics.functional._diversity import diversity, imbalance, redundancy
from dapl.metrics.functional._regions import activation_regions, iou, upsample

__all__ = [
    "activation_regions",
    "assign",
    "background_bias",
    "coverage",
    "diversity",
    "imbalance",
    "iou",
    "overlap",
    "precision",
    "recall",
    "redundancy",
    "region_background_share",
    "upsample",
    "visible_parts",
]
