"""Part identity: is a prototype of a class on the same part in every image, and each on another one?"""

from __future__ import annotations

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics.functional.checks import (
    Generators,
    check_boolean,
    check_flags,
    check_maps,
    check_same,
    counted,
    drawn,
    shape_of,
)
from dapl.metrics.functional.consistency import peaks
from dapl.metrics.functional.regions import flat_maps


def peak_parts(maps: Tensor, parts: Tensor, visible: Tensor, at: Tensor | None = None) -> Tensor:
    """The visible parts whose mask holds the peak of a prototype's map (`peaks`); none where the map is flat.

    Args:
        maps: (…, P, h, w) of the prototypes of each image's class; upsampled bicubically to the size of the parts.
        parts: M, bool (…, K, H, W): discs around keypoints, or the data's own masks.
        visible: bool (…, K).
        at: `peaks` of the maps at the size of the parts, where they are known already.

    Returns:
        bool (…, P, K).

    Example:
        >>> import torch
        >>> parts = torch.tensor([[1, 0, 0], [0, 1, 1]]).bool().view(2, 1, 3)
        >>> peak_parts(torch.tensor([[[0.0, 0.2, 0.9]]]), parts, torch.tensor([True, True]))
        tensor([[False,  True]])
    """
    check_maps(maps)
    check_boolean(parts, "parts", "parts")
    check_same(maps, parts, "maps and parts", leading=3, trailing=3)
    height, width = parts.shape[-2:]
    x, y = (peaks(maps, (height, width)) if at is None else at).unbind(-1)
    place = (y * width + x).unsqueeze(-2).expand(*parts.shape[:-2], maps.shape[-3])  # (…, K, P)
    hit = parts.flatten(-2).gather(-1, place).mT
    return hit & visible.unsqueeze(-2) & ~flat_maps(maps).unsqueeze(-1)


def identity_counts(hits: Tensor, visible: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How often the peak of prototype j was on part k in the images of a class, and how often the part was visible.

    Args:
        hits: bool (B, P, K), from `peak_parts`.
        visible: bool (B, K).
        labels: integers (B), the classes of the images.
        classes: C.

    Returns:
        integers (C, P, K) and (C, K), which may be added up over batches.

    Example:
        >>> import torch
        >>> hits = torch.tensor([[[True, False]], [[True, False]]])
        >>> visible = torch.tensor([[True, True], [True, False]])
        >>> counts, seen = identity_counts(hits, visible, torch.tensor([1, 1]), classes=2)
        >>> counts[1], seen[1]
        (tensor([[2, 0]]), tensor([2, 1]))
    """
    check_flags(hits, "hits", "images, prototypes, parts")
    check_flags(visible, "visible", "images, parts")
    if hits.shape[:1] + hits.shape[2:] != visible.shape or labels.shape != hits.shape[:1]:
        raise DaplError(
            f"hits, visible and labels do not describe the same images and parts: their shapes are {shape_of(hits)}, "
            f"{shape_of(visible)} and {shape_of(labels)}."
        )
    member = torch.nn.functional.one_hot(labels.long(), classes).T.to(torch.float64)
    counts = (member @ hits.flatten(1).double()).view(classes, *hits.shape[1:])
    return counts.long(), (member @ visible.double()).long()


def class_identity(hits: Tensor, seen: Tensor, kept: Tensor | None = None) -> Tensor:
    r"""Part identity of one class, or of several with one value each.

    .. math:: \frac{1}{\min(|\mathcal{P}|, K)} \max_{\mathcal{M}} \sum_{(j, k) \in \mathcal{M}} H_{jk}, \qquad
        H_{jk} = \frac{\#\{x : \text{part } k \text{ visible in } x, \text{ the peak of } j \text{ on it}\}}
                      {\#\{x : \text{part } k \text{ visible in } x\}}

    over one-to-one matchings :math:`\mathcal{M}` of the prototypes that are kept and the parts that were seen, K of
    them; the maximum is an assignment problem.

    Args:
        hits: (…, P, K), from `identity_counts`.
        seen: (…, K).
        kept: bool (…, P), the prototypes that count; None means all.

    Returns:
        float64 (…), in [0, 1]; NaN where no part was seen or no prototype is kept.

    Example:
        >>> import torch
        >>> class_identity(torch.tensor([[4, 0], [3, 1]]), torch.tensor([4, 4]))  # (4/4 + 1/4) / 2
        tensor(0.6250, dtype=torch.float64)
    """
    shares = (hits.double() / seen.double().unsqueeze(-2)).nan_to_num(0.0)
    _, there, counts = counted(shares.bool(), seen > 0, kept)
    shares = shares * counts.unsqueeze(-1)
    tables = shares.reshape(-1, *shares.shape[-2:]).cpu().numpy()
    from scipy.optimize import linear_sum_assignment  # slow to load: only where it is used

    best = [float(table[linear_sum_assignment(table, maximize=True)].sum()) for table in tables]
    found = torch.tensor(best, dtype=torch.float64, device=shares.device).reshape(shares.shape[:-2])
    pairs = torch.minimum(counts.sum(-1), there.sum(-1))
    return (found / pairs).where(pairs > 0, torch.nan)


def part_identity(hits: Tensor, seen: Tensor, kept: Tensor | None = None) -> Tensor:
    """Part identity of a data set: the mean of `class_identity` over the classes that have a value.

    1 where each prototype of a class has its peak on a part of its own in every image that shows the part. Unlike
    Coverage it changes when prototypes are renamed image by image: its value then is the null to hold it against
    (`renamed`). Ours.

    Args:
        hits: (C, P, K), from `identity_counts`.
        seen: (C, K).
        kept: bool (C, P), the prototypes that count; None means all.

    Returns:
        a scalar, in [0, 1].

    Example:
        >>> import torch
        >>> hits = torch.tensor([[[4, 0], [3, 1]], [[2, 0], [0, 2]]])
        >>> part_identity(hits, torch.tensor([[4, 4], [2, 2]]))  # (0.625 + 1) / 2
        tensor(0.8125, dtype=torch.float64)
    """
    return class_identity(hits, seen, kept).nanmean()


def renamed(hits: Tensor, generator: Generators, kept: Tensor | None = None) -> Tensor:
    """The same hits with the prototypes that count renamed at random in each image, as if heads had no meaning.

    What part identity is for these is its null: what a model gets whose prototypes lie where these lie, but on other
    parts from image to image.

    Args:
        hits: bool (B, P, K).
        generator: one for all images, or one per image.
        kept: bool (B, P), the prototypes that count, which change places among themselves; None means all.

    Returns:
        bool (B, P, K).

    Example:
        >>> import torch
        >>> hits = torch.tensor([[[True, False], [False, True]]])
        >>> renamed(hits, torch.Generator().manual_seed(3)).sum(1)  # parts keep their number of prototypes
        tensor([[1, 1]])
    """
    check_flags(hits, "hits", "images, prototypes, parts")
    keys = drawn(hits.shape[:-1], generator, lambda shape, each: torch.rand(tuple(shape), generator=each))
    counts = torch.ones(hits.shape[:-1], dtype=torch.bool) if kept is None else kept.cpu()
    order = keys.masked_fill(~counts, torch.inf).argsort(dim=-1, stable=True)  # first those that count, shuffled
    places = (~counts).long().argsort(dim=-1, stable=True)  # first those that count, in order
    source = torch.empty_like(order).scatter_(-1, places, order).to(hits.device)
    return hits.gather(-2, source.unsqueeze(-1).expand_as(hits))
