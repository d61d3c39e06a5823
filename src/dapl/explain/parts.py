"""What is annotated on an image, which part a region lies on, and what a prototype is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.data.sample import Sample
from dapl.metrics.functional import assign, region_background_share, visible_parts
from dapl.metrics.functional.parts import part_masks
from dapl.metrics.functional.pixel_sets import shared_pixels
from dapl.metrics.naming import Parts, clear_parts, is_background, part_text
from dapl.runs.schemas import PrototypeLook, PrototypeRecord

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


@dataclass(frozen=True)
class Described:
    """What is said of a prototype wherever it is shown, whatever the image is."""

    parts: Parts = ()
    """Names of the parts that it is on, with the share of the images in which it is; empty where no part is clear."""
    on_object: float | None = None
    """Share of its regions on the object: on the images measured, else as pruning saw it, else of its patch."""
    same_spot: tuple[int, ...] = ()
    """Other prototypes of its classes that look at the same spot."""

    @property
    def name(self) -> str | None:
        """Parts with their shares, as people read them."""
        return part_text(self.parts)

    @property
    def background(self) -> bool:
        """Whether more than half of it lies off the object."""
        return is_background(self.on_object)


def described(record: PrototypeRecord | None, look: PrototypeLook | None) -> Described:
    """What a prototype is called: from where it looks, as far as that was measured.

    >>> described(None, PrototypeLook(0, 0.8, {"face": 0.9})).name
    'face 90 %'
    """
    shares = [None if look is None else look.on_object]
    shares += [] if record is None else [record.region_foreground, record.foreground_share]
    on_object = next((share for share in shares if share is not None), None)
    if look is None:
        return Described(on_object=on_object)
    return Described(clear_parts(look.parts, look.shared), on_object, tuple(look.same_spot))


def name_parts(regions: Tensor, facts: ImageFacts | None) -> list[str | None]:
    """For each region (bool M×S×S) the part that most of it lies on; None where it covers none, or none is known.

    Of parts with which it has the same number of pixels in common the one nearest to its centre is taken.
    """
    if facts is None or facts.parts is None or len(regions) == 0:
        return [None] * len(regions)
    shared, sizes = shared_pixels(regions, facts.parts)  # M×K and K
    assigned = assign(shared / sizes.clamp(min=1), TAU, facts.visible)
    distance = (_centres(regions).unsqueeze(1) - _centres(facts.parts).unsqueeze(0)).norm(dim=2)
    nearness = 1 - distance / distance.new_tensor(regions.shape[-2:]).norm()
    best = (shared + 0.5 * nearness).masked_fill(~assigned, -1).argmax(1).tolist()
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
