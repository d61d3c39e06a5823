"""Consistency and stability against loops written from Huang et al. (2023), and the noise where the network sees it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

from dapl.common.seeds import generator
from dapl.metrics import functional as C
from dapl.models.backbone import create_backbone

SIDE = 24


def highest(pixels: Tensor) -> tuple[int, int]:
    """x, y of the first of the highest pixels in row-major order."""
    best, place = -math.inf, (0, 0)
    for y, row in enumerate(pixels.tolist()):
        for x, value in enumerate(row):
            if value > best:
                best, place = value, (x, y)
    return place


def parts_of(pixels: Tensor, keypoints: Tensor, visible: Tensor, half_size: int) -> list[bool]:
    """The parts in the box around the highest pixel, the box cut to the image as the authors' is."""
    height, width = pixels.shape
    x, y = highest(pixels)
    left, right = max(0, x - half_size), min(width, x + half_size)
    top, bottom = max(0, y - half_size), min(height, y + half_size)
    inside = []
    for (kx, ky), seen in zip(keypoints.tolist(), visible.tolist(), strict=True):
        in_image = 0 <= kx <= width and 0 <= ky <= height
        column, row = min(int(kx), width - 1), min(int(ky), height - 1)
        inside.append(seen and in_image and left <= column <= right and top <= row <= bottom)
    return inside


class TestPeaks:
    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(st.lists(st.integers(0, 2), min_size=12, max_size=12))
    def test_ties_go_to_the_first_in_rows(self, values: list[int]) -> None:
        maps = torch.tensor(values).float().view(1, 3, 4)
        assert tuple(C.peaks(maps)[0].tolist()) == highest(maps[0])

    def test_both_coordinates_are_of_one_pixel(self) -> None:
        """A tie in row 1, columns 3 and 5: ProtoPNeXt would look at (1, 1)."""
        maps = torch.zeros(1, 4, 6)
        maps[0, 1, [3, 5]] = 2.0
        assert C.peaks(maps).tolist() == [[3, 1]]

    @pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
    def test_a_constant_map_is_highest_at_the_first_pixel(self, value: float) -> None:
        assert C.peaks(torch.full((2, 3, 7, 7), value), 224).eq(0).all()

    def test_of_the_bicubic_map(self) -> None:
        g = torch.Generator().manual_seed(0)
        maps = torch.rand(5, 3, 7, 6, generator=g).double()
        pixels = interpolate(maps, size=(50, 40), mode="bicubic", align_corners=False)
        for got, wanted in zip(C.peaks(maps, (50, 40)).flatten(0, 1), pixels.flatten(0, 1), strict=True):
            assert wanted[got[1], got[0]].item() == pytest.approx(wanted.max().item(), abs=1e-12)

    def test_many_maps_are_done_in_chunks(self) -> None:
        maps = torch.rand(100, 2, 7, 7, generator=torch.Generator().manual_seed(0))
        assert torch.equal(C.peaks(maps, 224), torch.stack([C.peaks(m, 224) for m in maps]))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_precisions(self, dtype: torch.dtype) -> None:
        maps = torch.randperm(49, generator=torch.Generator().manual_seed(0)).view(1, 7, 7).to(dtype)
        for size in (None, 35):
            assert torch.equal(C.peaks(maps, size), C.peaks(maps.float(), size))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, SIDE))
def test_corresponding_parts_equal_the_loops(seed: int, half_size: int) -> None:
    g = torch.Generator().manual_seed(seed)
    maps = torch.rand(2, 3, 5, 4, generator=g)
    keypoints = torch.rand(2, 6, 2, generator=g) * (SIDE + 8) - 4  # some lie outside the image
    keypoints[:, :2] = keypoints[:, :2].round()
    visible = torch.rand(2, 6, generator=g) < 0.7
    got = C.corresponding_parts(maps, keypoints, visible, SIDE, half_size)
    pixels = interpolate(maps, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    wanted = [[parts_of(pixels[b, j], keypoints[b], visible[b], half_size) for j in range(3)] for b in range(2)]
    assert got.tolist() == wanted


def test_the_bounds_are_inclusive() -> None:
    """The highest pixel is (112, 112): 36 pixels away is inside, 37 is not."""
    maps = torch.zeros(1, 224, 224)
    maps[0, 112, 112] = 1.0
    x = torch.tensor([112 - 36, 112 + 36, 112 + 36.99, 112 - 36.01, 112 + 37])
    visible = torch.ones(5).bool()
    for keypoints in (torch.stack((x, torch.full_like(x, 112.5)), -1), torch.stack((torch.full_like(x, 112.5), x), -1)):
        got = C.corresponding_parts(maps, keypoints, visible, 224)
        assert got.tolist() == [[True, True, True, False, False]]


def test_keypoints_that_cannot_be_seen() -> None:
    """NaN and whatever else stands where a part is invisible; a keypoint on the last border is in the last pixel."""
    maps = torch.zeros(1, 8, 8)
    maps[0, 7, 7] = 1.0
    keypoints = torch.tensor([[math.nan, math.nan], [7.5, 7.5], [8.0, 8.0], [8.1, 7.0], [-0.1, 7.0]])
    visible = torch.tensor([False, True, True, True, True])
    assert C.corresponding_parts(maps, keypoints, visible, 8, 0).tolist() == [[False, True, True, False, False]]
    assert C.visible_keypoints(keypoints, visible, 8).tolist() == [False, True, True, False, False]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from((0.5, 0.8, 1.0)))
def test_consistency_equals_the_loops(seed: int, threshold: float) -> None:
    """Three classes of two prototypes; class 2 may have no image, and prototypes and parts may be hidden."""
    g = torch.Generator().manual_seed(seed)
    images, parts = 12, 4
    labels = torch.randint(0, 3 if seed % 2 else 2, (images,), generator=g)
    prototypes = torch.stack((2 * labels, 2 * labels + 1), dim=1)
    corresponding = torch.rand(images, 2, parts, generator=g) < 0.75
    visible = torch.rand(images, parts, generator=g) < (0.7 if seed % 3 else 0.05)
    kept = (torch.rand(6, generator=g) < 0.8)[prototypes]

    rates: list[float] = []
    for j in range(6):
        per_part = []
        for k in range(parts):
            asked = [
                bool(corresponding[i, j % 2, k])
                for i in range(images)
                if labels[i] == j // 2 and visible[i, k] and kept[i, j % 2]
            ]
            if asked:
                per_part.append(sum(asked) / len(asked))
        if per_part:
            rates.append(float(max(per_part) >= threshold))
    wanted = sum(rates) / len(rates) if rates else math.nan
    hits, seen = C.count_parts(corresponding, visible, prototypes, 6, kept)
    assert C.consistency(hits, seen, threshold).item() == pytest.approx(wanted, nan_ok=True)


def test_known_ends() -> None:
    seen = torch.tensor([[5, 10]])
    assert C.consistency(torch.tensor([[4, 0]]), seen) == 1  # 4/5 is not below 0.8, whatever floats make of it
    assert C.consistency(torch.tensor([[0, 8]]), seen) == 1
    assert C.consistency(torch.tensor([[3, 7]]), seen) == 0
    assert C.consistency(torch.zeros(1, 2).long(), torch.zeros(1, 2).long()).isnan()
    batch = torch.stack((seen, seen))
    assert C.consistency(torch.stack((seen, 0 * seen)), batch).tolist() == [1, 0]


def test_all_exact_quotients_meet_their_threshold() -> None:
    number = torch.arange(1, 500)
    for numerator, denominator in ((4, 5), (1, 10), (3, 10), (7, 10), (9, 10), (1, 3)):
        threshold = numerator / denominator
        got = C.consistent_prototypes(numerator * number.unsqueeze(1), denominator * number.unsqueeze(1), threshold)
        assert got.eq(1).all(), threshold


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
    """The published one in the image, also where a backbone does not normalise by ImageNet's deviations."""
    assert pytest.approx(STD.flatten().tolist()) == C.PUBLISHED_STD
    backbone = create_backbone("test_resnet", weights="random").eval()
    received: list[torch.Tensor] = []
    backbone.network.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=generator(3))
    with torch.no_grad():
        backbone(images)
        backbone(C.perturb(images, C.PUBLISHED_STD, generator(4)))
    wanted = (torch.randn(images.shape, generator=generator(4)) * 0.2).clamp(-0.25, 0.25) * STD / 0.5
    assert backbone.std.eq(0.5).all()
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
