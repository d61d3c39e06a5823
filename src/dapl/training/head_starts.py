"""Where the heads of parts start: at what stands on the object, told apart by k-means.

From random queries some runs found eight parts of a bird and others six (docs/validation-notebook.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dapl.models.parts import Locator, standardised

MOST_PLACES = 20_000
"""Places of objects that are clustered; more of them change little and take time."""
TRIES = 30
"""Starts of k-means, of which the one with the nearest centres is taken."""
ROUNDS = 30
SHARPNESS = 4.0
"""How much higher a head's logit is at its own centre than at the mean place, for centres as far off as they are on
average."""
OTHER_STAGES = 0.1
"""By how much the random queries of the other stages are made smaller, so that the centres decide at first."""


def k_means(places: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Centres of clusters, the nearest of a few tries: P×D → count×D. Each try starts by k-means++.

    >>> places = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> k_means(places, 2, torch.Generator().manual_seed(0)).sort(0).values
    tensor([[0.0500],
            [5.0500]])
    """
    tries = []
    for _ in range(TRIES):
        centres = places[torch.randint(len(places), (1,), generator=generator)]
        for _ in range(count - 1):
            farness = torch.cdist(places, centres).amin(1).square().clamp_min(torch.finfo(places.dtype).tiny)
            centres = torch.cat((centres, places[torch.multinomial(farness, 1, generator=generator)]))
        for _ in range(ROUNDS):
            nearest = torch.cdist(places, centres).argmin(1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, places)
            sizes = nearest.bincount(minlength=count).unsqueeze(1)
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        tries.append((float(torch.cdist(places, centres).amin(1).square().mean()), centres))
    return min(tries, key=lambda tried: tried[0])[1]


@torch.no_grad()
def start_heads(
    locator: Locator,
    batches: Sequence[tuple[Sequence[Tensor], Tensor | None]],
    generator: torch.Generator,
) -> bool:
    """Query h becomes the one that is highest where features are as in cluster h of the object's places.

    On the finest stage, with f standardised, μ its mean over objects and c_h the centres from there: the logit is
    s·(c_h·(f − μ) − ‖c_h‖²/2), which is highest for the nearest centre.

    Args:
        locator: its queries are set.
        batches: stages of B×Ds×Hs×Ws each, and the object B×H×W in [0, 1] on the finest grid; None: all places.
        generator: what k-means starts from.

    Returns:
        False, and nothing was changed, where objects have fewer places than there are heads.
    """
    stage = max(range(len(batches[0][0])), key=lambda s: batches[0][0][s].shape[-2:].numel())
    found = []
    for stages, masks in batches:
        places = standardised(stages[stage]).movedim(1, -1)
        found.append((places.flatten(0, 2) if masks is None else places[masks > 0.5]).float().cpu())
    places = torch.cat(found)
    if len(places) < locator.heads:
        return False
    places = places[torch.randperm(len(places), generator=generator)[:MOST_PLACES]]
    mean = places.mean(0)
    centres = k_means(places - mean, locator.heads, generator)
    scale = SHARPNESS / centres.square().sum(1).mean().clamp_min(torch.finfo(centres.dtype).tiny)
    for number, query in enumerate(locator.queries):
        assert isinstance(query, nn.Conv2d)
        assert query.bias is not None
        weight, bias = query.weight[: locator.heads], query.bias[: locator.heads]
        if number == stage:
            weight.copy_((scale * centres)[..., None, None])
            bias.copy_(-scale * (centres @ mean + centres.square().sum(1) / 2))
        else:
            weight.mul_(OTHER_STAGES)
    return True
