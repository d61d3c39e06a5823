"""Islands: the connected components of a region, and the largest of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dapl.metrics.functional.checks import check_boolean

_PIXELS_AT_ONCE = 2**24


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
