"""Control regions: what a prototype's region is compared with when it is blurred out (`faithfulness`).

A region that lies on the bird always wins against one that was moved anywhere, because most places are background and
matter to nobody. A fair control is as large as the region and has as much of the object in it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import Generators, check_flags, check_same_shape, drawn
from dapl.metrics.functional.pixel_sets import first_and_last

Control = Literal["object", "blob", "anywhere"]
TOLERANCE = 0.05
"""Shares of the object that differ by no more than this count as equal."""
MOST_OVERLAP = 0.5
"""A moved region shares at most this part of its pixels with the place it came from, or it would be no other place."""


class ControlRegions(NamedTuple):
    """Control regions, and which of them are what their name says."""

    regions: Tensor
    """bool (…, H, W), each with as many pixels as the region that it is a control for."""
    matched: Tensor
    """bool (…): as much of the object as the region has (``object``), inside the object and disjoint from the region
    (``blob``); where an image has no such place, the control is the nearest to it that there is."""


def control_regions(control: Control, regions: Tensor, masks: Tensor | None, generator: Generators) -> ControlRegions:
    """One control for each region, by the name that ``dapl evaluate --control`` takes.

    Args:
        control: ``object``: `matched_regions`; ``blob``: `blob_regions`; ``anywhere``: `random_regions`.
        regions: bool (…, H, W).
        masks: bool (…, H, W), the object; None where there is none, and then only ``anywhere`` can be had.
        generator: one for all; or one per image (the first axis).

    Returns:
        `ControlRegions`.

    Example:
        >>> import torch
        >>> region, bird = torch.zeros(1, 4, 6).bool(), torch.zeros(1, 4, 6).bool()
        >>> region[0, 0, :2], bird[0, :, :4] = True, True
        >>> control, matched = control_regions("object", region, bird, torch.Generator().manual_seed(0))
        >>> (control & bird).sum(), (control & region).sum(), matched
        (tensor(2), tensor(0), tensor([True]))
    """
    if control == "anywhere":
        moved = random_regions(regions, generator)
        return ControlRegions(moved, torch.ones(moved.shape[:-2], dtype=torch.bool, device=moved.device))
    if masks is None:
        raise DaplError(f"control: {control} needs masks that say where the object is; use anywhere.")
    makers = {"object": matched_regions, "blob": blob_regions}
    if control not in makers:
        raise DaplError(f"control must be object, blob or anywhere, but is {control!r}.")
    return makers[control](regions, masks, generator)


def random_regions(regions: Tensor, generator: Generators) -> Tensor:
    """Each region moved to a random place: rolled by a random number of rows and columns, never by none.

    What leaves the image on one side comes back on the other, so that shape and area stay what they are, whatever
    the region. Most places are background: this control is easily beaten by anything that lies on the object.

    Args:
        regions: bool (…, H, W).
        generator: one for all; or one per image (the first axis), so that the draw for an image depends on neither
            batch nor process.

    Returns:
        bool (…, H, W).

    Example:
        >>> import torch
        >>> regions = torch.eye(4).bool().expand(3, 4, 4)
        >>> random_regions(regions, torch.Generator().manual_seed(0)).sum((-2, -1))
        tensor([4, 4, 4])
    """
    check_flags(regions, "regions", "height, width")
    height, width = regions.shape[-2:]
    if height * width == 1:
        raise DaplError("regions of a single pixel cannot be moved anywhere else.")
    shift = drawn(
        regions.shape[:-2],
        generator,
        lambda shape, g: torch.randint(1, height * width, tuple(shape), generator=g, device=g.device),
    ).to(regions.device)
    return _rolled(regions, shift // width, shift % width)


def matched_regions(regions: Tensor, masks: Tensor, generator: Generators) -> ControlRegions:
    r"""Each region moved, as it is, to another place of the image that holds as much of the object.

    With :math:`A + d` the region moved by :math:`d` rows and columns and :math:`M` the object, :math:`d` is drawn from

    .. math:: D = \{d : A + d \text{ inside the image},\ |A \cap (A+d)| \le \tfrac12 |A|\}, \qquad
        \Big| \tfrac{|(A+d) \cap M|}{|A|} - \tfrac{|A \cap M|}{|A|} \Big| \le 0.05

    and among these uniformly from those that share the fewest pixels with :math:`A` (up to 5 % of its area more than
    the fewest). Nothing comes back in on the other side. Equal shares come before disjointness: pixels that are in
    both regions are blurred in both cases and favour neither, but more object favours the region that has it. Where no
    place in :math:`D` has the share, those with the nearest share are taken; where :math:`D` is empty, because the
    region reaches opposite borders, `blob_regions` gives the control. In both cases ``matched`` is False.

    The shares at all :math:`d` come from one correlation by FFT, rounded to whole pixels.

    Args:
        regions: bool (…, H, W).
        masks: bool (…, H, W), the object.
        generator: one for all; or one per image (the first axis).

    Returns:
        `ControlRegions`; the control of an empty region is empty, and not matched.

    Example:
        >>> import torch
        >>> region, bird = torch.zeros(4, 6).bool(), torch.zeros(4, 6).bool()
        >>> region[1, 1:3], bird[1:3, 1:3] = True, True
        >>> control, matched = matched_regions(region, bird, torch.Generator().manual_seed(0))
        >>> control.int(), matched
        (tensor([[0, 0, 0, 0, 0, 0],
                [0, 0, 0, 0, 0, 0],
                [0, 1, 1, 0, 0, 0],
                [0, 0, 0, 0, 0, 0]], dtype=torch.int32), tensor(True))
    """
    _check(regions, masks)
    height, width = regions.shape[-2:]
    place, blob_place = _draws(regions, generator)
    area = regions.sum((-2, -1))[..., None, None]
    on_object, on_itself = _at_shifts(masks, regions), _at_shifts(regions, regions)
    away = (on_object - (masks & regions).sum((-2, -1))[..., None, None]).abs()
    eligible = _inside(regions) & (on_itself <= MOST_OVERLAP * area)
    movable = eligible.flatten(-2).any(-1) & (area[..., 0, 0] > 0)
    nearest = away.masked_fill(~eligible, height * width).flatten(-2).amin(-1)[..., None, None]
    eligible &= away <= nearest.maximum((TOLERANCE * area).long())
    fewest = on_itself.masked_fill(~eligible, height * width).flatten(-2).amin(-1)[..., None, None]
    eligible &= on_itself <= fewest + TOLERANCE * area
    chosen = _nth(eligible.flatten(-2), place)
    columns = 2 * width - 1
    moved = _rolled(regions, chosen // columns - (height - 1), chosen % columns - (width - 1))
    matched = movable & (nearest <= TOLERANCE * area)[..., 0, 0]
    if not bool(movable.all()):
        moved = torch.where(movable[..., None, None], moved, _blobs(regions, masks, blob_place))
    return ControlRegions(moved, matched)


def blob_regions(regions: Tensor, masks: Tensor, generator: Generators) -> ControlRegions:
    r"""A blob inside the object for each region, of the same area and, as far as the object allows, disjoint from it.

    A centre is drawn from :math:`M \setminus A`, and the :math:`|A|` pixels nearest to it are taken, those of
    :math:`M \setminus A` first; where these do not suffice, those of :math:`M \cap A`, then of the background. Only the
    first kind makes it ``matched``. A stricter control than `matched_regions` for regions that lie partly on the
    background: all of the blob is object.

    Args:
        regions: bool (…, H, W).
        masks: bool (…, H, W), the object.
        generator: one for all; or one per image (the first axis).

    Returns:
        `ControlRegions`; the control of an empty region is empty, and not matched.

    Example:
        >>> import torch
        >>> region, bird = torch.zeros(4, 6).bool(), torch.zeros(4, 6).bool()
        >>> region[0, :2], bird[1:3, 1:4] = True, True
        >>> control, matched = blob_regions(region, bird, torch.Generator().manual_seed(0))
        >>> control.int(), matched
        (tensor([[0, 0, 0, 0, 0, 0],
                [0, 0, 1, 0, 0, 0],
                [0, 0, 1, 0, 0, 0],
                [0, 0, 0, 0, 0, 0]], dtype=torch.int32), tensor(True))
    """
    _check(regions, masks)
    _, place = _draws(regions, generator)
    area = regions.sum((-2, -1))
    matched = (area > 0) & ((masks & ~regions).sum((-2, -1)) >= area)
    return ControlRegions(_blobs(regions, masks, place), matched)


def _check(regions: Tensor, masks: Tensor) -> None:
    check_flags(regions, "regions", "height, width")
    check_flags(masks, "masks", "height, width")
    check_same_shape(regions, masks, "regions and masks")


def _draws(regions: Tensor, generator: Generators) -> tuple[Tensor, Tensor]:
    """Two numbers in [0, 1) per region: for the place, and for the centre of a blob. float64 (…)."""

    def draw(shape: object, g: torch.Generator) -> Tensor:
        return torch.rand((*shape, 2), dtype=torch.float64, generator=g, device=g.device)  # type: ignore[misc]

    place, centre = drawn(regions.shape[:-2], generator, draw).to(regions.device).unbind(-1)
    return place, centre


def _rolled(regions: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Regions (…, H, W) rolled by whole numbers (…) of rows and columns."""
    height, width = regions.shape[-2:]
    rows = (torch.arange(height, device=regions.device) - down.unsqueeze(-1)) % height
    columns = (torch.arange(width, device=regions.device) - right.unsqueeze(-1)) % width
    moved = regions.gather(-2, rows.unsqueeze(-1).expand(regions.shape))
    return moved.gather(-1, columns.unsqueeze(-2).expand(regions.shape))


def _at_shifts(fixed: Tensor, moving: Tensor) -> Tensor:
    """|fixed ∩ (moving + d)| for all shifts d, long (…, 2H−1, 2W−1); no shift is in the middle."""
    height, width = fixed.shape[-2:]
    size = (2 * height, 2 * width)  # room for every shift: nothing wraps round
    spectra = [torch.fft.rfft2(sets.double(), s=size) for sets in (moving, fixed)]
    shared = torch.fft.irfft2(spectra[0].conj() * spectra[1], s=size).round().long()
    return shared.roll((height - 1, width - 1), (-2, -1))[..., :-1, :-1]


def _inside(regions: Tensor) -> Tensor:
    """bool (…, 2H−1, 2W−1): the shifts that leave the whole region in the image."""
    return _free(regions.any(-1)).unsqueeze(-1) & _free(regions.any(-2)).unsqueeze(-2)


def _free(occupied: Tensor) -> Tensor:
    """By how much a set of rows may move: bool (…, H) → bool (…, 2H−1)."""
    side = occupied.shape[-1]
    first, last = (place.unsqueeze(-1) for place in first_and_last(occupied))
    shift = torch.arange(1 - side, side, device=occupied.device)
    return (first + shift >= 0) & (last + shift < side)


def _nth(eligible: Tensor, place: Tensor) -> Tensor:
    """The index of one of the eligible (bool (…, n)), each as likely as the others for a place in [0, 1): long (…)."""
    number = eligible.sum(-1)
    wanted = (place * number).long().minimum(number - 1)
    return (eligible.cumsum(-1) > wanted.unsqueeze(-1)).byte().argmax(-1)


def _blobs(regions: Tensor, masks: Tensor, place: Tensor) -> Tensor:
    height, width = regions.shape[-2:]
    kind = torch.where(masks, 0, 2) + regions  # 0: object beside the region, 1: object in it, 2 and 3: background
    flat = kind.flatten(-2)
    centre = _nth(flat == flat.amin(-1, keepdim=True), place)
    y, x = torch.arange(height, device=regions.device), torch.arange(width, device=regions.device)
    down = (y - (centre // width).unsqueeze(-1)).square().unsqueeze(-1)
    right = (x - (centre % width).unsqueeze(-1)).square().unsqueeze(-2)
    order = (kind * (height**2 + width**2) + down + right).flatten(-2).argsort(dim=-1, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(height * width).to(order).expand_as(order))
    return (rank < regions.flatten(-2).sum(-1, keepdim=True)).view(regions.shape)
