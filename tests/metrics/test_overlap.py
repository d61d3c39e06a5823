"""Object overlap, background overlap and OIRR against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapl.metrics import functional as C
from dapl.metrics import functional as F


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.booleans(), st.booleans())
def test_equal_to_loops(seed: int, soft: bool, in_regions: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    maps = torch.rand(2, 3, 3, 4, generator=g) * (torch.rand(2, 3, 3, 4, generator=g) < 0.6)
    masks = torch.rand(2, 3, 4, generator=g)
    masks = masks if soft else (masks < (0.4 if seed % 4 else 0.02)).float()
    regions, kept = torch.rand(2, 3, 3, 4, generator=g) < 0.4, torch.rand(2, 3, generator=g) < 0.8
    overlap, background = C.object_overlap(regions, masks, kept), C.background_overlap(regions, masks, kept)
    oirr = C.outside_inside_relevance_ratio(maps, masks, kept, regions if in_regions else None)
    for b in range(2):
        m = masks[b].flatten().tolist()
        for j in range(3):
            A, a = regions[b, j].flatten().tolist(), maps[b, j].flatten().tolist()
            counts = bool(kept[b, j])
            on = sum(x for x, inside in zip(m, A, strict=True) if inside)
            wanted = on / sum(m) if counts and sum(m) else math.nan
            assert overlap[b, j].item() == pytest.approx(wanted, abs=1e-5, nan_ok=True)
            wanted = 1 - on / sum(A) if counts and sum(A) else math.nan
            assert background[b, j].item() == pytest.approx(wanted, abs=1e-5, nan_ok=True)
            pixels = [i for i in range(12) if A[i] or not in_regions]
            wanted = ratio(a, m, pixels) if counts and sum(m) else math.nan
            assert oirr[b, j].item() == pytest.approx(wanted, rel=1e-4, abs=1e-6, nan_ok=True)


def ratio(a: list[float], m: list[float], pixels: list[int]) -> float:
    means = []
    for weights in ([1 - x for x in m], m):
        total = sum(weights[i] for i in pixels)
        means.append(sum(weights[i] * a[i] for i in pixels) / total if total else 0.0)
    outside, inside = means
    if inside == 0:
        return math.inf if outside > 0 else math.nan
    return outside / inside


def test_oirr_is_background_bias_freed_of_the_size_of_the_object() -> None:
    g = torch.Generator().manual_seed(0)
    maps, masks = torch.rand(4, 5, 7, 7, generator=g), torch.rand(4, 7, 7, generator=g)
    bias = F.background_bias(maps, masks)
    areas = (masks.sum((-2, -1)) / (1 - masks).sum((-2, -1))).unsqueeze(-1)
    torch.testing.assert_close(C.outside_inside_relevance_ratio(maps, masks), bias / (1 - bias) * areas)
    even = C.outside_inside_relevance_ratio(torch.ones(4, 5, 7, 7), masks)
    torch.testing.assert_close(even, torch.ones(4, 5))


def test_known_ends() -> None:
    masks = torch.zeros(4, 4)
    masks[:2] = 1
    on, beside = torch.zeros(1, 4, 4), torch.zeros(1, 4, 4)
    on[:, :2], beside[:, 2:] = 1, 1
    assert C.outside_inside_relevance_ratio(on, masks) == 0
    assert C.outside_inside_relevance_ratio(beside, masks) == math.inf
    assert C.outside_inside_relevance_ratio(0 * on, masks).isnan()
    assert C.outside_inside_relevance_ratio(on, 0 * masks).isnan()  # no object
    assert C.outside_inside_relevance_ratio(on, masks + 1 - masks) == 0  # no background
    assert C.object_overlap(on.bool(), masks) == 1
    assert C.object_overlap(beside.bool(), masks) == 0
    assert C.object_overlap(on.bool(), 0 * masks).isnan()
    assert C.background_overlap(on.bool(), masks) == 0
    assert C.background_overlap(beside.bool(), masks) == 1


def test_regions_of_the_95th_percentile_on_upsampled_maps() -> None:
    g = torch.Generator().manual_seed(0)
    maps, masks = torch.rand(2, 3, 7, 7, generator=g), torch.zeros(2, 224, 224)
    masks[:, 40:180, 60:200] = 1
    regions = F.activation_regions(maps, 224)
    shares = C.object_overlap(regions, masks)
    assert (shares <= 2509 / masks[0].sum() + 1e-6).all()
    pixels = F.upsample(maps, 224).clamp(min=0)
    assert C.outside_inside_relevance_ratio(pixels, masks, regions=regions).shape == (2, 3)
