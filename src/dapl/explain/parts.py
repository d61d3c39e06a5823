"""Where prototypes are active in an image, on which part of what is annotated there, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dapl.data.sample import Sample
from dapl.data.transforms import Fit
from dapl.explain.patches import Box
from dapl.metrics.functional import assign, region_background_share, upsample, visible_parts
from dapl.metrics.functional.parts import part_masks
from dapl.metrics.functional.pixel_sets import shared_pixels
from dapl.metrics.functional.regions import shown_regions
from dapl.metrics.naming import Parts, clear_parts, is_background, part_text, share_text
from dapl.models.contract import Embedding, PrototypeModel, square_pixels
from dapl.runs.checkpoint import bounding_boxes
from dapl.runs.outlines import Outline, outlines_of
from dapl.runs.schemas import PrototypeLook, PrototypeRecord

_NEARLY_SQUARE = 0.97
"""Of an image with such sides as good as nothing is cut off."""
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


def seen_of(sample: Sample, how: Fit) -> str:
    """Which part of an image, as it is before it is fitted to the model's size, the model sees: a sentence for pages;
    empty where that is all of it.

    >>> seen_of(Sample(torch.zeros(3, 60, 100), 0, "bird.jpg"), "crop")
    'The model sees the centre square of the image: 40 % of it, left and right, are cut off.'
    >>> seen_of(Sample(torch.zeros(3, 60, 100), 0, "bird.jpg"), "pad")
    ''
    """
    height, width = sample.image.shape[-2:]
    if how != "crop" or min(height, width) / max(height, width) > _NEARLY_SQUARE:
        return ""
    sides = "left and right" if width > height else "top and bottom"
    share = share_text(1 - min(height, width) / max(height, width))
    return f"The model sees the centre square of the image: {share} of it, {sides}, are cut off."


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


@dataclass(frozen=True)
class ModelRecords:
    """What is known of a model beside its weights."""

    classes: Sequence[str]
    """Names, in the order of the logits."""
    records: Sequence[PrototypeRecord] = ()
    """Where each prototype came from; empty where that is not known."""
    looks: Sequence[PrototypeLook] = ()
    """Where each prototype looks, as it was measured; empty where it was not."""
    _said: dict[int, Described] = field(default_factory=dict, repr=False, compare=False)
    """What was said of a prototype is said again with the next image."""

    def record(self, j: int) -> PrototypeRecord | None:
        """The record of prototype j; None where it is not known."""
        return self.records[j] if self.records else None

    def described(self, j: int) -> Described:
        """What prototype j is called, and how much of it lies on the object."""
        if j not in self._said:
            self._said[j] = described(self.record(j), self.looks[j] if j < len(self.looks) else None)
        return self._said[j]


def slots_of(model: PrototypeModel) -> list[int]:
    """For each prototype the number of its colour: its head, or its place in its class where a system has no heads."""
    prototypes = model.prototypes
    if prototypes.groups > 1:
        return prototypes.group_of.tolist()
    table = prototypes.counted()
    slots = [0] * len(prototypes)
    for label, place in reversed(table[1].nonzero().tolist()):  # of several classes the first one counts
        slots[int(table[0][label, place])] = place
    return slots


@dataclass(frozen=True)
class Located:
    """Where M prototypes are active in one image of S×S pixels; on the CPU."""

    boxes: list[Box | None]
    """Bounds of their regions; None where a map is flat and has none."""
    outlines: list[Outline | None]
    """Outlines of their regions, in pixels."""
    parts: list[str | None]
    """The part that each region lies on."""
    foreground: list[float | None]
    """Share of each region that lies on the object."""
    in_crop: list[float | None]
    """Share of each region that lies in the square that its head saw; None where it saw more, or has no region."""


def locate(
    model: PrototypeModel, maps: Tensor, side: int, facts: ImageFacts | None, squares: Tensor | None = None
) -> Located:
    """maps: M×H×W of one image of side × side pixels; squares: M×3, what was seen, of a system that sees no more."""
    return locate_in_images(model, [maps], side, [facts], [squares])[0]


def locate_in_images(
    model: PrototypeModel,
    maps: Sequence[Tensor],
    side: int,
    facts: Sequence[ImageFacts | None],
    squares: Sequence[Tensor | None],
) -> list[Located]:
    """As `locate`, of several images with any number of maps each: to begin takes longer than to go on."""
    together = None if squares[0] is None else torch.cat([one.cpu() for one in squares if one is not None])
    regions = shown_regions(model, torch.cat(list(maps)).cpu(), side, together)
    bounds = bounding_boxes(regions)
    outlines = outlines_of(regions.numpy(), bounds)
    found, end = [], 0
    for own, known, seen in zip(maps, facts, squares, strict=True):
        start, end = end, end + len(own)
        lie = regions[start:end]
        corners = bounds[start:end]
        in_crop: list[float | None] = [None] * len(own)
        if seen is not None:
            crops = square_pixels(seen, side).tolist()
            corners = crops
            in_crop = [share_within(region, box) for region, box in zip(lie.numpy(), crops, strict=True)]
        boxes = [None if box is None else (box[0], box[1], box[2], box[3]) for box in corners]
        shares = foreground_shares(lie, known)
        found.append(Located(boxes, outlines[start:end], name_parts(lie, known), shares, in_crop))
    return found


def share_within(region: np.ndarray, box: Sequence[int]) -> float | None:
    """Which share of a region (bool H×W) lies within left, top, right and bottom; None of an empty one.

    >>> share_within(np.array([[True, True, False, True]]), (1, 0, 4, 1))
    0.6666666666666666
    """
    number, (left, top, right, bottom) = np.count_nonzero(region), box
    return float(np.count_nonzero(region[top:bottom, left:right]) / number) if number else None


def heat_of(model: PrototypeModel, maps: Tensor, side: int, drawn: int | None = None) -> Tensor:
    """maps M×H×W on an image of side × side pixels, as the system itself shows them: M×S×S, on the CPU.

    ``drawn``: no more than so many pixels per side are needed, S is as many; a system that does not upsample
    bicubically paints on the pixels of the image all the same.
    """
    maps = maps.cpu()
    if type(model).to_pixels is PrototypeModel.to_pixels:  # two matrix products do that ten times as fast
        return upsample(maps, side if drawn is None else min(side, drawn))
    return model.to_pixels(maps, (side, side)).cpu()


def squares_of(model: PrototypeModel, embedding: Embedding, row: int, named: Tensor) -> Tensor | None:
    """The squares that the heads of some prototypes (long M) saw in one image, M×3; None where they see more."""
    squares = embedding.squares
    return None if squares is None else squares[row, model.prototypes.group_of[named]]


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
