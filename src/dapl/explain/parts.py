"""What is annotated on an image, and which part a region lies on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.batches.cache import Annotations
from dapl.data.sample import Sample
from dapl.metrics.functional import assign, overlap, region_background_share, visible_parts
from dapl.metrics.functional.parts import part_masks

TAU = 0.2
"""A region lies on a part when it covers more than this share of it, as in Coverage."""


@dataclass(frozen=True)
class ImageFacts:
    """What is known of one image of S×S pixels, as the model sees it; K parts."""

    mask: Tensor | None = None
    """bool S×S, the object."""
    parts: Tensor | None = None
    """bool K×S×S."""
    visible: Tensor | None = None
    """bool K: the parts that count."""
    names: Sequence[str] = ()
    """K."""


def facts_of(sample: Sample, names: Sequence[str]) -> ImageFacts:
    """What a sample, fitted to the model's size, has annotated: its part masks, else discs around its keypoints."""
    mask = None if sample.mask is None else sample.mask.as_subclass(Tensor).bool()
    if sample.part_masks is not None and names:
        parts = sample.part_masks.as_subclass(Tensor).bool()
        return ImageFacts(mask, parts, visible_parts(parts), names)
    if sample.keypoints is None or not names:
        return ImageFacts(mask, names=names)
    points = sample.keypoints.as_subclass(Tensor)
    seen = torch.ones(len(points), dtype=torch.bool) if sample.visible is None else sample.visible
    box = None if sample.box is None else sample.box.as_subclass(Tensor)[0]
    soft = None if mask is None else mask.float()
    parts = part_masks(points, seen, (sample.image.shape[-2], sample.image.shape[-1]), boxes=box, masks=soft)
    return ImageFacts(mask, parts, visible_parts(parts, seen), names)


def nearest_part(
    annotations: Annotations, place: tuple[float, float], reach: float, names: Sequence[str]
) -> str | None:
    """The part of a single image that is nearest to ``place`` (x, y), at most ``reach`` pixels to a side away.

    A part is where its keypoint is, or the middle of its mask where there are no keypoints.
    """
    points, visible = annotations.keypoints[0], annotations.visible[0]
    if not bool(visible.any()):
        masks = annotations.part_masks()
        if masks is None:
            return None
        points, visible = _centres(masks[0]).flip(1) + 0.5, visible_parts(masks[0])
    distance = (points - torch.tensor(place)).abs()
    near = visible & (distance <= reach).all(1)
    if not bool(near.any()):
        return None
    return names[int(distance.norm(dim=1).masked_fill(~near, torch.inf).argmin())]


def name_parts(regions: Tensor, facts: ImageFacts | None) -> list[str | None]:
    """For each region (bool M×S×S) the part that it covers most of; None where it lies on none, or none is known.

    Of parts that are covered alike (small ones mostly lie inside a region) the one nearest to its centre is taken.
    """
    if facts is None or facts.parts is None or len(regions) == 0:
        return [None] * len(regions)
    covered = overlap(regions, facts.parts)  # M×K
    assigned = assign(covered, TAU, facts.visible)
    distance = (_centres(regions).unsqueeze(1) - _centres(facts.parts).unsqueeze(0)).norm(dim=2)
    nearness = 1 - distance / distance.new_tensor(regions.shape[-2:]).norm()
    best = (covered + 1e-3 * nearness).masked_fill(~assigned, -1).argmax(1).tolist()
    return [facts.names[k] if assigned[m, k] else None for m, k in enumerate(best)]


def foreground_shares(regions: Tensor, facts: ImageFacts | None) -> list[float | None]:
    """The share of each region (bool M×S×S) that lies on the object; None where that is not known."""
    if facts is None or facts.mask is None:
        return [None] * len(regions)
    shares = 1 - region_background_share(regions, facts.mask)
    return [None if share != share else share for share in shares.tolist()]


def _centres(masks: Tensor) -> Tensor:
    """bool M×H×W → M×2, (row, column); of an empty mask 0."""
    height, width = masks.shape[1:]
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    moments = torch.stack((row, column, torch.ones_like(row)), dim=2).view(-1, 3).float()
    found = masks.flatten(1).view(torch.uint8).float() @ moments  # one product: sums over booleans are slow
    return found[:, :2] / found[:, 2:].clamp(min=1)
