"""Spatial misalignment: the four numbers against loops, and an attack that keeps to its bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dapl.metrics
from dapl.common.errors import DaplError
from dapl.common.seeds import generator
from dapl.metrics import functional as F


def made(seed: int, images: int = 5, prototypes: int = 6) -> dict[str, Tensor]:
    """Before and after, as whole numbers so that there are ties; one image without a region, one without similarity."""
    g = torch.Generator().manual_seed(seed)
    regions = torch.rand(2, images, 4, 4, generator=g) < 0.4
    regions[:, 0] = False
    scores = torch.randint(0, 6, (2, images, prototypes), generator=g).float() - 1
    right = torch.rand(2, images, generator=g) < 0.6
    return {
        "regions": regions[0],
        "attacked_regions": regions[1],
        "scores": scores[0],
        "attacked_scores": scores[1],
        "prototype": torch.randint(0, prototypes, (images,), generator=g),
        "rivals": torch.rand(images, prototypes, generator=g) < 0.6,
        "right": right[0],
        "attacked_right": right[1],
    }


def mean(values: list[float]) -> float:
    real = [value for value in values if not math.isnan(value)]
    return sum(real) / len(real) if real else math.nan


def slowly(given: dict[str, Tensor]) -> dict[str, float]:
    location, activation, rank, accuracy = [], [], [], []
    for i, j in enumerate(given["prototype"].tolist()):
        before = {tuple(pixel) for pixel in given["regions"][i].nonzero().tolist()}
        after = {tuple(pixel) for pixel in given["attacked_regions"][i].nonzero().tolist()}
        location.append(1 - len(before & after) / len(before | after) if before else math.nan)
        scores, attacked = given["scores"][i].tolist(), given["attacked_scores"][i].tolist()
        activation.append(1 - max(attacked[j], 0) / scores[j] if scores[j] > 0 else math.nan)
        rivals = [k for k, rival in enumerate(given["rivals"][i].tolist()) if rival]
        rank.append(sum(attacked[k] > attacked[j] for k in rivals) - sum(scores[k] > scores[j] for k in rivals))
        accuracy.append(float(given["right"][i]) - float(given["attacked_right"][i]))
    return {
        "location": mean(location),
        "activation": mean(activation),
        "rank": mean(rank),
        "accuracy": mean(accuracy),
    }


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 2**31))
def test_the_four_numbers_equal_the_loops_and_so_does_the_class(seed: int) -> None:
    values = made(seed)
    got, metric = F.spatial_misalignment(**values), dapl.metrics.SpatialMisalignment()
    for rows in ([0, 1], [2, 3, 4]):
        metric.update(**{name: value[rows] for name, value in values.items()})
    for name, wanted in slowly(values).items():
        assert getattr(got, name).item() == pytest.approx(wanted, abs=1e-6, nan_ok=True), name
        assert metric.compute()[name].item() == pytest.approx(wanted, abs=1e-6, nan_ok=True), name


def test_no_change_is_0() -> None:
    values = made(0)
    same = values | {f"attacked_{name}": values[name] for name in ("regions", "scores", "right")}
    assert all(term == 0 for term in F.spatial_misalignment(**same))


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 3))
def test_outside_equals_the_loops(seed: int, margin: int) -> None:
    region = torch.rand(7, 8, generator=torch.Generator().manual_seed(seed)) < 0.06
    pixels, got = region.nonzero().tolist(), F.outside(region, margin)
    for y in range(7):
        for x in range(8):
            covered = bool(pixels) and all(
                min(p[axis] for p in pixels) - margin <= place <= max(p[axis] for p in pixels) + margin
                for axis, place in ((0, y), (1, x))
            )
            assert got[y, x] == (not covered)


def test_an_attack_keeps_to_its_pixels_and_its_bounds_and_lowers_the_score() -> None:
    g = torch.Generator().manual_seed(0)
    images, allowed = torch.rand(3, 3, 8, 8, generator=g), torch.rand(3, 8, 8, generator=g) < 0.5
    weights, epsilon = torch.randn(3, 8, 8, generator=g), torch.tensor([0.02, 0.1, 0.3])

    def score(x: Tensor) -> Tensor:
        return torch.tanh((x * weights).sum((1, 2, 3)) / 10)

    seeds = [generator(0, i) for i in range(3)]
    changed = F.attack(score, images, allowed, epsilon, 10, seeds)
    difference = (changed - images).abs()
    assert (difference.movedim(1, -1)[~allowed] == 0).all()
    assert (difference <= epsilon.view(3, 1, 1) + 1e-6).all()
    assert changed.min() >= 0
    assert changed.max() <= 1
    # A score that is monotone in every pixel is lowest where each goes as far as it may, against its weight.
    bound = epsilon.view(3, 1, 1)
    lowest = torch.where(weights > 0, (images - bound).clamp(min=0), (images + bound).clamp(max=1))
    torch.testing.assert_close(changed, torch.where(allowed.unsqueeze(1), lowest, images))
    again = F.attack(score, images[1:], allowed[1:], epsilon, 10, [generator(0, i) for i in (1, 2)])
    torch.testing.assert_close(again, changed[1:])


def test_a_model_that_reads_its_region_alone_cannot_be_attacked() -> None:
    """And one that reads everything can: the number tells the two apart."""
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    region = torch.zeros(4, 16, 16).bool()
    region[:, 4:8, 4:8] = True
    lost = []
    for pixels in (slice(4, 8), slice(None)):

        def score(x: Tensor, pixels: slice = pixels) -> Tensor:
            return x[..., pixels, pixels].mean((1, 2, 3))

        changed = F.attack(score, images, F.outside(region, 1), 0.2, 5, generator(0))
        lost.append(F.activation_change(score(images), score(changed)).mean().item())
    assert lost[0] == 0
    assert lost[1] > 0.2  # 0.2 of about 0.5 for the 86 % of the pixels that may change


def test_what_they_refuse() -> None:
    images, allowed = torch.rand(1, 3, 4, 4), torch.ones(1, 4, 4).bool()

    def score(x: Tensor) -> Tensor:
        return x.sum((1, 2, 3))

    for call, said in (
        (lambda: F.attack(score, images, allowed, 0.0, 3, generator(0)), "epsilon must be above 0"),
        (lambda: F.attack(score, images, allowed, 0.1, 0, generator(0)), "steps must be 1 or more"),
        (lambda: F.attack(score, images, allowed[..., :3], 0.1, 1, generator(0)), "same grid"),
        (lambda: F.outside(allowed, -1), "margin must be 0 or more"),
        (lambda: F.location_change(allowed, allowed[..., :3]), "same shape"),
        (lambda: F.rank_change(torch.rand(2, 3), torch.rand(2, 3), torch.tensor([0, 3]), None), "prototype must lie"),
    ):
        with pytest.raises(DaplError, match=said):
            call()
