"""Interpretability in numbers as pure functions: tensors in, tensors out, batched, on any device.

A batch of maps becomes Coverage and Diversity in three steps, each a function here::

    regions = activation_regions(maps, size)            # A_j, bool (…, P, H, W)
    visible = visible_parts(parts, visible)             # parts M_k, bool (…, K, H, W)
    assigned = assign(overlap(regions, parts), 0.2, visible, kept)     # bool (…, P, K)
    coverage(assigned, visible, kept), diversity(regions, assigned, visible, kept)

Leading axes (…) are images, mostly one. ``visible`` (…, K) takes the parts that cannot be seen out of K, ``kept``
(…, P) takes pruned prototypes out of P. An image in which no part is visible has no Coverage and no Diversity: NaN.

The metrics of the field stand beside them, each to its published definition (docs/companions.md). Keypoints are x and y
in pixels of the image *as the model saw it*, a pixel covering [x, x+1) × [y, y+1). All numbers are shares between 0 and
1 where the papers print percent.
"""

# ruff: noqa: F401  (this is where they are imported from)
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from dapl.metrics.functional.background import (
    background_bias,
    background_overlap,
    object_overlap,
    oirr_counts,
    outside_inside_relevance_ratio,
    region_background_share,
    share_beside,
    share_counts,
)
from dapl.metrics.functional.consistency import (
    PUBLISHED_STD,
    consistency,
    consistent_prototypes,
    corresponding_parts,
    count_parts,
    count_stable,
    peaks,
    perturb,
    stability,
    stable_shares,
    unchanged_parts,
    visible_keypoints,
)
from dapl.metrics.functional.controls import (
    Control,
    ControlRegions,
    blob_regions,
    control_regions,
    matched_regions,
    random_regions,
)
from dapl.metrics.functional.coverage import (
    CoverageTerms,
    assign,
    assigned_counts,
    coverage,
    coverage_counts,
    coverage_terms,
    matched_counts,
    matched_share,
    one_to_one_coverage,
    overlap,
    parts_per_prototype,
    precision,
    recall,
    visible_parts,
)
from dapl.metrics.functional.diversity import (
    DiversityTerms,
    diversity,
    diversity_counts,
    diversity_terms,
    imbalance,
    redundancy,
)
from dapl.metrics.functional.explanations import (
    class_sizes,
    comprehensiveness,
    comprehensiveness_counts,
    distinctiveness,
    distinctiveness_counts,
    explanation_size,
    most_active,
    sparsity,
    unique_prototypes,
)
from dapl.metrics.functional.faithfulness import (
    LOSS_CASES,
    LOSS_TERMS,
    SimilarityLoss,
    blur_out,
    faithfulness,
    loss_counts,
    similarity_loss,
)
from dapl.metrics.functional.identity import class_identity, identity_counts, part_identity, peak_parts, renamed
from dapl.metrics.functional.interventions import (
    background_independence,
    completeness,
    controlled_data_check,
    distractibility,
    important_pieces,
    irrelevant_pieces,
    part_importance,
    single_deletion,
    sufficient_sets,
    target_sensitivity,
)
from dapl.metrics.functional.misalignment import (
    Misalignment,
    activation_change,
    attack,
    location_change,
    misalignment_terms,
    outside,
    rank_change,
    spatial_misalignment,
)
from dapl.metrics.functional.parts import part_masks
from dapl.metrics.functional.pixel_sets import Islands, PixelSets, iou, islands
from dapl.metrics.functional.purity import (
    merge_left_right,
    merge_parts,
    parts_in_patches,
    patches,
    purity,
    top_images,
)
from dapl.metrics.functional.regions import (
    activation_regions,
    flat_maps,
    mass_regions,
    object_regions,
    regions_and_peaks,
    sized_regions,
    upsample,
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The function of a metric that is not named above: a new one is written in its module and nowhere else."""
        from dapl.metrics.registry import METRICS

        if name in {metric.function for metric in METRICS}:
            for module in pkgutil.iter_modules(__path__, f"{__name__}."):
                found = vars(importlib.import_module(module.name)).get(name)
                if getattr(found, "__module__", None) == module.name:
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
