"""Trivial maps: each maker against a slow loop over what it says it is."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from dapl.batches.pixels import Annotations
from dapl.common.seeds import generator
from dapl.evaluation import EvaluationProtocol
from dapl.evaluation.ground_truth import GroundTruth
from dapl.evaluation.trivial import (
    TRIVIAL,
    TrivialBatch,
    at_the_centroid,
    bumps,
    cluster_centres,
    far_apart,
    grid_places,
    in_the_mask,
    kept_to_parts,
    noise_in_the_mask,
    on_clusters,
    on_keypoints,
)
from dapl.metrics import functional as F

SIZE, SHARE = 24, 0.05
PARTS = ("beak", "left eye", "right eye", "tail")
KEYPOINTS = torch.tensor(
    [
        [[3.0, 4.0], [5.0, 5.0], [0.0, 0.0], [18.0, 15.0]],
        [[20.0, 2.0], [0.0, 0.0], [17.0, 4.0], [4.0, 20.0]],
        [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
    ]
)
VISIBLE = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()


def masks() -> Tensor:
    """An L, a block, and nothing."""
    found = torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)
    found[0, 2:20, 3:7] = 1
    found[0, 16:20, 3:21] = 1
    found[1, 5:15, 8:20] = 1
    return found


def batch_of(images: list[int], prototypes: int = 4, seed: int = 0) -> TrivialBatch:
    points = Annotations(KEYPOINTS[images], VISIBLE[images], torch.zeros(len(images), 4), None, SIZE)
    protocol = EvaluationProtocol(seed=seed)
    truth = GroundTruth(protocol, "disc", torch.device("cpu"), lambda: points, lambda: masks()[images])
    return TrivialBatch(torch.tensor(images), truth, PARTS, prototypes, SIZE, SHARE, seed)


@pytest.mark.parametrize("centre", [(11.0, 9.0), (4.3, 17.8), (0.0, 0.0), (23.0, 12.5)])
def test_the_region_of_a_bump_holds_the_pixels_nearest_to_its_centre(centre: tuple[float, float]):
    regions = F.activation_regions(bumps(torch.tensor([centre]), SIZE, SHARE), None, 100 * (1 - SHARE))[0]
    distances = {(x, y): math.hypot(x - centre[0], y - centre[1]) for x, y in product(range(SIZE), repeat=2)}
    inside = [distance for (x, y), distance in distances.items() if regions[y, x]]
    outside = [distance for (x, y), distance in distances.items() if not regions[y, x]]
    assert len(inside) >= SHARE * SIZE**2  # a disc that the border cuts off is wider instead
    assert max(inside) <= min(outside) + 1e-4  # float32 squares of up to 32 pixels


def test_random_centres_are_the_pixels_of_the_mask_that_the_generator_names():
    found = in_the_mask(batch_of([0, 1, 2], seed=3))
    for image, mask in enumerate(masks()):
        pixels = [(x, y) for y in range(SIZE) for x in range(SIZE) if mask[y, x] or not mask.any()]
        drawn = torch.randint(len(pixels), (4,), generator=generator(3, "chance", "mask", image))
        assert [tuple(place) for place in found[image].int().tolist()] == [pixels[place] for place in drawn.tolist()]


def test_an_image_gets_the_same_maps_in_any_batch_and_others_with_another_seed():
    for one in TRIVIAL:
        together, alone = one.maps(batch_of([0, 1, 2])), one.maps(batch_of([1]))
        assert torch.equal(together[-2 if len(together) > 1 else 0], alone[0]), one.name
        if "random" in one.name or "noise" in one.name:
            assert not torch.equal(one.maps(batch_of([1], seed=1)), alone), one.name


def test_the_grid_has_every_place_once_in_the_middle_of_the_image():
    for count in (1, 3, 7, 10, 20):
        places = grid_places(count, SIZE)
        assert len(places.unique(dim=0)) == len(places) == count
        middle = (SIZE - 1) / 2
        assert places[:, 0].mean().item() == pytest.approx(middle, abs=1e-5)
        assert (places - middle).abs().max() < 0.3 * SIZE


def test_the_centroid_is_the_mean_pixel():
    found = at_the_centroid(batch_of([0, 1, 2]))
    for image, mask in enumerate(masks()):
        pixels = [(x, y) for y in range(SIZE) for x in range(SIZE) if mask[y, x] or not mask.any()]
        assert found[image, 0].tolist() == pytest.approx(np.mean(pixels, axis=0).tolist(), rel=1e-6)


def test_clusters_are_those_of_a_slow_k_means():
    points = torch.tensor([[0.0, 0], [1, 0], [0, 1], [9, 9], [10, 9], [20, 0], [21, 1]])
    centres = [points[place] for place in far_apart(points[None], torch.ones(1, 7).bool(), 3)[0].tolist()]
    for _ in range(20):
        members: list[list[Tensor]] = [[], [], []]
        for point in points:
            members[min(range(3), key=lambda k: float((point - centres[k]).norm()))].append(point)
        centres = [torch.stack(own).mean(0) for own in members]
    assert torch.allclose(cluster_centres(points[None], 3)[0], torch.stack(centres))


def test_clusters_lie_on_the_object_that_they_share_out():
    found = on_clusters(batch_of([1], prototypes=4))[0]
    quarters = torch.tensor([[10.5, 7.0], [10.5, 12.0], [16.5, 7.0], [16.5, 12.0]])
    assert torch.cdist(found, quarters).amin(0).max() < 0.3  # 512 samples of 120 pixels: some count once more


def test_far_apart_against_a_loop():
    points = torch.rand(1, 9, 2, generator=torch.Generator().manual_seed(0))
    allowed = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 1]]).bool()
    taken = [1]
    while len(taken) < 5:
        free = [place for place in range(9) if allowed[0, place]]
        taken.append(max(free, key=lambda one: min(float((points[0, one] - points[0, t]).norm()) for t in taken)))
    assert far_apart(points, allowed, 5).tolist() == [taken]


def test_noise_is_upsampled_noise_inside_and_below_it_outside():
    maps = noise_in_the_mask(batch_of([0, 1], seed=2))
    for image in (0, 1):
        noise = torch.randn(4, 7, 7, generator=generator(2, "chance", "noise", image))
        smooth = torch.nn.functional.interpolate(noise[None], SIZE, mode="bicubic", align_corners=False)[0]
        inside = masks()[image].bool()
        for mine, theirs in zip(maps[image], smooth, strict=True):
            assert (mine >= 0).all()
            assert mine[inside].min() > mine[~inside].max()
            assert torch.equal(mine[inside].argsort(), theirs[inside].argsort())


def test_the_oracle_is_on_visible_keypoints_and_keeps_to_its_part():
    found = on_keypoints(batch_of([0, 1, 2], prototypes=3))
    beak, eye, tail = range(3)  # kinds of parts: left and right are one
    assert [found[0, part].tolist() for part in (beak, eye, tail)] == [[3, 4], [5, 5], [18, 15]]
    assert [found[1, part].tolist() for part in (beak, eye, tail)] == [[20, 2], [17, 4], [4, 20]]
    assert found[2].unique().tolist() == [(SIZE - 1) / 2]  # no part is visible


def test_keypoints_whose_prototype_is_taken_go_to_those_that_are_free():
    assert kept_to_parts([0, 0, 0], 3).tolist() == [0, 1, 2]
    assert kept_to_parts([5, 3, 1, 4], 4).tolist() == [3, 0, 2, 1]
