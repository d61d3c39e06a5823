"""The metrics of the field beside Coverage and Diversity, each to its published definition (docs/companions.md).

Pure functions first: tensors in, tensors out, batched, on any device. The classes that add up batches and processes
(`Consistency`, `Stability`, `Purity`, `ObjectOverlap`, `OutsideInsideRelevanceRatio`, `ExplanationSize`,
`Faithfulness`) are loaded when first asked for: torchmetrics takes two seconds, which the functions do not need.

Throughout, B are images, P prototypes, K parts; keypoints are x and y in pixels of the image *as the model saw it*, a
pixel covering [x, x+1) × [y, y+1). All numbers are shares between 0 and 1 where the papers print percent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dapl.metrics.companions._consistency import (
    consistency,
    consistent_prototypes,
    corresponding_parts,
    count_parts,
    peaks,
)
from dapl.metrics.companions._faithfulness import SimilarityLoss, blur_out, faithfulness, random_regions
from dapl.metrics.companions._keypoints import visible_keypoints
from dapl.metrics.companions._overlap import background_overlap, object_overlap, outside_inside_relevance_ratio
from dapl.metrics.companions._purity import (
    merge_left_right,
    merge_parts,
    parts_in_patches,
    patches,
    purity,
    top_images,
)
from dapl.metrics.companions._sparsity import class_sizes, explanation_size, sparsity, unique_prototypes
from dapl.metrics.companions._stability import count_stable, perturb, stability

if TYPE_CHECKING:
    from dapl.metrics.companions.classes import (
        Consistency,
        ExplanationSize,
        Faithfulness,
        ObjectOverlap,
        OutsideInsideRelevanceRatio,
        Purity,
        Stability,
    )

_CLASSES = (
    "Consistency",
    "ExplanationSize",
    "Faithfulness",
    "ObjectOverlap",
    "OutsideInsideRelevanceRatio",
    "Purity",
    "Stability",
)

__all__ = [
    "Consistency",
    "ExplanationSize",
    "Faithfulness",
    "ObjectOverlap",
    "OutsideInsideRelevanceRatio",
    "Purity",
    "SimilarityLoss",
    "Stability",
    "background_overlap",
    "blur_out",
    "class_sizes",
    "consistency",
    "consistent_prototypes",
    "corresponding_parts",
    "count_parts",
    "count_stable",
    "explanation_size",
    "faithfulness",
    "merge_left_right",
    "merge_parts",
    "object_overlap",
    "outside_inside_relevance_ratio",
    "parts_in_patches",
    "patches",
    "peaks",
    "perturb",
    "purity",
    "random_regions",
    "sparsity",
    "stability",
    "top_images",
    "unique_prototypes",
    "visible_keypoints",
]


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("dapl.metrics.companions.classes"), name)
