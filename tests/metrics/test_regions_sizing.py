"""Regions sized by the object and by the mass of the map, against loops over the pixels."""

from __future__ import annotations

import pytest
import torch
from tests.metrics.test_regions import maps, slow_region
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.metrics import functional as F


@pytest.mark.parametrize("kind", ["plateaus", "any"])
def test_a_number_of_pixels_against_a_loop(kind: str) -> None:
    values = maps(kind, 6)
    numbers = torch.tensor([[0], [1], [13], [100], [256], [999]])
    found = F.sized_regions(values, numbers)
    assert found.sum((-2, -1)).flatten().tolist() == [0, 1, 13, 100, 256, 256]
    for one, number, region in zip(values[:, 0], numbers.flatten().tolist(), found[:, 0], strict=True):
        if 0 < number <= 256:
            assert torch.equal(region, slow_region(one, number))


def test_equal_to_the_percentile_where_the_number_is_its() -> None:
    values = maps("mirrored", 10)
    assert torch.equal(F.sized_regions(values, torch.full((10, 1), 13)), F.activation_regions(values))


def test_sized_by_the_object() -> None:
    values, areas = torch.rand(3, 2, 7, 7), torch.tensor([[4000], [3], [0]])
    assert F.object_regions(values, areas, 64, share=0.25).sum((-2, -1)).tolist() == [[1000, 1000], [1, 1], [0, 0]]


def smallest_set(values: Tensor, share: float) -> int:
    rest = sorted((float(value) for value in (values - values.min()).double().flatten()), reverse=True)
    wanted, total, number = share * sum(rest), 0.0, 0
    while total < wanted:
        total += rest[number]
        number += 1
    return number


@pytest.mark.parametrize("share", [0.05, 0.2, 0.7])
def test_sized_by_the_mass_of_the_map(share: float) -> None:
    values = maps("any", 6)
    found = F.mass_regions(values, share=share)
    assert found.sum((-2, -1)).flatten().tolist() == [smallest_set(one, share) for one in values]
    moved = F.mass_regions(values + 100, share=share)  # what is the same everywhere says nothing
    assert (moved != found).sum() <= 12  # of values of 100 the last bits are 1e-5: a pixel may change per region


def test_sharp_maps_have_small_regions_and_flat_ones_none() -> None:
    place = torch.arange(32.0)
    square = (place - 16) ** 2
    distance = square.unsqueeze(0) + square.unsqueeze(1)
    values = torch.stack([torch.exp(-distance / 8), torch.exp(-distance / 200), torch.ones(32, 32)])
    sharp, blurred, flat = F.mass_regions(values, share=0.5).sum((-2, -1)).tolist()
    assert 0 == flat < sharp < blurred / 5


def test_bad_numbers_and_shares_are_refused() -> None:
    with pytest.raises(DaplError, match="one per map"):
        F.sized_regions(torch.rand(2, 4, 4), torch.tensor([3]))
    with pytest.raises(DaplError, match="share must be above 0 and at most 1"):
        F.mass_regions(torch.rand(2, 4, 4), share=0.0)
