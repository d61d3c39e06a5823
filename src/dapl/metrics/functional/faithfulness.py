"""Faithfulness: does the similarity of a prototype go away with the region that is shown for it?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    check_flags,
    check_images,
    check_positive,
    check_same_grid,
    check_same_shape,
    shape_of,
    which,
)


class SimilarityLoss(NamedTuple):
    """How much similarity prototypes lose when image regions are blurred out; every field a number.

    ``region``: mean loss when the prototype's own region is blurred out; ``random``: for its control region (see
    `dapl.metrics.functional.controls`); ``difference``: region − random, above 0 if the shown region holds more of the
    evidence than the control; ``ratio``: region / random, NaN where controls lose nothing; ``wins``: share of cases in
    which the own region loses more than the control, ½ is chance; ``own_share``: the share of the similarity that the
    region's own pixels carry when all others are blurred, NaN where that was not measured.
    """

    region: Tensor
    random: Tensor
    difference: Tensor
    ratio: Tensor
    wins: Tensor
    own_share: Tensor


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


def faithfulness(
    before: Tensor,
    blurred: Tensor,
    random: Tensor,
    measured: Tensor | None = None,
    alone: Tensor | None = None,
    nothing: Tensor | None = None,
) -> SimilarityLoss:
    r"""Similarity lost when a prototype's region is blurred out, against that for a control region of the same area.

    .. math:: \text{region} = \overline{s_j(x) - s_j(x \text{ without } A_j)}, \qquad
        \text{random} = \overline{s_j(x) - s_j(x \text{ without the control of } A_j)}, \qquad
        \text{own_share} = \frac{\overline{s_j(\text{only } A_j) - s_j(\text{nothing})}}
        {\overline{s_j(x) - s_j(\text{nothing})}}

    Means over all (image, prototype). *Only A* is the image with everything outside of A blurred out, *nothing* the
    image blurred everywhere: its similarity is what colours and light alone give, and is taken off above and below,
    because similarities are not 0 where nothing is to be seen. The difference says whether the region matters more than
    its control; the own share, how much of the similarity it brings about alone. Where cells see the whole image, the
    first may be large and the second small: the region is then a place, and the evidence is everywhere.

    Each of the four scores costs a model pass for every (image, prototype) measured.

    Ours; deletion against chance, after Fong & Vedaldi (2017) and PixPNet's relevance ordering test.

    Args:
        before: scores of prototypes on the images, (…).
        blurred: their scores on `blur_out` of their own regions (95th percentile), the same shape.
        random: their scores on `blur_out` of `control_regions`, the same shape.
        measured: bool (…), the cases that count (prototypes that are kept, regions that are not empty); None means all.
        alone: their scores on `blur_out` of all but their own regions; with ``nothing``, or neither.
        nothing: their scores on `blur_out` of everything.

    Returns:
        `SimilarityLoss`, every field a number; NaN when nothing was measured.

    Example:
        >>> import torch
        >>> loss = faithfulness(torch.tensor([5.0, 4.0]), torch.tensor([2.0, 3.0]), torch.tensor([4.5, 2.5]))
        >>> loss.region, loss.random, loss.difference, loss.ratio, loss.wins
        (tensor(2.), tensor(1.), tensor(1.), tensor(2.), tensor(0.5000))
        >>> before, lost, alone, nothing = torch.tensor([[5.0], [3.0], [2.0], [1.0]])
        >>> faithfulness(before, lost, lost, None, alone, nothing).own_share    # (2 − 1) / (5 − 1)
        tensor(0.2500)
    """
    counts = loss_counts(before, blurred, random, measured, alone, nothing)
    return SimilarityLoss(*(value.float() for value in similarity_loss(counts.reshape(-1, LOSS_TERMS).sum(0))))


LOSS_TERMS, LOSS_CASES = 6, 3
"""How many there are of `loss_counts`, and which of them says how many cases were measured."""


def loss_counts(
    before: Tensor,
    blurred: Tensor,
    random: Tensor,
    measured: Tensor | None = None,
    alone: Tensor | None = None,
    nothing: Tensor | None = None,
) -> Tensor:
    """What `similarity_loss` is made of, to be added up, (…, 6): loss of the own and of the control region, won, cases,
    similarity that the region carries alone, and that of the whole image, both above that of nothing.

    Example:
        >>> before, blurred, random = torch.tensor([[5.0, 4.0], [2.0, 3.0], [4.5, 2.5]])
        >>> loss_counts(before, blurred, random)[:, :4].tolist()
        [[3.0, 0.5, 1.0, 1.0], [1.0, 1.5, 0.0, 1.0]]
    """
    given = {"before": before, "blurred": blurred, "random": random, "alone": alone, "nothing": nothing}
    if (alone is None) != (nothing is None):
        raise DaplError("alone and nothing belong together: give both, or neither.")
    scores = {name: _scores(value, name) for name, value in given.items() if value is not None}
    for name, value in scores.items():
        check_same_shape(before, value, f"before and {name}")
    first = scores["before"]
    own, other = first - scores["blurred"], first - scores["random"]
    carried, whole = (first.new_zeros(first.shape),) * 2
    if alone is not None:
        carried, whole = scores["alone"] - scores["nothing"], first - scores["nothing"]
    counts = which(measured, before, before.shape, "measured", "prototypes").double()
    terms = (own, other, (own > other).double(), torch.ones_like(own), carried, whole)
    return torch.stack([value * counts for value in terms], dim=-1)


def _scores(scores: Tensor, name: str) -> Tensor:
    if not scores.is_floating_point() or not bool(torch.isfinite(scores).all()):
        raise DaplError(f"{name} must be scores, finite floating point numbers, but is {scores.dtype} or not finite.")
    return scores.detach().double()


def similarity_loss(sums: Tensor) -> SimilarityLoss:
    """The means, from sums (…, 6) of `loss_counts`.

    Example:
        >>> found = similarity_loss(torch.tensor([4.0, 2.0, 1.0, 2.0, 1.0, 4.0]))
        >>> found.region, found.random, found.wins, found.own_share
        (tensor(2.), tensor(1.), tensor(0.5000), tensor(0.2500))
    """
    region, random, wins = (sums[..., :3] / sums[..., 3:4]).unbind(-1)
    ratio = (region / random).where(random > 0, torch.nan)
    carried, whole = sums[..., 4:].unbind(-1)
    return SimilarityLoss(region, random, region - random, ratio, wins, (carried / whole).where(whole > 0, torch.nan))
