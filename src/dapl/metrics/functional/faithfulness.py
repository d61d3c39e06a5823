"""Faithfulness: does the similarity of a prototype go away with the region that is shown for it?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    Generators,
    check_flags,
    check_images,
    check_positive,
    check_same_grid,
    check_same_shape,
    drawn,
    shape_of,
    which,
)


class SimilarityLoss(NamedTuple):
    """How much similarity prototypes lose when image regions are blurred out; every field a number.

    ``region``: mean loss when the prototype's own region is blurred out; ``random``: for a random region of the same
    shape and area; ``difference``: region − random, above 0 if the shown region holds more of the evidence than chance;
    ``ratio``: region / random, NaN where random regions lose nothing; ``wins``: share of cases in which the own region
    loses more than the random one, ½ is chance.
    """

    region: Tensor
    random: Tensor
    difference: Tensor
    ratio: Tensor
    wins: Tensor


def blur_out(images: Tensor, regions: Tensor, sigma: float = 10.0) -> Tensor:
    r"""Images with a region replaced by its blur, everything else untouched.

    .. math:: x'[i] = \begin{cases} (G_\sigma * x)[i] & i \in A \\ x[i] & \text{else} \end{cases}

    A Gaussian blur as two matrix products, one per axis; at the border the weights that are left are scaled to sum to
    one, so that a plain image stays as it is. A blur removes what a prototype can be similar to and, unlike a grey or
    black patch, brings no edges (Fong & Vedaldi, "Interpretable Explanations of Black Boxes by Meaningful
    Perturbation", ICCV 2017, whose σ of 10 px is the default).

    Args:
        images: (…, channels, H, W), uint8, or floating point in [0, 1].
        regions: bool (…, H, W) for one region per image, or (…, M, H, W) for M.
        sigma: in pixels.

    Returns:
        floating point in [0, 1], the shape of images; (…, M, channels, H, W) for M regions per image.

    Example:
        >>> import torch
        >>> image = torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0]]])
        >>> blur_out(image, torch.tensor([[False, False, True, True, False]]), sigma=1.0)
        tensor([[[0.0000, 0.0000, 0.4026, 0.2571, 0.0000]]])
    """
    check_positive(sigma, "sigma")
    images = check_images(images)
    check_flags(regions, "regions", "height, width")
    check_same_grid(images, regions, "images and regions")
    batch, extra = images.shape[:-3], regions.ndim - images.ndim + 1
    if extra not in (0, 1) or regions.shape[: len(batch)] != batch:
        raise DaplError(f"regions must be one or M per image, but are {shape_of(regions)} for {shape_of(images)}.")
    rows, columns = (_gaussian(side, sigma, images) for side in images.shape[-2:])
    with torch.autocast(images.device.type, enabled=False):
        blurred = rows @ (images.to(rows.dtype) @ columns.mT)
    if extra:
        images, blurred = images.unsqueeze(-4), blurred.unsqueeze(-4)
    return torch.where(regions.unsqueeze(-3), blurred.to(images.dtype), images)


def _gaussian(side: int, sigma: float, like: Tensor) -> Tensor:
    """The matrix (side, side) of a Gaussian blur along one axis; rows sum to one."""
    place = torch.arange(side, dtype=torch.float64)
    weights = torch.exp(-0.5 * ((place.unsqueeze(1) - place) / sigma).square())
    weights[weights < 1e-9] = 0  # beyond 6.4 σ: changes no float32, and numbers near its smallest are slow
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return (weights / weights.sum(1, keepdim=True)).to(device=like.device, dtype=dtype)


def random_regions(regions: Tensor, generator: Generators) -> Tensor:
    """Each region moved to a random place: rolled by a random number of rows and columns, never by none.

    What leaves the image on one side comes back on the other, so that shape and area stay what they are, whatever
    the region; a region that would have to stay inside could not move if it has pixels at opposite borders.

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
    rows = (torch.arange(height, device=regions.device) - (shift // width).unsqueeze(-1)) % height
    columns = (torch.arange(width, device=regions.device) - (shift % width).unsqueeze(-1)) % width
    moved = regions.gather(-2, rows.unsqueeze(-1).expand(regions.shape))
    return moved.gather(-1, columns.unsqueeze(-2).expand(regions.shape))


def faithfulness(before: Tensor, blurred: Tensor, random: Tensor, measured: Tensor | None = None) -> SimilarityLoss:
    r"""Similarity lost when a prototype's region is blurred out, against that for a random region of the same area.

    .. math:: \text{region} = \overline{s_j(x) - s_j(x \text{ without } A_j)}, \qquad
        \text{random} = \overline{s_j(x) - s_j(x \text{ without } A_j \text{ moved})}

    Means over all (image, prototype). For DAPL, whose attention mixes places, it says whether the region shown is
    where the evidence came from. Costs two more model passes for each (image, prototype) measured: two over the images
    if one prototype per image is measured (that of the largest contribution, or one drawn), 2·M for M.

    Ours; deletion against chance, after Fong & Vedaldi (2017) and PixPNet's relevance ordering test.

    Args:
        before: scores of prototypes on the images, (…).
        blurred: their scores on `blur_out` of their own regions (95th percentile), the same shape.
        random: their scores on `blur_out` of `random_regions`, the same shape.
        measured: bool (…), the cases that count (prototypes that are kept); None means all.

    Returns:
        `SimilarityLoss`, every field a number; NaN when nothing was measured.

    Example:
        >>> import torch
        >>> loss = faithfulness(torch.tensor([5.0, 4.0]), torch.tensor([2.0, 3.0]), torch.tensor([4.5, 2.5]))
        >>> loss.region, loss.random, loss.difference, loss.ratio, loss.wins
        (tensor(2.), tensor(1.), tensor(1.), tensor(2.), tensor(0.5000))
    """
    counts = loss_counts(before, blurred, random, measured)
    return SimilarityLoss(*(value.float() for value in similarity_loss(counts.reshape(-1, 4).sum(0))))


def loss_counts(before: Tensor, blurred: Tensor, random: Tensor, measured: Tensor | None = None) -> Tensor:
    """What `similarity_loss` is made of, to be added up: loss of the own and of a random region, won, cases: (…, 4)."""
    for scores, name in ((before, "before"), (blurred, "blurred"), (random, "random")):
        if not scores.is_floating_point() or not bool(torch.isfinite(scores).all()):
            raise DaplError(
                f"{name} must be scores, finite floating point numbers, but is {scores.dtype} or not finite."
            )
        check_same_shape(before, scores, f"before and {name}")
    first, own, other = (scores.detach().double() for scores in (before, blurred, random))
    own, other = first - own, first - other
    counts = which(measured, before, before.shape, "measured", "prototypes").double()
    return torch.stack([value * counts for value in (own, other, (own > other).double(), torch.ones_like(own))], dim=-1)


def similarity_loss(sums: Tensor) -> SimilarityLoss:
    """The means, from sums (…, 4) of `loss_counts`."""
    region, random, wins = (sums[..., :3] / sums[..., 3:]).unbind(-1)
    ratio = (region / random).where(random > 0, torch.nan)
    return SimilarityLoss(region, random, region - random, ratio, wins)
