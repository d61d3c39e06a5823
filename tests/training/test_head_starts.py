"""Where the heads of parts start: the nearest cluster's query is the highest, by a loop over places."""

from __future__ import annotations

import itertools

import pytest
import torch

from dapl.models.parts import Locator, standardised
from dapl.training.head_starts import k_means, start_heads


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_k_means_is_the_best_split_of_few_points() -> None:
    points = torch.randn(7, 2, generator=seeded()).double()

    def inertia(owners: tuple[int, ...]) -> float:
        total = 0.0
        for group in set(owners):
            own = [points[p] for p in range(7) if owners[p] == group]
            centre = sum(own) / len(own)
            total += sum(float((one - centre).square().sum()) for one in own)
        return total

    best = min(inertia(owners) for owners in itertools.product(range(2), repeat=7))
    centres = k_means(points, 2, seeded())
    assert float(torch.cdist(points, centres).amin(1).square().sum()) == pytest.approx(best)


@pytest.mark.parametrize("with_masks", [True, False])
def test_a_place_belongs_to_the_head_with_the_nearest_centre(with_masks: bool) -> None:
    coarse, fine = torch.randn(3, 5, 2, 2, generator=seeded()), torch.randn(3, 4, 4, 4, generator=seeded())
    masks = (torch.rand(3, 4, 4, generator=seeded()) > 0.4).float() if with_masks else None
    locator = Locator((5, 4), heads=3)
    assert start_heads(locator, [((coarse, fine), masks)], seeded())

    features = standardised(fine)
    places = [
        features[b, :, y, x]
        for b in range(3)
        for y in range(4)
        for x in range(4)
        if masks is None or masks[b, y, x] > 0.5
    ]
    mean = sum(places) / len(places)
    logits = locator.queries[1](features)[:, :3].movedim(1, -1)
    logits = logits.flatten(0, 2) if masks is None else logits[masks > 0.5]
    centres = locator.queries[1].weight[:3, :, 0, 0]  # from the mean, and longer or shorter by one factor
    lengths = centres.square().sum(1)
    scale = lengths.mean().item() / 4.0  # the scale is such that lengths without it have the mean 4 / scale
    for place, found in zip(places, logits, strict=True):
        away = [(place - mean - centre / scale).square().sum().item() for centre in centres]
        assert int(found.argmax()) == away.index(min(away))


def test_fewer_places_than_heads_change_nothing() -> None:
    locator = Locator((4,), heads=3)
    before = [parameter.clone() for parameter in locator.parameters()]
    masks = torch.zeros(1, 4, 4)
    masks[0, 0, :2] = 1
    assert not start_heads(locator, [((torch.randn(1, 4, 4, 4, generator=seeded()),), masks)], seeded())
    assert all(torch.equal(was, now) for was, now in zip(before, locator.parameters(), strict=True))
