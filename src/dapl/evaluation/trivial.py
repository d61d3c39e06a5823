"""Maps that no model made: what Coverage, Diversity and the like are worth shows by what such maps get.

Each entry of `TRIVIAL` makes the maps of N prototypes for a batch of images, at the size of the images. A disc is the
activation region of a round bump: whatever share of the pixels the protocol gives a region, the region of the bump is
the disc of that area around its centre (cut off at the border of the image, and then wider).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.common.seeds import generator
from dapl.evaluation.ground_truth import GroundTruth
from dapl.metrics.functional.consistency import pixel_of, visible_keypoints
from dapl.metrics.functional.purity import merge_left_right
from dapl.metrics.functional.regions import upsample
from dapl.metrics.registry import Need

NOISE_CELLS = 7
"""Smooth noise is drawn on 7×7 cells, the grid of most backbones at 224 pixels, and upsampled as maps are."""
MIDDLE = 0.6
"""The share of an image's side that the fixed grid takes."""
CLUSTERED = 512
"""As many pixels of an object, evenly spaced, tell its clusters."""


@dataclass(frozen=True)
class TrivialBatch:
    """B images of S×S pixels, of which only annotations are known, and how many maps of which kind are wanted."""

    indices: Tensor
    """long B: the rows of the images in their split, from which random numbers follow."""
    truth: GroundTruth
    parts: tuple[str, ...]
    prototypes: int
    """N, per image."""
    size: int
    share: float
    """The share of the pixels that a region holds."""
    seed: int

    def generators(self, what: str) -> list[torch.Generator]:
        """One per image: an image gets the same maps in any batch."""
        return [generator(self.seed, "chance", what, index) for index in self.indices.tolist()]

    def objects(self) -> Tensor:
        """bool B×S×S: the object's pixels; the whole image where its mask is empty."""
        masks = self.truth.masks
        assert masks is not None
        objects = masks.bool()
        return objects | ~objects.any((1, 2), keepdim=True)


def bumps(centres: Tensor, size: int, share: float) -> Tensor:
    r"""Round bumps whose regions are discs: :math:`1 / (1 + \|x - c\|^2 / r^2)`, where :math:`\pi r^2` = share · S².

    Args:
        centres: (…, 2), x and y in pixels, where the first pixel's centre is 0.
        size: S.
        share: of the pixels that a region holds.

    Returns:
        (…, S, S).

    Example:
        >>> from dapl.metrics.functional import activation_regions
        >>> maps = bumps(torch.tensor([[2.0, 1.0]]), size=5, share=0.2)
        >>> activation_regions(maps, percentile=80).int()
        tensor([[[0, 0, 1, 0, 0],
                 [0, 1, 1, 1, 0],
                 [0, 0, 1, 0, 0],
                 [0, 0, 0, 0, 0],
                 [0, 0, 0, 0, 0]]], dtype=torch.int32)
    """
    places = torch.arange(size, device=centres.device, dtype=torch.float32)
    along = (centres.float().unsqueeze(-1) - places).square_().mul_(math.pi / (share * size**2))
    distance = along[..., 1, :].unsqueeze(-1) + along[..., 0, :].unsqueeze(-2)  # rows are y, columns x
    return distance.add_(1).reciprocal_()


# --- where the discs are --------------------------------------------------------------------------------------------


def anywhere(batch: TrivialBatch) -> Tensor:
    """B×N×2: pixels of the image, drawn evenly."""
    draws = [torch.rand(batch.prototypes, 2, generator=one) for one in batch.generators("image")]
    return (torch.stack(draws) * batch.size).floor()


def in_the_mask(batch: TrivialBatch) -> Tensor:
    """B×N×2: pixels of the object, drawn evenly and with replacement."""
    found = []
    for one, source in zip(batch.objects(), batch.generators("mask"), strict=True):
        pixels = pixels_of(one)
        found.append(pixels[torch.randint(len(pixels), (batch.prototypes,), generator=source)])
    return torch.stack(found)


def on_a_grid(batch: TrivialBatch) -> Tensor:
    """1×N×2: the same places in every image."""
    return grid_places(batch.prototypes, batch.size).unsqueeze(0)


def grid_places(count: int, size: int) -> Tensor:
    """count×2: rows of about equal length in the middle three fifths of an image, where photographs have their object.

    >>> grid_places(10, 100)[:5] + 0.5
    tensor([[26., 35.],
            [38., 35.],
            [50., 35.],
            [62., 35.],
            [74., 35.]])
    """
    rows = max(1, math.isqrt(count // 2))  # wider than high, as most objects are: 10 are two rows of five
    lengths = [count * (row + 1) // rows - count * row // rows for row in range(rows)]
    cells = [
        ((column + 0.5) / length, (row + 0.5) / rows) for row, length in enumerate(lengths) for column in range(length)
    ]
    return ((torch.tensor(cells) - 0.5) * MIDDLE + 0.5) * size - 0.5


def at_the_centre(batch: TrivialBatch) -> Tensor:
    """1×1×2: the middle of the image."""
    return torch.full((1, 1, 2), (batch.size - 1) / 2)


def at_the_centroid(batch: TrivialBatch) -> Tensor:
    """B×1×2: the mean of the object's pixels."""
    return torch.stack([pixels_of(one).mean(0) for one in batch.objects()]).unsqueeze(1)


def on_clusters(batch: TrivialBatch) -> Tensor:
    """B×N×2: the object's pixels shared out among N centres by k-means."""
    samples = []
    for one in batch.objects():
        pixels = pixels_of(one)
        samples.append(pixels[torch.linspace(0, len(pixels) - 1, CLUSTERED).long()])
    return cluster_centres(torch.stack(samples), batch.prototypes)


def cluster_centres(points: Tensor, count: int, rounds: int = 20) -> Tensor:
    """B×count×2: Lloyd's k-means of points B×n×2, from points that are far from each other."""
    centres = points.gather(
        1, far_apart(points, torch.ones(points.shape[:2]).bool(), count).unsqueeze(2).expand(-1, -1, 2)
    )
    for _ in range(rounds):
        member = torch.nn.functional.one_hot(torch.cdist(points, centres).argmin(2), count).to(points.dtype)
        own = member.sum(1).unsqueeze(2)
        centres = torch.where(own > 0, member.mT @ points / own.clamp(min=1), centres)
    return centres


def far_apart(points: Tensor, allowed: Tensor, count: int) -> Tensor:
    """long B×count: the first allowed point, then always the one that is farthest from those taken before.

    points: B×n×2; allowed: bool B×n. Once all allowed points are taken, the first of them is taken again.

    >>> far_apart(torch.tensor([[[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]]]), torch.ones(1, 3).bool(), 4)
    tensor([[0, 2, 1, 0]])
    """
    taken = [allowed.int().argmax(1)]
    distance = torch.full(allowed.shape, torch.inf)
    for _ in range(count - 1):
        last = points.gather(1, taken[-1].view(-1, 1, 1).expand(-1, 1, 2))
        distance = torch.minimum(distance, (points - last).square().sum(2))
        taken.append(distance.masked_fill(~allowed, -1.0).argmax(1))
    return torch.stack(taken, dim=1)


def on_keypoints(batch: TrivialBatch) -> Tensor:
    """B×N×2: N visible keypoints that are far from each other; a prototype keeps to its part where that is one of them.

    The middle of the image where no part is visible.
    """
    points = batch.truth.points
    assert points is not None
    visible = visible_keypoints(points.keypoints, points.visible, batch.size)
    taken = far_apart(points.keypoints, visible, batch.prototypes)
    _, kinds = merge_left_right(list(batch.parts))
    order = torch.stack([kept_to_parts(kinds[one].tolist(), batch.prototypes) for one in taken])
    places = pixel_of(points.keypoints, batch.size)
    found = places.gather(1, taken.gather(1, order).unsqueeze(2).expand(-1, -1, 2))
    middle = (batch.size - 1) / 2
    return found.where(visible.any(1)[:, None, None], torch.full_like(found, middle))


def kept_to_parts(kinds: list[int], prototypes: int) -> Tensor:
    """long N: which of N keypoints each prototype takes, kinds their parts: part k goes to prototype k mod N if free.

    >>> kept_to_parts([2, 0, 2], 3)
    tensor([1, 2, 0])
    """
    takes: dict[int, int] = {}
    left = []
    for place, kind in enumerate(kinds):
        if takes.setdefault(kind % prototypes, place) != place:
            left.append(place)
    free = (prototype for prototype in range(prototypes) if prototype not in takes)
    takes |= dict(zip(free, left, strict=True))
    return torch.tensor([takes[prototype] for prototype in range(prototypes)])


def pixels_of(mask: Tensor) -> Tensor:
    """n×2: x and y of the pixels of a mask, bool S×S."""
    rows, columns = mask.cpu().nonzero(as_tuple=True)
    return torch.stack((columns, rows), dim=1).float()


# --- maps -----------------------------------------------------------------------------------------------------------


def _discs(centres: Callable[[TrivialBatch], Tensor]) -> Callable[[TrivialBatch], Tensor]:
    return lambda batch: bumps(centres(batch), batch.size, batch.share)


def noise_in_the_mask(batch: TrivialBatch) -> Tensor:
    """B×N×S×S: noise of 7×7 cells, upsampled; outside of the object a hundredth of it, below all that is inside."""
    cells = (batch.prototypes, NOISE_CELLS, NOISE_CELLS)
    noise = torch.stack([torch.randn(cells, generator=one) for one in batch.generators("noise")])
    maps = upsample(noise, batch.size)
    maps -= maps.amin((-2, -1), keepdim=True)
    maps /= maps.amax((-2, -1), keepdim=True)
    return torch.where(batch.objects().cpu().unsqueeze(1), maps + 0.01, maps * 0.01)


def constant(batch: TrivialBatch) -> Tensor:
    """1×1×S×S."""
    return torch.ones(1, 1, batch.size, batch.size)


@dataclass(frozen=True)
class Trivial:
    """One way to make maps without a model."""

    name: str
    maps: Callable[[TrivialBatch], Tensor]
    """B×N×S×S, or 1 in place of B or N where the maps of all images or prototypes are the same."""
    needs: tuple[Need, ...] = ()
    """What the data must give."""


TRIVIAL = (
    Trivial("random discs in the image", _discs(anywhere)),
    Trivial("a fixed grid of discs", _discs(on_a_grid)),
    Trivial("the image's centre, N times", _discs(at_the_centre)),
    Trivial("constant maps", constant),
    Trivial("random discs in the mask", _discs(in_the_mask), ("masks",)),
    Trivial("discs on clusters of the mask", _discs(on_clusters), ("masks",)),
    Trivial("the mask's centroid, N times", _discs(at_the_centroid), ("masks",)),
    Trivial("smooth noise in the mask", noise_in_the_mask, ("masks",)),
    Trivial("oracle: discs on the keypoints", _discs(on_keypoints), ("points",)),
)
"""From what has seen nothing to what has seen the annotations, in the order of the tables."""
