"""Stability against loops written from Huang et al. (2023), and its noise where the network sees it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapl.common.seeds import generator
from dapl.metrics import functional as C
from dapl.models.backbone import create_backbone

MEAN, STD = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1), torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images.double() - MEAN) / STD


def test_the_noise_is_the_published_one_after_normalisation() -> None:
    images = torch.rand(4, 3, 100, 120, generator=generator(1))
    noise = normalised(C.perturb(images, STD, generator(2))) - normalised(images)
    n = torch.randn(images.shape, generator=generator(2)) * 0.2
    torch.testing.assert_close(noise.float(), n.clamp(-0.25, 0.25), atol=2e-6, rtol=0)
    # and as a distribution: N(0, 0.2²) whose tails beyond ±0.25 = 1.25 σ are piled up there
    tail = 0.5 * math.erfc(1.25 / math.sqrt(2))
    density = math.exp(-(1.25**2) / 2) / math.sqrt(2 * math.pi)
    variance = 0.2**2 * (1 - 2 * tail - 2 * 1.25 * density) + 2 * tail * 0.25**2
    for channel in noise.transpose(0, 1):
        assert channel.abs().max().item() == pytest.approx(0.25, abs=2e-6)
        assert (channel > 0.25 - 1e-5).double().mean().item() == pytest.approx(tail, abs=0.005)
        assert (channel < -0.25 + 1e-5).double().mean().item() == pytest.approx(tail, abs=0.005)
        assert channel.mean().item() == pytest.approx(0, abs=0.003)
        assert channel.std().item() == pytest.approx(math.sqrt(variance), abs=0.002)


def test_the_noise_in_a_real_backbone() -> None:
    backbone = create_backbone("test_efficientnet", weights="random").eval()
    received: list[torch.Tensor] = []
    backbone.network.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=generator(3))
    with torch.no_grad():
        backbone(images)
        backbone(C.perturb(images, backbone.std, generator(4)))
    wanted = (torch.randn(images.shape, generator=generator(4)) * 0.2).clamp(-0.25, 0.25)
    torch.testing.assert_close(received[1] - received[0], wanted, atol=2e-6, rtol=0)


def test_images_may_leave_their_range_and_are_not_changed() -> None:
    images = torch.full((1, 3, 16, 16), 255, dtype=torch.uint8)
    noisy = C.perturb(images, (0.5, 0.5, 0.5), generator(0))
    assert noisy.max() > 1
    assert images.eq(255).all()
    plain = torch.ones(1, 3, 16, 16)
    torch.testing.assert_close(C.perturb(plain, (0.5, 0.5, 0.5), generator(0)), noisy)
    assert plain.eq(1).all()


def test_one_generator_an_image_makes_noise_independent_of_the_batch() -> None:
    images = torch.rand(5, 3, 8, 8, generator=generator(0))
    whole = C.perturb(images, STD, [generator(7, i) for i in range(5)])
    parts = [C.perturb(images[rows], STD, [generator(7, i) for i in rows]) for rows in ([0, 1, 2], [3, 4])]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole[0] - images[0], whole[1] - images[1])


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(0, 2**31))
def test_stability_equals_the_loops(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    images, parts = 12, 3
    labels = torch.randint(0, 3 if seed % 2 else 2, (images,), generator=g)
    prototypes = torch.stack((2 * labels, 2 * labels + 1), dim=1)
    visible = torch.rand(images, parts, generator=g) < 0.5
    before = (torch.rand(images, 2, parts, generator=g) < 0.5) & visible.unsqueeze(1)
    after = (before ^ (torch.rand(images, 2, parts, generator=g) < 0.2)) & visible.unsqueeze(1)
    kept = (torch.rand(6, generator=g) < 0.8)[prototypes]

    per_prototype = []
    for j in range(6):
        same = [
            before[i, j % 2].tolist() == after[i, j % 2].tolist()
            for i in range(images)
            if labels[i] == j // 2 and kept[i, j % 2] and visible[i].any()
        ]
        if same:
            per_prototype.append(sum(same) / len(same))
    wanted = sum(per_prototype) / len(per_prototype) if per_prototype else math.nan
    got = C.stability(*C.count_stable(before, after, prototypes, 6, visible, kept))
    assert got.item() == pytest.approx(wanted, nan_ok=True)


def test_it_is_a_mean_over_prototypes_not_over_pairs() -> None:
    """Prototype 0 has three images, all stable, prototype 1 one that is not: 1/2, though three pairs of four are."""
    before = torch.ones(4, 1, 2).bool()
    after = before.clone()
    after[3] = False
    stable, shown = C.count_stable(before, after, torch.tensor([[0], [0], [0], [1]]), 2)
    assert (stable.tolist(), shown.tolist()) == ([3, 0], [3, 1])
    assert C.stability(stable, shown) == 0.5


def test_an_image_without_visible_parts_asks_nothing() -> None:
    nothing = torch.zeros(2, 1, 3).bool()
    visible = torch.tensor([[True, False, False], [False, False, False]])
    stable, shown = C.count_stable(nothing, nothing, torch.tensor([[0], [0]]), 1, visible)
    assert (stable.tolist(), shown.tolist()) == ([1], [1])
    assert C.stability(*C.count_stable(nothing, nothing, torch.tensor([[0], [0]]), 1, visible & False)).isnan()
