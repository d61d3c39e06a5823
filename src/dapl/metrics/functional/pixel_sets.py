"""Regions as sets of pixels: how many two of them share, and the islands that one falls into."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import check_boolean, shape_of

_PIXELS_AT_ONCE = 2**24


class PixelSets:
    """Sets of pixels, bool (…, J, H, W), that are counted several times: their bits are packed once.

    `iou`, `dapl.metrics.functional.overlap` and the other functions that count pixels take them in place of a tensor.

    Example:
        >>> import torch
        >>> sets = PixelSets(torch.tensor([[1, 1, 0], [0, 1, 1]]).bool().view(2, 1, 3))
        >>> iou(sets)[0, 1], sets.sizes()
        (tensor(0.3333), tensor([2., 2.]))
    """

    def __init__(self, sets: Tensor) -> None:
        self.sets = sets

    def __repr__(self) -> str:
        return f"PixelSets({shape_of(self.sets)})"

    @cached_property
    def bits(self) -> np.ndarray | None:
        """uint64 (images, J, words), 64 pixels per word; None where they cannot be counted."""
        if self.sets.dtype != torch.bool or self.sets.device.type != "cpu" or not hasattr(np, "bitwise_count"):
            return None
        return _packed(self.rows)

    @property
    def rows(self) -> Tensor:
        """(images, J, pixels)."""
        *images, sets, height, width = self.sets.shape
        return self.sets.reshape(math.prod(images), sets, height * width)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the counts: beyond so many pixels float32 no longer counts exactly."""
        return torch.float32 if self.sets.shape[-2] * self.sets.shape[-1] < 2**24 else torch.float64

    def sizes(self) -> Tensor:
        """Pixels of each set, (…, J)."""
        if self.bits is None:
            return self.sets.flatten(-2).sum(-1, dtype=self.dtype)
        counts = np.bitwise_count(self.bits).sum(-1, dtype=np.int64)
        return torch.from_numpy(counts).to(self.dtype).view(self.sets.shape[:-2])


def as_sets(sets: Tensor | PixelSets) -> PixelSets:
    return sets if isinstance(sets, PixelSets) else PixelSets(sets)


def iou(regions: Tensor | PixelSets, images: Tensor | None = None) -> Tensor:
    r"""Intersection over union of every two regions, from one product of the regions with themselves.

    .. math:: \text{IoU}(A_i, A_j) = \frac{|A_i \cap A_j|}{|A_i| + |A_j| - |A_i \cap A_j|}

    and 0 if both are empty: prototypes without a region share no pixel.

    Args:
        regions: bool (…, P, H, W), or `PixelSets` of them.
        images: integer (…, P), the image each region lies on, where they differ (scope ``projection``). Regions are
            sets of pixels of an image: on two images they share none, and their IoU is 0.

    Returns:
        (…, P, P), symmetric.

    Example:
        >>> import torch
        >>> regions = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool().view(2, 1, 3)
        >>> iou(regions)
        tensor([[1.0000, 0.3333],
                [0.3333, 1.0000]])
        >>> iou(regions, images=torch.tensor([7, 8]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    regions = as_sets(regions)
    check_boolean(regions.sets, "regions", "prototypes")
    shared, area = shared_pixels(regions, regions)
    union = area.unsqueeze(-1) + area.unsqueeze(-2) - shared
    values = shared / union.clamp(min=1)
    if images is None:
        return values
    if images.shape != regions.sets.shape[:-2]:
        raise DaplError(
            f"images must be one image per region, but {shape_of(images)} do not fit {shape_of(regions.sets)}."
        )
    return values * (images.unsqueeze(-1) == images.unsqueeze(-2))


def shared_pixels(a: Tensor | PixelSets, b: Tensor | PixelSets) -> tuple[Tensor, Tensor]:
    """Products of a, (…, I, H, W), with b, (…, J, H, W): |A_i ∩ B_j| (…, I, J) and |B_j| (…, J) if both are sets.

    b may also hold real numbers, which are then summed over A_i.
    """
    same = a is b
    a = as_sets(a)
    b = a if same else as_sets(b)
    images, sets, others = a.sets.shape[:-3], a.sets.shape[-3], b.sets.shape[-3]
    if a.bits is not None and b.bits is not None:
        shared = torch.from_numpy(_shared_bits(a.bits, b.bits))
        return shared.to(a.dtype).view(*images, sets, others), b.sizes()
    rows_a, rows_b, dtype = a.rows, b.rows, a.dtype
    pixels, device = rows_a.shape[-1], rows_a.device
    products = torch.empty((len(rows_a), sets + 1, others), dtype=dtype, device=device)
    with torch.autocast(device.type, enabled=False):  # bfloat16 counts to 256
        for rows in chunks(len(rows_a), pixels * (sets + others), device):
            chunk = rows_a[rows]
            left = torch.empty((len(chunk), sets + 1, pixels), dtype=dtype, device=device)
            left[:, :-1], left[:, -1] = chunk, 1.0  # the last is the whole image, which gives the sizes
            right = left[:, :-1] if same else rows_b[rows].to(dtype)
            torch.matmul(left, right.mT, out=products[rows])
    products = products.view(*images, sets + 1, others)
    return products[..., :-1, :], products[..., -1, :]


def _shared_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bits that sets (n, I, words) and (n, J, words) share, (n, I, J): a tenth of the time of a product of floats.

    And no threads: waiting for each other costs them more than the work where others use the machine too.
    """
    shared = np.empty((len(a), a.shape[1], b.shape[1]), np.int64)
    for image, (own, other) in enumerate(zip(a, b, strict=True)):
        step = max(1, 2**18 // max(1, other.size))
        for start in range(0, len(own), step):
            both = own[start : start + step, None] & other
            shared[image, start : start + step] = np.bitwise_count(both).sum(-1, dtype=np.uint32)
    return shared


def _packed(sets: Tensor) -> np.ndarray:
    """bool (…, pixels) → uint64 (…, ⌈pixels/64⌉); the last word is filled up with 0."""
    pixels = sets.shape[-1]
    if pixels % 64 == 0:
        return np.packbits(sets.numpy(), axis=-1).view(np.uint64)
    filled = np.zeros((*sets.shape[:-1], -(-pixels // 64) * 8), np.uint8)
    filled[..., : -(-pixels // 8)] = np.packbits(sets.numpy(), axis=-1)
    return filled.view(np.uint64)


def chunks(rows: int, elements_per_row: int, device: torch.device) -> Iterator[slice]:
    """Slices of rows small enough that what is made from one stays in the cache, and memory does not grow with rows."""
    budget = 2**20 if device.type == "cpu" else 2**27
    step = max(1, budget // elements_per_row)
    return (slice(start, start + step) for start in range(0, rows, step))


def first_and_last(occupied: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the first and the last True along the last axis, where there is one: bool (…, S) → long (…)."""
    flags = occupied.byte()
    return flags.argmax(-1), occupied.shape[-1] - 1 - flags.flip(-1).argmax(-1)


class Islands(NamedTuple):
    """The islands of every region."""

    number: Tensor
    """integers (…, P): how many; 0 for an empty region."""
    largest: Tensor
    """bool (…, P, H, W): the largest one; of equally large ones the first in row-major order."""


def islands(regions: Tensor) -> Islands:
    """The connected components of each region; pixels that touch at a side or a corner are connected (8 neighbours).

    The upsampled map of a prototype mostly has several hills, and a threshold then cuts several islands. A person is
    shown one box and takes it for one place: the largest island is what the box promises.

    Components are those of the runs of pixels in neighbouring rows, which takes a fifth of the time of labelling
    pixels.

    Args:
        regions: bool (…, P, H, W).

    Returns:
        `Islands`.

    Example:
        >>> import torch
        >>> found = islands(torch.tensor([[[1, 0, 0, 1], [0, 1, 0, 1]]]).bool())
        >>> found.number
        tensor([2])
        >>> found.largest.int()
        tensor([[[1, 0, 0, 0],
                 [0, 1, 0, 0]]], dtype=torch.int32)
    """
    check_boolean(regions, "regions", "prototypes")
    flat = regions.flatten(0, -3)
    step = max(1, _PIXELS_AT_ONCE // flat[0].numel()) if len(flat) else 1
    numbers, largest = torch.zeros(len(flat), dtype=torch.long), torch.zeros(flat.shape, dtype=torch.bool)
    for start in range(0, len(flat), step):
        rows = slice(start, start + step)
        number, pixels = _islands(flat[rows].cpu().numpy())
        numbers[rows], largest[rows] = torch.from_numpy(number), torch.from_numpy(pixels)
    shape = regions.shape
    return Islands(numbers.view(shape[:-2]).to(regions.device), largest.view(shape).to(regions.device))


def _islands(regions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool n×H×W → how many (n), the largest (bool n×H×W)."""
    count, height, width = regions.shape
    padded = np.zeros((count, height + 1, width + 2), np.uint8)  # so that rows, and images, do not touch
    padded[:, :height, 1:-1] = regions
    flat, row = padded.reshape(-1), width + 2
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    starts, ends = edges[0::2], edges[1::2]  # run i holds the pixels from starts[i] up to, without, ends[i]
    # Runs of the next row that touch run i, with corners: those that end at its start or later and start by its end.
    first, last = np.searchsorted(ends, starts + row), np.searchsorted(starts, ends + row, side="right")
    touching = np.maximum(last - first, 0)
    here = np.repeat(np.arange(len(starts)), touching)
    there = np.arange(touching.sum()) + np.repeat(first - (np.cumsum(touching) - touching), touching)
    from scipy.sparse import coo_array  # scipy takes as long to load as all else: only where it is used
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(here), bool), (here, there)), shape=(len(starts), len(starts)))
    number, island = connected_components(graph, directed=False)
    size = np.bincount(island, ends - starts, minlength=number)
    first_run = np.full(number, len(starts))
    np.minimum.at(first_run, island, np.arange(len(starts)))
    region = starts[first_run] // ((height + 1) * row)  # of each island
    order = np.lexsort((first_run, -size, region))  # in each region the largest first, then the first
    best = order[np.unique(region[order], return_index=True)[1]]
    taken = np.isin(island, best)
    lengths = (ends - starts)[taken]
    inside = np.arange(lengths.sum()) + np.repeat(starts[taken] - (np.cumsum(lengths) - lengths), lengths)
    flat[:] = 0
    flat[inside] = 1
    return np.bincount(region, minlength=count), padded[:, :height, 1:-1].astype(bool)
