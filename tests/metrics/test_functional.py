"""The functions against a slow reference: the paper's equations in Python sets, loops and exact fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

from dapl.metrics import functional as F

NAN = math.nan


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pixel_sets(masks: Tensor) -> list[set[tuple[int, int]]]:
    return [{(int(y), int(x)) for y, x in mask.nonzero()} for mask in masks]


def reference(
    regions: Tensor, parts: Tensor, visible: Tensor, kept: Tensor, tau: str, images: list[int] | None = None
) -> dict[str, float]:
    """One image: regions P×H×W, parts K×H×W. Edge cases as decisions 13 and 14 and the docstrings have them."""
    A, M = pixel_sets(regions), pixel_sets(parts)
    P = [j for j in range(len(A)) if kept[j]]
    K = [k for k in range(len(M)) if visible[k] and M[k]]
    on_part = {k: [j for j in P if Fraction(len(A[j] & M[k]), len(M[k])) > Fraction(tau)] for k in K}

    pairs = {k: list(itertools.combinations(on_part[k], 2)) for k in K}
    R = [k for k in K if pairs[k]]
    redundancy = Fraction(0)
    for r in R:
        ious = [
            Fraction(len(A[i] & A[j]), len(A[i] | A[j])) if images is None or images[i] == images[j] else Fraction(0)
            for i, j in pairs[r]
        ]
        redundancy += sum(ious) / len(pairs[r]) / len(R)
    if not K:
        return dict.fromkeys(("precision", "recall", "coverage", "redundancy", "imbalance", "diversity"), NAN)

    hit = {j for k in K for j in on_part[k]}
    precision = Fraction(len(hit), len(P)) if P else Fraction(0)
    recall = Fraction(sum(bool(on_part[k]) for k in K), len(K))
    coverage = 2 * precision * recall / (precision + recall) if precision + recall else Fraction(0)
    c = [len(on_part[k]) for k in K]
    mu = Fraction(sum(c), len(K))
    imbalance = Fraction(sum(abs(a - b) for a in c for b in c)) / (2 * len(K) ** 2 * mu) if mu else Fraction(1)
    diversity = 1 - (redundancy + imbalance) / 2
    values = {
        "precision": precision,
        "recall": recall,
        "coverage": coverage,
        "redundancy": redundancy,
        "imbalance": imbalance,
        "diversity": diversity,
    }
    return {name: float(value) for name, value in values.items()}


def measured(regions: Tensor, parts: Tensor, visible: Tensor, kept: Tensor, tau: float) -> dict[str, Tensor]:
    visible = F.visible_parts(parts, visible)
    assigned = F.assign(F.overlap(regions, parts), tau, visible, kept)
    return {
        "precision": F.precision(assigned, visible, kept),
        "recall": F.recall(assigned, visible, kept),
        "coverage": F.coverage(assigned, visible, kept),
        "redundancy": F.redundancy(regions, assigned, visible, kept),
        "imbalance": F.imbalance(assigned, visible, kept),
        "diversity": F.diversity(regions, assigned, visible, kept),
    }


KINDS = ("random", "identical", "disjoint", "background", "all parts hit", "no part visible", "no prototype kept")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, str]:
    B, P, K = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    H, W = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    density = draw(st.sampled_from((0.1, 0.3, 0.6)))
    regions, parts = random(B, P, H, W) < density, random(B, K, H, W) < draw(st.sampled_from((0.1, 0.4, 0.8)))
    visible, kept = random(B, K) < 0.8, random(B, P) < 0.8
    kind = draw(st.sampled_from(KINDS))
    if kind == "identical":
        regions = regions[:, :1].expand(-1, P, -1, -1)
    elif kind == "disjoint":
        regions = (random(B, 1, H, W) * P).long() == torch.arange(P)[:, None, None]
    elif kind == "background":
        regions = ~parts.any(1, keepdim=True).expand(-1, P, -1, -1)
    elif kind == "all parts hit":
        regions = torch.ones_like(regions)
    elif kind == "no part visible":
        visible = torch.zeros_like(visible)
    elif kind == "no prototype kept":
        kept = torch.zeros_like(kept)
    return regions, parts, visible, kept, draw(st.sampled_from(("0.2", "0.25", "0.5", "0.75")))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(cases())
def test_equal_to_the_slow_reference(case: tuple[Tensor, Tensor, Tensor, Tensor, str]) -> None:
    regions, parts, visible, kept, tau = case
    got = measured(regions, parts, visible, kept, float(tau))
    for b in range(len(regions)):
        wanted = reference(regions[b], parts[b], visible[b], kept[b], tau)
        for name, value in wanted.items():
            assert got[name][b].item() == pytest.approx(value, abs=1e-6, nan_ok=True), name


@settings(max_examples=50, derandomize=True, deadline=None)
@given(cases(), st.integers(0, 2**31))
def test_regions_on_different_images_share_no_pixel(case, seed: int) -> None:
    regions, parts, visible, kept, tau = case
    images = torch.randint(2, regions.shape[:2], generator=torch.Generator().manual_seed(seed))
    visible = F.visible_parts(parts, visible)
    assigned = F.assign(F.overlap(regions, parts), float(tau), visible, kept)
    got = F.diversity(regions, assigned, visible, kept, images)
    for b in range(len(regions)):
        wanted = reference(regions[b], parts[b], visible[b], kept[b], tau, images[b].tolist())["diversity"]
        assert got[b].item() == pytest.approx(wanted, abs=1e-6, nan_ok=True)


def test_any_leading_axes_and_none() -> None:
    regions, parts = torch.rand(2, 3, 4, 6, 6) < 0.3, torch.rand(2, 3, 5, 6, 6) < 0.3
    everything = torch.tensor(True)
    batched = measured(regions, parts, everything, everything, 0.2)
    for i, j in itertools.product(range(2), range(3)):
        single = measured(regions[i, j], parts[i, j], everything, everything, 0.2)
        for name, value in single.items():
            assert value.shape == ()
            torch.testing.assert_close(batched[name][i, j], value, equal_nan=True)
    empty = measured(regions[:, :0], parts[:, :0], everything, everything, 0.2)
    assert all(value.shape == (2, 0) for value in empty.values())


class TestKnownEnds:
    """Ten prototypes, ten parts: row k of a 10×10 image is part k."""

    parts = torch.eye(10).bool().unsqueeze(-1).expand(-1, -1, 10)
    everything = torch.tensor(True)

    def test_each_on_its_own_part(self) -> None:
        got = measured(self.parts, self.parts, self.everything, self.everything, 0.2)
        assert got["coverage"] == 1
        assert got["diversity"] == 1

    def test_all_on_one_part(self) -> None:
        got = measured(self.parts[[3] * 10], self.parts, self.everything, self.everything, 0.2)
        wanted = {"redundancy": 1, "imbalance": 0.9, "diversity": 0.05, "recall": 0.1, "precision": 1}
        for name, value in {**wanted, "coverage": 2 / 11}.items():
            assert got[name].item() == pytest.approx(value), name

    def test_all_on_background(self) -> None:
        parts = self.parts.clone()
        parts[..., 5:] = False
        got = measured(~parts.any(0).expand(10, -1, -1), parts, self.everything, self.everything, 0.2)
        assert got["coverage"] == 0
        assert got["imbalance"] == 1  # decision 14
        assert got["redundancy"] == 0  # decision 13


def test_a_prototype_at_exactly_tau_is_not_assigned() -> None:
    parts = torch.ones(1, 1, 5).bool()
    region = torch.tensor([[[1, 0, 0, 0, 0]]]).bool()
    assert not F.assign(F.overlap(region, parts), 0.2).any()
    assert F.assign(F.overlap(region, parts), 0.19).all()


def test_a_pruned_prototype_leaves_no_trace() -> None:
    regions, parts = torch.rand(4, 6, 8, 8) < 0.4, torch.rand(4, 5, 8, 8) < 0.3
    kept = torch.tensor([True, True, False, True, False, True])
    everything = torch.tensor(True)
    with_pruned = measured(regions, parts, everything, kept, 0.3)
    without = measured(regions[:, kept], parts, everything, everything, 0.3)
    for name, value in without.items():
        torch.testing.assert_close(with_pruned[name], value, msg=name)


class TestUpsample:
    @pytest.mark.parametrize("source", [(7, 7), (14, 9), (1, 1), (2, 3), (28, 28)])
    @pytest.mark.parametrize("size", [(224, 224), (5, 4), (31, 64), (1, 1)])
    def test_equal_to_interpolate(self, source: tuple[int, int], size: tuple[int, int]) -> None:
        maps = torch.randn(2, 3, *source)
        wanted = interpolate(maps, size=size, mode="bicubic", align_corners=False)
        torch.testing.assert_close(F.upsample(maps, size), wanted, atol=1e-5, rtol=0)

    def test_double_half_and_autocast(self) -> None:
        maps = torch.rand(3, 7, 7, dtype=torch.float64)
        wanted = interpolate(maps[None], size=(56, 56), mode="bicubic", align_corners=False)[0]
        torch.testing.assert_close(F.upsample(maps, 56), wanted)
        assert F.upsample(maps.bfloat16(), 56).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(F.upsample(maps.float(), 56), wanted.float())

    def test_gradient_after_a_first_use_in_inference_mode(self) -> None:
        with torch.inference_mode():
            F.upsample(torch.rand(1, 3, 5), (17, 13))
        maps = torch.rand(1, 3, 5, requires_grad=True)
        F.upsample(maps, (17, 13)).sum().backward()
        assert maps.grad is not None
        assert maps.grad.sum().item() == pytest.approx(17 * 13, rel=1e-5)  # weights of a pixel sum to one


class TestActivationRegions:
    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(
        st.lists(st.integers(-3, 3), min_size=1, max_size=40),
        st.sampled_from((1.0, 5.0, 33.3, 50.0, 90.0, 95.0, 99.9)),
    )
    def test_the_order_statistic(self, values: list[int], percentile: float) -> None:
        """Few distinct values, so that ties are the rule."""
        rank = math.ceil(Fraction(str(percentile)) / 100 * (len(values) - 1))
        threshold, peak = sorted(values)[rank], values.index(max(values))
        order = sorted(range(len(values)), key=lambda x: (values[x] <= threshold, -values[x], abs(x - peak), x))
        wanted = set() if min(values) == max(values) else set(order[: len(values) - rank])
        got = F.activation_regions(torch.tensor(values).float().view(1, 1, -1), percentile=percentile)
        assert set(got.flatten().nonzero().flatten().tolist()) == wanted

    def test_equal_to_numpys_percentile_of_the_upsampled_map(self) -> None:
        maps = torch.rand(2, 3, 7, 7)
        pixels = F.upsample(maps, 224).double().numpy()
        for method in ("linear", "higher"):
            wanted = pixels >= np.percentile(pixels, 95, axis=(-2, -1), keepdims=True, method=method)
            difference = F.activation_regions(maps, 224).numpy() != wanted
            assert difference.sum() <= 2 * 6  # where two pixels tie, the nearer to the peak is taken for the other
        assert (F.activation_regions(maps, 224).sum((-2, -1)) == 2509).all()

    def test_many_maps_in_chunks(self) -> None:
        maps = torch.rand(60, 2, 5, 5)
        whole = F.activation_regions(maps, 160)
        single = torch.stack([F.activation_regions(m, 160) for m in maps])
        assert (whole != single).sum() <= 2 * 120
        assert whole.shape == (60, 2, 160, 160)

    @pytest.mark.parametrize("value", [0.0, 0.1, 7.3])
    def test_a_constant_map_has_no_region(self, value: float) -> None:
        assert not F.activation_regions(torch.full((1, 7, 7), value), 224).any()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_precisions(self, dtype: torch.dtype) -> None:
        maps = torch.randperm(49).view(1, 7, 7).to(dtype)
        for size in (None, 21):
            assert torch.equal(F.activation_regions(maps, size, 80), F.activation_regions(maps.float(), size, 80))

    def test_maps_that_carry_a_gradient(self) -> None:
        assert F.activation_regions(torch.rand(2, 7, 7, requires_grad=True), 28).dtype == torch.bool


def test_counts_are_exact_in_autocast_and_in_chunks() -> None:
    regions, parts = torch.rand(40, 3, 200, 200) < 0.5, torch.rand(40, 2, 200, 200) < 0.5
    wanted = (regions.unsqueeze(2) & parts.unsqueeze(1)).sum((-2, -1)) / parts.sum((-2, -1)).unsqueeze(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(F.overlap(regions, parts), wanted)


class TestBackground:
    @settings(max_examples=100, derandomize=True, deadline=None)
    @given(st.integers(0, 2**31))
    def test_equal_to_loops(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        maps, masks = torch.rand(2, 3, 4, 5, generator=generator), torch.rand(2, 4, 5, generator=generator)
        regions, kept = maps > 0.9, torch.rand(2, 3, generator=generator) < 0.7
        bias, share = F.background_bias(maps, masks, kept), F.region_background_share(regions, masks, kept)
        cells = list(itertools.product(range(4), range(5)))
        for b, j in itertools.product(range(2), range(3)):
            a, m, A = maps[b, j], masks[b], pixel_sets(regions[b])[j]
            B = sum((1 - m[c].item()) * a[c].item() for c in cells) / sum(a[c].item() for c in cells)
            s = sum(1 - m[c].item() for c in A) / len(A) if A else NAN
            assert bias[b, j].item() == pytest.approx(B if kept[b, j] else NAN, abs=1e-5, nan_ok=True)
            assert share[b, j].item() == pytest.approx(s if kept[b, j] else NAN, abs=1e-5, nan_ok=True)

    def test_a_prototype_without_activation_has_no_bias(self) -> None:
        assert F.background_bias(torch.zeros(1, 2, 2), torch.ones(2, 2)).isnan().all()

    def test_masks_of_booleans_and_bytes(self) -> None:
        maps, masks = torch.rand(2, 3, 3), torch.eye(3)
        for dtype in (torch.bool, torch.uint8):
            torch.testing.assert_close(F.background_bias(maps, masks.to(dtype)), F.background_bias(maps, masks))


maps, masks = torch.rand(2, 3, 7, 7), torch.rand(2, 7, 7)
regions, parts = maps > 0.5, torch.rand(2, 4, 7, 7) > 0.5
assigned = torch.ones(2, 3, 4).bool()
holed = maps.clone()
holed[1, 2, 3, 3] = NAN

BAD_INPUT = {
    "maps without prototypes": (lambda: F.activation_regions(torch.rand(7, 7), 14), "maps must be floating point"),
    "maps of integers": (lambda: F.activation_regions(maps.long(), 14), "maps must be floating point"),
    "NaN in maps": (lambda: F.activation_regions(holed, 14), "NaN"),
    "NaN in maps of the bias": (lambda: F.background_bias(holed, masks), "NaN"),
    "percentile 0": (lambda: F.activation_regions(maps, 14, 0), "percentile must lie strictly between 0 and 100"),
    "percentile 100": (lambda: F.activation_regions(maps, 14, 100), "percentile must lie strictly between 0 and 100"),
    "percentile NaN": (lambda: F.activation_regions(maps, 14, NAN), "percentile must lie strictly between"),
    "size 0": (lambda: F.upsample(maps, 0), "size must be at least one pixel"),
    "upsampling integers": (lambda: F.upsample(maps.long(), 9), "maps must be floating point"),
    "regions are maps": (lambda: F.overlap(maps, parts), "regions must be boolean"),
    "parts are floats": (lambda: F.overlap(regions, parts.float()), "parts must be boolean"),
    "no parts": (lambda: F.overlap(regions, parts[:, :0]), "there are no parts"),
    "other grid": (lambda: F.overlap(regions, parts[..., 1:]), "same grid"),
    "other images": (lambda: F.overlap(regions, parts[:1]), "do not describe the same images"),
    "regions without prototypes": (lambda: F.iou(regions[0, 0]), "must have the shape"),
    "tau 0": (lambda: F.assign(torch.rand(3, 4), 0.0), "τ.* must lie strictly between 0 and 1"),
    "tau 1": (lambda: F.assign(torch.rand(3, 4), 1.0), "τ.* must lie strictly between 0 and 1"),
    "overlap is boolean": (lambda: F.assign(assigned), "overlap must be floating point"),
    "assigned is not boolean": (lambda: F.coverage(assigned.float()), "assigned must be boolean"),
    "assigned to no parts": (lambda: F.coverage(assigned[..., :0]), "data without parts"),
    "visible of other parts": (lambda: F.coverage(assigned, torch.ones(2, 5).bool()), "visible has the shape 2×5"),
    "visible is not boolean": (lambda: F.coverage(assigned, torch.ones(2, 4)), "visible must be boolean"),
    "kept of other prototypes": (lambda: F.coverage(assigned, kept=torch.ones(4).bool()), "kept has the shape 4"),
    "assigned of other prototypes": (lambda: F.redundancy(regions, assigned[:, :2]), "regions and assigned"),
    "images of other prototypes": (lambda: F.iou(regions, torch.ones(2, 4)), "one image per region"),
    "masks on another grid": (lambda: F.background_bias(maps, masks[..., 1:]), "same grid"),
    "masks of other images": (lambda: F.background_bias(maps, masks[:1]), "same images"),
    "masks of 255": (lambda: F.background_bias(maps, masks * 255), "between 0 .* and 1"),
    "negative maps": (lambda: F.background_bias(maps - 1, masks), "negative"),
    "shares of maps": (lambda: F.region_background_share(maps, masks), "regions must be boolean"),
}


def test_the_foreground_loss_uses_the_formula_of_the_metric() -> None:
    """One formula; only a map that is 0 everywhere differs: nothing to measure, and nothing to be trained away."""
    from dapl.training import losses

    maps, masks = torch.rand(3, 4, 5, 5), torch.rand(3, 5, 5)
    maps[1, 2] = 0
    metric, loss = F.background_bias(maps, masks), losses.background_bias(maps, masks)
    assert metric[1, 2].isnan()
    assert loss[1, 2] == 0
    there = ~metric.isnan()
    assert torch.equal(metric[there], loss[there].clamp(max=1))
