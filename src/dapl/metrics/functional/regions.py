"""Where a prototype is active: maps brought to the size of the image, and activation regions A_j.

Regions are a fixed share of the image, or sized by the object or by the mass of the map.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import check_maps, check_numbers, check_open_interval, check_share, shape_of
from dapl.metrics.functional.pixel_sets import chunks
from dapl.models.contract import PrototypeModel


def upsample(maps: Tensor, size: int | tuple[int, int]) -> Tensor:
    r"""Bring maps to ``size`` bicubically, as two small matrix products: :math:`U_H \, a \, U_W^\top`.

    Differentiable, and up to rounding ``torch.nn.functional.interpolate(mode="bicubic", align_corners=False)``.

    Args:
        maps: (…, h, w), floating point. Half precision is computed, and returned, in float32.
        size: height and width of the result, or one number for both.

    Returns:
        (…, H, W).

    Example:
        >>> import torch
        >>> upsample(torch.tensor([[0.0, 1.0]]), (1, 4))
        tensor([[-0.1055,  0.2266,  0.7734,  1.1055]])
    """
    check_numbers(maps, "maps", "height, width", finite=False)
    height, width = pair(size)
    dtype = torch.float64 if maps.dtype == torch.float64 else torch.float32
    if maps.shape[-2:] == (height, width):  # every weight is 0 or 1
        return maps.to(dtype)
    rows = _interpolation(maps.shape[-2], height, dtype, maps.device)
    columns = _interpolation(maps.shape[-1], width, dtype, maps.device)
    with torch.autocast(maps.device.type, enabled=False):  # bfloat16 would make ties of neighbouring pixels
        return rows @ (maps.to(dtype) @ columns.mT)


def activation_regions(maps: Tensor, size: int | tuple[int, int] | None = None, percentile: float = 95.0) -> Tensor:
    r"""The activation region of each prototype (decision 10): the pixels at or above the percentile of its own map.

    .. math:: A_j = \{x : a_j[x] \ge q_j\}, \qquad q_j = a_{j,(r)}, \quad r = \lceil \text{percentile}/100 (n-1) \rceil

    where :math:`a_j` is the map upsampled bicubically to the image's :math:`n` pixels and :math:`a_{j,(r)}` its order
    statistic of rank :math:`r`, counted from 0: ``numpy.percentile(…, method="higher")``. A region has exactly
    :math:`n - r` pixels (2,509 of 224×224), or none: that of a flat map, which says nothing of any place, is empty.

    Values that differ from :math:`q_j` by at most 1e-5 of the largest tie with it, for the same model gives other last
    bits in another batch or on another processor, and these must not decide. Of the pixels that tie, those nearest to
    the map's peak (`dapl.metrics.functional.peaks`) belong to the region, as many as it lacks; of equally near ones the
    first in row-major order. A map is flat when it varies by at most 1e-3 of its largest value: what is left then is
    rounding. Both numbers are explained in docs/metrics.md.

    Args:
        maps: (…, P, h, w), finite.
        size: of the image; None when the maps have that size already (PixPNet's are painted by receptive fields).
        percentile: strictly between 0 and 100.

    Returns:
        bool (…, P, H, W).

    Example:
        >>> import torch
        >>> activation_regions(torch.arange(6.0).view(1, 2, 3), percentile=70)
        tensor([[[False, False, False],
                 [False,  True,  True]]])
        >>> activation_regions(torch.arange(49.0).view(1, 7, 7), size=224).sum((-2, -1))
        tensor([2509])
        >>> activation_regions(torch.ones(1, 7, 7), size=224).any()
        tensor(False)
    """
    return _regions_and_highest(maps, size, percentile)[0]


def regions_and_peaks(
    maps: Tensor, size: int | tuple[int, int] | None = None, percentile: float = 95.0
) -> tuple[Tensor, Tensor]:
    """`activation_regions` and `dapl.metrics.functional.peaks` from one look at the pixels of every map.

    Args:
        maps: (…, P, h, w), finite.
        size: of the image; None when the maps have that size already.
        percentile: strictly between 0 and 100.

    Returns:
        bool (…, P, H, W) and integers (…, P, 2).

    Example:
        >>> import torch
        >>> regions, highest = regions_and_peaks(torch.arange(6.0).view(1, 2, 3), percentile=70)
        >>> regions.sum().item(), highest.tolist()
        (2, [[2, 1]])
    """
    regions, highest = _regions_and_highest(maps, size, percentile)
    return regions, column_and_row(highest, regions.shape[-1]).view(*maps.shape[:-2], 2)


def _regions_and_highest(maps: Tensor, size: int | tuple[int, int] | None, percentile: float) -> tuple[Tensor, Tensor]:
    """As `regions_and_peaks`, with the number of the highest pixel of each map, one map after the other."""
    check_maps(maps)
    check_open_interval(percentile, 0, 100, "percentile")
    height, width = maps.shape[-2:] if size is None else pair(size)
    rank = _rank(percentile, height * width)
    regions = torch.empty((*maps.shape[:-2], height, width), dtype=torch.bool, device=maps.device)
    by_map = regions.flatten(0, -3)
    highest = torch.empty(len(by_map), dtype=torch.long, device=maps.device)
    for rows, chunk, slack in on_pixels(maps, size):
        if chunk.device.type == "cpu":
            _cut_high(chunk.flatten(1).numpy(), slack.numpy(), rank, width, by_map[rows], highest[rows])
            continue
        highest[rows] = first_of_highest(chunk.flatten(1), slack)
        threshold = chunk.flatten(1).kthvalue(rank + 1, dim=-1).values
        below = chunk.flatten(1).kthvalue(rank, dim=-1).values if rank else torch.full_like(slack, -torch.inf)
        torch.ge(chunk, threshold[:, None, None], out=by_map[rows])
        tied = (threshold - below <= slack).nonzero().flatten()  # a flat map has an infinite slack
        if len(tied):
            numbers = torch.full_like(tied, height * width - rank)
            settled = settle_ties(chunk[tied], threshold[tied], slack[tied], numbers)
            by_map[rows][tied] = settled.to(maps.device)
    return regions, highest


@lru_cache(maxsize=64)
def _rank(percentile: float, pixels: int) -> int:
    """⌈percentile/100 (n−1)⌉, exactly: 0.95 has no exact binary value."""
    return math.ceil(Fraction(str(percentile)) * (pixels - 1) / 100)


def first_of_highest(pixels: Tensor, slack: Tensor) -> Tensor:
    """The first pixel (n) of those that tie with the highest, of maps (n, pixels) with their `tie_width` (n)."""
    ties = pixels >= (pixels.amax(1) - slack).unsqueeze(1)
    return ties.view(torch.uint8).argmax(1)


def column_and_row(places: Tensor, width: int) -> Tensor:
    """Numbers of pixels in row-major order (n) → x and y (n, 2)."""
    return torch.stack((places % width, places // width), dim=-1)


def _cut_high(values: np.ndarray, slacks: np.ndarray, rank: int, width: int, regions: Tensor, highest: Tensor) -> None:
    """Fill the regions (bool n×H×W) and highest pixels (n) of maps (n×pixels), from the few pixels that may matter.

    All maps are cut together: a call per map often takes longer than the work that it does.
    """
    cut, first = regions.flatten(1).numpy(), highest.numpy()
    done = _cut_above(values, slacks, *_around(values, rank), rank, width, cut, first)
    for row in np.flatnonzero(~done).tolist():  # rare: the bound was too high
        first[row] = _cut_one(values[row], slacks[row], rank, width, cut[row])


def _cut_one(values: np.ndarray, slack: np.floating, rank: int, width: int, region: np.ndarray) -> int:
    """Fill the region (bool pixels) of one map (pixels) that is not flat; its highest pixel."""
    threshold, below = _order_statistics(values, rank)
    peak = np.argmax(values >= values.max() - slack)
    if threshold - below > slack:
        np.greater_equal(values, threshold, out=region)
    else:
        places = np.flatnonzero(values >= threshold - slack)
        region[:] = False
        _settle(region, places, values[places], peak, threshold, slack, len(values) - rank, width)
    return int(peak)


def _cut_above(
    values: np.ndarray,
    slacks: np.ndarray,
    bounds: np.ndarray,
    ceilings: np.ndarray,
    rank: int,
    width: int,
    cut: np.ndarray,
    first: np.ndarray,
) -> np.ndarray:
    """As `_cut_high`, looking only at the pixels above a bound per map (n): which maps are done, bool n.

    ``ceilings`` (n): thresholds are very likely no higher. Of a flat map, whose slack is infinite, nothing is cut.
    """
    maps, count = values.shape
    number, flat = count - rank, slacks == np.inf
    above = np.flatnonzero(values > bounds[:, None])  # of all maps, one after the other
    high = values.reshape(-1)[above]
    ends = np.searchsorted(above, np.arange(0, values.size + 1, count))
    lengths = np.diff(ends)
    done = ~flat & (lengths > number)
    sure = np.full(maps, np.inf, values.dtype)
    ties, tied = [], np.zeros(maps, dtype=int)
    first[:] = 0
    for row in np.flatnonzero(done).tolist():
        start, slack = ends[row], slacks[row]
        own = high[start : ends[row + 1]]
        threshold, below = _order_statistics(own, len(own) - number, ceilings[row])
        if threshold - slack <= bounds[row]:
            done[row] = False
            continue
        sure[row] = threshold + slack
        near = np.flatnonzero(
            (own >= (threshold if threshold - below > slack else threshold - slack)) & (own <= sure[row])
        )
        tied[row] = len(near)
        ties.append(near + start)
        first[row] = above[start + np.argmax(own >= own.max() - slack)] - row * count
    np.greater(values, sure[:, None], out=cut)
    if not ties:
        return done | flat
    pixel = above[np.concatenate(ties)]
    lacking = number - np.array([np.count_nonzero(own) for own in cut])  # faster than along an axis
    if (tied > lacking)[done].any():
        of_map = np.repeat(np.arange(maps), tied)
        down, right = np.divmod(pixel - of_map * count, width)
        peak_down, peak_right = np.divmod(first, width)
        distance = (down - peak_down[of_map]) ** 2 + (right - peak_right[of_map]) ** 2
        # By map, then by distance, then in row-major order: as one number, which is sorted fastest.
        key = np.sort((of_map * (width**2 + (count // width) ** 2) + distance) * values.size + pixel)
        pixel = key[np.arange(len(key)) < np.repeat(np.cumsum(tied) - tied + lacking, tied)] % values.size
    cut.reshape(-1)[pixel] = True
    return done | flat


def _around(values: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """For each map (n×pixels) two values between which the one of this rank very likely lies: (n), (n).

    Every so many of the pixels tell.
    """
    maps, count = values.shape
    some = values[:, :: max(1, count // 1021)]
    known = some.shape[1]
    low, high = rank * known // count - known // 70, rank * known // count + known // 100
    if count < _MANY or low < 0 or high >= known:
        return np.full(maps, -np.inf, values.dtype), np.full(maps, np.inf, values.dtype)
    parted = np.partition(some, (low, high), axis=1)
    return parted[:, low], parted[:, high]


def _order_statistics(
    values: np.ndarray, rank: int, ceiling: float | np.floating = math.inf
) -> tuple[np.floating, np.floating]:
    """The value of this rank (from 0), and the largest of those that rank below it (−∞ if none does).

    Those above the ceiling are looked at only where the value of this rank is one of them.
    """
    if not rank:
        return values.min(), values.dtype.type(-np.inf)
    parted = values[values <= ceiling]
    if rank >= len(parted):
        parted = values.copy()
    parted.partition((rank - 1, rank))
    return parted[rank], parted[rank - 1]


_MANY = 2048
"""From so many pixels on, some of them tell first which are high."""


def settle_ties(maps: Tensor, thresholds: Tensor, slacks: Tensor, numbers: Tensor) -> Tensor:
    """Regions (bool n×H×W, on the CPU) of maps (n×H×W) with pixels that tie at the threshold (n), as wide as slack (n).

    Each has its number (n) of pixels: those above the threshold, then of those that tie with it the ones nearest to the
    peak, then the first in row-major order. None where the slack is infinite: the map is flat.
    """
    width = maps.shape[-1]
    regions = np.zeros((len(maps), maps.shape[-2] * width), bool)
    ends = zip(thresholds.tolist(), slacks.tolist(), numbers.tolist(), strict=True)
    for region, values, (threshold, slack, number) in zip(regions, maps.flatten(1).cpu().numpy(), ends, strict=True):
        if slack != math.inf and number > 0:
            places = np.flatnonzero(values >= threshold - slack)  # in row-major order; the peak is one of them
            high = values[places]
            peak = places[np.argmax(high >= high.max() - slack)]
            _settle(region, places, high, peak, threshold, slack, number, width)
    return torch.from_numpy(regions).view(maps.shape)


def _settle(
    region: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
    peak: np.integer,
    threshold: float | np.floating,
    slack: float | np.floating,
    number: int,
    width: int,
) -> None:
    """Set the pixels of one region (bool H·W), as many as its number.

    ``places``: pixels, in row-major order, all those among them that are not below the threshold by more than the
    slack; ``values``: of the map there; ``peak``: its highest pixel.
    """
    sure = values > threshold + slack
    tied = places[(values >= threshold - slack) & ~sure]
    lacking = number - np.count_nonzero(sure)
    if lacking < len(tied):
        below = tied // width
        right = tied - below * width
        distance = (below - peak // width) ** 2 + (right - peak % width) ** 2
        tied = tied[np.argsort(distance, kind="stable")[:lacking]]
    region[places[sure]] = True
    region[tied] = True


def on_pixels(maps: Tensor, size: int | tuple[int, int] | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Maps (…, h, w) chunk by chunk: which of them, their values on the pixels of the image, their `tie_width`."""
    flat = maps.detach().flatten(0, -3)
    flat = flat if flat.dtype == torch.float64 else flat.to(torch.float32)
    height, width = maps.shape[-2:] if size is None else pair(size)
    for rows in chunks(len(flat), height * width, maps.device):
        chunk = flat[rows]
        slack = tie_width(chunk)
        if chunk.shape[-2:] != (height, width):
            # The weights of a pixel sum to one only up to rounding: a map counted from its minimum keeps exact ties.
            chunk = _upsampled(chunk - chunk.amin((-2, -1), keepdim=True), height, width)
        yield rows, chunk, slack


def _upsampled(maps: Tensor, height: int, width: int) -> Tensor:
    """As `upsample`, for what nobody differentiates; with one thread NumPy's products take half of the time."""
    if maps.device.type != "cpu" or torch.get_num_threads() > 1:
        return upsample(maps, (height, width))
    rows = _interpolation(maps.shape[-2], height, maps.dtype, maps.device).numpy()
    columns = _interpolation(maps.shape[-1], width, maps.dtype, maps.device).numpy()
    return torch.from_numpy(rows @ (maps.numpy() @ columns.T))


TIE, FLAT = 1e-5, 1e-3
"""Shares of a map's largest value: what is nearer than the first is a tie; a map that varies by less than the second
is flat. Maps of one model differ by about 2e-6 of that value between batch sizes, processors and precisions."""


def tie_width(maps: Tensor) -> Tensor:
    """How far below a value of a map (n, h, w) another one still ties with it: (n); infinite where the map is flat.

    A tie is told by a distance, not by rounding values to a grid: two values that ought to be equal may lie on both
    sides of an edge of any grid, but they are never far from each other.
    """
    low, high = maps.amin((-2, -1)), maps.amax((-2, -1))
    largest = torch.maximum(high, -low)
    return (TIE * largest).masked_fill(high - low <= FLAT * largest, torch.inf)


def flat_maps(maps: Tensor) -> Tensor:
    """Which maps (…, h, w) are constant but for rounding, so that they say nothing of any place: bool (…).

    Example:
        >>> import torch
        >>> flat_maps(torch.tensor([[[0.3, 0.3]], [[0.3, 0.4]]]))
        tensor([ True, False])
    """
    return tie_width(maps).isinf()


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise DaplError(f"size must be at least one pixel high and wide, but is {height}×{width}.")
    return int(height), int(width)


@lru_cache(maxsize=64)
def _interpolation(source: int, target: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix (target, source) of cubic convolution (Keys 1981; a = −0.75), half-pixel centres, border repeated."""
    with torch.inference_mode(False), torch.no_grad():  # the cached matrix must serve autograd, whoever asks first
        place = (torch.arange(target, dtype=torch.float64) + 0.5) * (source / target) - 0.5
        taps = place.floor().long().unsqueeze(1) + torch.arange(-1, 3)
        distance = (place.unsqueeze(1) - taps).abs()
        near = (1.25 * distance - 2.25) * distance**2 + 1
        far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
        weights = torch.where(distance <= 1, near, far)
        matrix = torch.zeros(target, source, dtype=torch.float64)
        matrix.scatter_add_(1, taps.clamp(0, source - 1), weights)
        return matrix.to(device=device, dtype=dtype)


def sized_regions(maps: Tensor, numbers: Tensor, size: int | tuple[int, int] | None = None) -> Tensor:
    """Regions of a given number of pixels: the highest of each map, ties as in `activation_regions`.

    Args:
        maps: (…, P, h, w), finite.
        numbers: integers (…, P), the pixels of each region; more than there are take all, 0 none.
        size: of the image; None when the maps have that size already.

    Returns:
        bool (…, P, H, W); a flat map has an empty region.

    Example:
        >>> import torch
        >>> sized_regions(torch.tensor([[[1.0, 3.0, 2.0]], [[0.0, 0.0, 0.0]]]), torch.tensor([2, 2])).int()
        tensor([[[0, 1, 1]],
        <BLANKLINE>
                [[0, 0, 0]]], dtype=torch.int32)
    """
    check_maps(maps)
    if numbers.is_floating_point() or numbers.shape != maps.shape[:-2] or bool((numbers < 0).any()):
        raise DaplError(
            f"numbers must be integers from 0 up, one per map, but are {numbers.dtype} {shape_of(numbers)} "
            f"for maps of {shape_of(maps)}."
        )
    height, width = maps.shape[-2:] if size is None else pair(size)
    counts = numbers.flatten().cpu().clamp(max=height * width)
    regions = torch.empty((*maps.shape[:-2], height, width), dtype=torch.bool, device=maps.device)
    by_map = regions.flatten(0, -3)
    for rows, chunk, slack in on_pixels(maps, size):
        values, chosen = chunk.flatten(1).cpu().numpy(), counts[rows]
        ranks = [values.shape[1] - max(1, number) for number in chosen.tolist()]
        thresholds = [float(np.partition(one, rank)[rank]) for one, rank in zip(values, ranks, strict=True)]
        settled = settle_ties(chunk, torch.tensor(thresholds, dtype=torch.float64), slack.cpu(), chosen)
        by_map[rows] = settled.to(maps.device)
    return regions


def object_regions(
    maps: Tensor, areas: Tensor, size: int | tuple[int, int] | None = None, share: float = 0.1
) -> Tensor:
    r"""Regions as large as a share of the object, so that a small bird has small regions.

    .. math:: |A_j| = \max(1, [\text{share} \cdot |M|])

    of the highest pixels of the map, with the object's mask M; empty without an object. At 0.1, ten regions could just
    tile the object. A region by percentile has 5 % of the image, which is a third of CUB's median bird.

    Args:
        maps: (…, P, h, w), finite.
        areas: integers (…, P) or (…, 1), the pixels of the object.
        size: of the image; None when the maps have that size already.
        share: above 0 and at most 1.

    Returns:
        bool (…, P, H, W).

    Example:
        >>> import torch
        >>> object_regions(torch.rand(2, 7, 7), torch.tensor([5000]), size=224).sum((-2, -1))
        tensor([500, 500])
    """
    check_share(share, "share")
    numbers = (areas.double() * share).round().clamp(min=1).where(areas > 0, 0).long()
    return sized_regions(maps, numbers.expand(maps.shape[:-2]), size)


def mass_regions(maps: Tensor, size: int | tuple[int, int] | None = None, share: float = 0.2) -> Tensor:
    r"""The smallest regions that hold a share of the map's mass: small for a sharp map, large for a blurred one.

    .. math:: A_j = \operatorname{argmin}_A |A| \quad \text{with} \quad
        \sum_{x \in A} (a_j[x] - \min a_j) \ge \text{share} \cdot \sum_x (a_j[x] - \min a_j)

    Mass is counted from the map's minimum: log similarities are positive everywhere, and what is the same everywhere
    says nothing of any place.

    Args:
        maps: (…, P, h, w), finite.
        size: of the image; None when the maps have that size already.
        share: above 0 and at most 1.

    Returns:
        bool (…, P, H, W); a flat map has an empty region.

    Example:
        >>> import torch
        >>> mass_regions(torch.tensor([[[1.0, 5.0, 2.0, 4.0]]]), share=0.5).int()  # 4 of 0 + 4 + 1 + 3
        tensor([[[0, 1, 0, 0]]], dtype=torch.int32)
    """
    check_maps(maps)
    check_share(share, "share")
    numbers = torch.zeros(maps.shape[:-2].numel(), dtype=torch.long)
    for rows, chunk, _ in on_pixels(maps, size):
        values = np.sort(chunk.flatten(1).cpu().numpy(), axis=1)[:, ::-1]
        mass = np.cumsum(values - values[:, -1:], axis=1, dtype=np.float64)
        numbers[rows] = torch.from_numpy((mass < share * mass[:, -1:]).sum(1) + 1)
    return sized_regions(maps, numbers.view(maps.shape[:-2]), size)


def map_pixels(model: PrototypeModel, maps: Tensor, size: int) -> tuple[Tensor, int | None]:
    """What makers of regions take for the maps of a system, …×M×H×W: themselves and the size of the image, or, of a
    system that does not upsample bicubically, the maps as it paints them and None."""
    if type(model).to_pixels is PrototypeModel.to_pixels:
        return maps, size
    return model.to_pixels(maps, (size, size)), None


def model_regions(model: PrototypeModel, maps: Tensor, size: int, percentile: float = 95.0) -> Tensor:
    """maps …×M×H×W → regions bool …×M×size×size; a flat map has none, also where painting it makes bumps."""
    values, pixels = map_pixels(model, maps, size)
    regions = activation_regions(values, pixels, percentile)
    return regions if pixels is not None else regions & ~flat_maps(maps)[..., None, None]


MOST_OF_CROP = 0.5
"""Of the crop that a head saw: no more of it than this share is shown as a region."""


def shown_regions(model: PrototypeModel, maps: Tensor, size: int, squares: Tensor | None) -> Tensor:
    """As `model_regions`, as they are drawn: of a head that saw a crop, no larger than half of that.

    Crops are as large as the object wants them. 5 % of the image are a third of a median bird, and all of a small one:
    ten such regions would lie one upon the other. What is measured stays the region of `model_regions`, of which this
    one is a part.

    Shapes: maps M×H×W, squares M×3 (centre x, y and side, as shares of the image) or None → bool M×size×size.
    """
    regions = model_regions(model, maps, size)
    if squares is None:
        return regions
    most = (MOST_OF_CROP * (squares[:, 2].double().cpu() * size).square()).round().clamp_min(1).long()
    large = (regions.flatten(1).sum(1).cpu() > most).nonzero().flatten()
    if len(large):
        values, pixels = map_pixels(model, maps[large], size)
        regions[large] &= sized_regions(values, most[large], pixels)
    return regions
