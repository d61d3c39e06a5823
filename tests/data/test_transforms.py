"""Image, mask, part masks, keypoints and box move together: dots are drawn, moved, and looked for in the pixels."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision import tv_tensors

from dapl.common.errors import DaplError
from dapl.data.sample import Sample
from dapl.data.transforms import FILL, IMAGENET_MEAN, IMAGENET_STD, augment, crop, crop_to_box, fit, flip, normalise

COLOURS = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [255, 0, 255], [0, 255, 255]])
CENTRES = ((12, 12), (128, 14), (70, 48), (20, 84), (120, 80), (84, 20))
"""(column, row) of the middle pixel of each dot; so the keypoint is half a pixel farther."""
DOT, PART = 4, 9
GROUND = 40.0
HEIGHT, WIDTH = 97, 141


def dots(height: int = HEIGHT, width: int = WIDTH) -> Sample:
    """Six dots of a colour each on dark grey; each stands in the middle of its square part mask. Part 6 is hidden."""
    image = torch.full((3, height, width), int(GROUND), dtype=torch.uint8)
    part_masks = torch.zeros(7, height, width, dtype=torch.uint8)
    keypoints = torch.zeros(7, 2)
    for number, (column, row) in enumerate(CENTRES):
        image[:, row - DOT : row + DOT + 1, column - DOT : column + DOT + 1] = COLOURS[number][:, None, None]
        part_masks[number, row - PART : row + PART + 1, column - PART : column + PART + 1] = 1
        keypoints[number] = torch.tensor([column + 0.5, row + 0.5])
    mask = part_masks.amax(dim=0)
    frame = (height, width)
    return Sample(
        image=tv_tensors.Image(image),
        label=3,
        name="dots",
        mask=tv_tensors.Mask(mask),
        keypoints=tv_tensors.KeyPoints(keypoints, canvas_size=frame),
        visible=torch.tensor([True] * 6 + [False]),
        part_masks=tv_tensors.Mask(part_masks),
        box=tv_tensors.BoundingBoxes(extent(mask)[None], format="XYXY", canvas_size=frame),
    )


def extent(mask: Tensor) -> Tensor:
    rows, columns = mask.as_subclass(Tensor).nonzero().T
    return torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()


def centroid(weights: Tensor) -> Tensor:
    """(x, y) in continuous coordinates."""
    rows, columns = weights.nonzero().T
    at = torch.stack([columns, rows], dim=1) + 0.5
    weight = weights[rows, columns].float()[:, None]
    return (at * weight).sum(dim=0) / weight.sum()


def share_of(sample: Sample, number: int) -> Tensor:
    """H×W: how much of each pixel is this dot's colour, the rest being ground; 0 where another colour is mixed in."""
    pixels = sample.image.as_subclass(Tensor).float() - GROUND
    colour = COLOURS[number][:, None, None].float() - GROUND
    share = (pixels * colour).sum(dim=0) / colour.square().sum()
    mixed = (pixels - share * colour).norm(dim=0) > 12
    return torch.where(mixed | (share < 0.08), 0.0, share)


def check(sample: Sample, near: float, near_mask: float = 0.75) -> int:
    """Every part where the pixels say it is; returns how many parts were compared to the image.

    A side of a mask is off by up to half a pixel for each time it is resampled by the nearest pixel.
    """
    frame = sample.image.shape[-2:]
    assert sample.mask.shape == frame
    assert sample.part_masks.shape == (7, *frame)
    assert sample.keypoints.canvas_size == tuple(frame)
    assert (sample.image.dtype, sample.mask.dtype, sample.keypoints.dtype) == (torch.uint8, torch.uint8, torch.float32)
    assert isinstance(sample.image, tv_tensors.Image)
    assert isinstance(sample.keypoints, tv_tensors.KeyPoints)
    assert set(sample.mask.unique().tolist()) <= {0, 1}
    assert torch.equal(sample.mask, sample.part_masks.amax(dim=0))
    assert not sample.visible[6]
    assert (sample.keypoints[~sample.visible] == 0).all()
    compared = 0
    for number in range(6):
        dot, part = share_of(sample, number), sample.part_masks[number].as_subclass(Tensor)
        point = sample.keypoints[number].as_subclass(Tensor)
        if not sample.visible[number]:
            assert not _far_inside(dot), f"part {number} is in the image, but marked invisible"
            continue
        column, row = point.int().tolist()
        assert dot[row, column] > 0.5, f"part {number} is not at its keypoint"
        if _far_inside(part):
            assert (centroid(dot) - point).norm() < near
            assert (centroid(part) - point).norm() < near_mask
            compared += 1
    return compared


def _far_inside(pixels: Tensor) -> bool:
    """Anything there, and nothing of it cut off by the frame."""
    edge = pixels[0].any() or pixels[-1].any() or pixels[:, 0].any() or pixels[:, -1].any()
    return bool(pixels.any() and not edge)


def test_the_check_itself() -> None:
    sample = dots()
    assert check(sample, near=0.01) == 6
    beside = tv_tensors.KeyPoints(sample.keypoints + 1.0, canvas_size=(HEIGHT, WIDTH))
    with pytest.raises(AssertionError):
        check(replace(sample, keypoints=beside), near=0.5)


@pytest.mark.parametrize("size", [64, 97, 141, 200, 224])
def test_stretch(size: int) -> None:
    moved = fit(dots(), size)
    assert moved.image.shape == (3, size, size)
    assert check(moved, near=0.15) == 6
    assert (moved.box[0] - extent(moved.mask)).abs().max() <= 0.75  # type: ignore[arg-type]
    scale = torch.tensor([size / WIDTH, size / HEIGHT] * 2)
    assert torch.allclose(moved.box[0].as_subclass(Tensor), extent(dots().mask) * scale)  # type: ignore[arg-type]


def test_masks_are_not_shifted() -> None:
    """Each is off by part of a pixel, but not all to the same side (as torchvision's own choice of NEAREST does)."""
    offsets = []
    for size in range(60, 220, 7):
        moved = fit(dots(), size)
        masks, points = moved.part_masks.as_subclass(Tensor), moved.keypoints.as_subclass(Tensor)
        offsets += [centroid(masks[number]) - points[number] for number in range(6)]
    assert torch.stack(offsets).mean(dim=0).abs().max() < 0.1


@pytest.mark.parametrize("size", [64, 97, 141, 200])
@pytest.mark.parametrize("turned", [False, True])
def test_crop_loses_what_is_outside(size: int, turned: bool) -> None:
    sample = transposed(dots()) if turned else dots()
    moved = fit(sample, size, "crop")
    assert moved.image.shape == (3, size, size)
    # the middle 97 of the 141 columns stay, 22 … 119: keypoints 0, 1 and 3 leave, and 4 with its column 120
    assert moved.visible.tolist() == [False, False, True, False, False, True, False]
    assert check(moved, near=0.15) == 2


@pytest.mark.parametrize("size", [64, 97, 141, 200])
@pytest.mark.parametrize("turned", [False, True])
def test_pad(size: int, turned: bool) -> None:
    sample = transposed(dots()) if turned else dots()
    moved = fit(sample, size, "pad")
    assert moved.image.shape == (3, size, size)
    assert check(moved, near=0.15) == 6
    corner = moved.image[:, :2, :2]
    assert torch.equal(corner, torch.tensor(FILL, dtype=torch.uint8)[:, None, None].expand(3, 2, 2))
    assert (moved.box[0] - extent(moved.mask)).abs().max() <= 0.75  # type: ignore[arg-type, index]


def transposed(sample: Sample) -> Sample:
    """Rows for columns: a portrait."""
    frame = (WIDTH, HEIGHT)
    return replace(
        sample,
        image=tv_tensors.Image(sample.image.transpose(1, 2).contiguous()),
        mask=tv_tensors.Mask(sample.mask.T.contiguous()),
        part_masks=tv_tensors.Mask(sample.part_masks.transpose(1, 2).contiguous()),
        keypoints=tv_tensors.KeyPoints(sample.keypoints.flip(1), canvas_size=frame),
        box=tv_tensors.BoundingBoxes(sample.box[:, [1, 0, 3, 2]], format="XYXY", canvas_size=frame),
    )


def test_square_images_fit_the_same_way_however() -> None:
    square = crop(dots(), 0, 40, 97, 97)
    ways = [fit(square, 64, how) for how in ("stretch", "crop", "pad")]
    for way in ways[1:]:
        assert torch.equal(way.image, ways[0].image)
        assert torch.equal(way.keypoints, ways[0].keypoints)  # type: ignore[arg-type]


def test_crop_and_crop_to_box() -> None:
    moved = crop(dots(), top=30, left=10, height=60, width=100)
    assert check(moved, near=0.01) == 1
    sample = dots()
    tight = tv_tensors.BoundingBoxes([[60.4, 8.2, 100.6, 60.9]], format="XYXY", canvas_size=(HEIGHT, WIDTH))
    moved = crop_to_box(replace(sample, box=tight))
    assert moved.image.shape == (3, 61 - 8, 101 - 60)
    assert check(moved, near=0.01) == 2
    assert torch.allclose(moved.box.as_subclass(Tensor), torch.tensor([[0.4, 0.2, 40.6, 52.9]]), atol=1e-4)  # type: ignore[union-attr]
    with pytest.raises(DaplError, match="dots: has no bounding box"):
        crop_to_box(replace(sample, box=None))


def test_flip_is_exact_and_undone_by_flip() -> None:
    sample = dots()
    moved = flip(sample)
    assert check(moved, near=1e-3) == 6
    assert torch.equal(moved.box[0].as_subclass(Tensor), extent(moved.mask))  # type: ignore[index, arg-type]
    back = flip(moved)
    assert torch.equal(back.image, sample.image)
    assert torch.equal(back.keypoints, sample.keypoints)  # type: ignore[arg-type]


def test_points_on_the_very_edge_survive_a_flip() -> None:
    points = tv_tensors.KeyPoints([[0.0, 0.0], [WIDTH - 1e-5, 5.0], [3.0, HEIGHT - 0.01]], canvas_size=(HEIGHT, WIDTH))
    sample = replace(dots(), part_masks=None, keypoints=points, visible=torch.ones(3, dtype=torch.bool))
    for moved in (flip(sample), flip(flip(sample)), fit(sample, 64), flip(fit(sample, 64))):
        assert moved.visible.all()
        assert (moved.keypoints.floor() < torch.tensor(moved.image.shape[:0:-1])).all()


def test_augment_flip_flips_half() -> None:
    sample = dots()
    mirrored = sum(not torch.equal(augment(sample, "flip", seed).image, sample.image) for seed in range(200))
    assert 75 <= mirrored <= 125
    assert augment(sample, "none", 3) is sample


def test_augment_affine_moves_all_together() -> None:
    sample = dots()
    compared = 0
    for seed in range(60):
        moved = augment(sample, "affine", seed)
        assert moved.image.shape == sample.image.shape
        compared += check(moved, near=0.2)
        around, inner = moved.box[0].as_subclass(Tensor), extent(moved.mask)  # type: ignore[index, arg-type]
        assert (around[:2] <= inner[:2] + 0.51).all()
        assert (around[2:] >= inner[2:] - 0.51).all()
        assert (around >= 0).all()
        assert (around <= torch.tensor([WIDTH, HEIGHT] * 2)).all()
    assert compared > 150


def test_affine_after_fit_and_fit_after_affine() -> None:
    for seed in range(10):
        check(augment(fit(dots(), 112), "affine", seed), near=0.3, near_mask=1.3)
        check(fit(augment(dots(), "affine", seed), 112), near=0.3, near_mask=1.3)


def test_affine_varies_as_it_says() -> None:
    """Half are mirrored, both ways of turning occur, and by default nothing is turned by more than it may."""
    sample = dots()
    mirrored, left = 0, 0
    for seed in range(100):
        points = augment(sample, "affine", seed).keypoints
        middle, other = points[2], points[5]  # both near the middle, so they mostly stay inside
        mirrored += bool(other[0] < middle[0])
        left += bool((other - middle)[0].abs() < 14)
    assert 30 <= mirrored <= 70
    assert 10 <= left <= 90


def test_pad_and_crop_keep_the_centre() -> None:
    for how in ("pad", "crop"):
        for size in (63, 64, 200):
            middle = fit(dots(), size, how).keypoints[2].as_subclass(Tensor)  # type: ignore[arg-type, index]
            assert (middle - size / 2).abs().max() < 0.51


def test_no_line_where_image_and_fill_meet() -> None:
    plain = torch.full((3, HEIGHT, WIDTH), 1, dtype=torch.uint8) * torch.tensor(FILL, dtype=torch.uint8)[:, None, None]
    moved = augment(replace(dots(), image=tv_tensors.Image(plain)), "affine", 3)
    assert torch.equal(moved.image, plain)


def test_fill_is_the_mean_colour() -> None:
    sample = replace(dots(), image=tv_tensors.Image(torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8)))
    seen = torch.stack([augment(sample, "affine", seed).image.amax(dim=(1, 2)) for seed in range(10)])
    assert torch.equal(seen.amax(dim=0), torch.tensor(FILL, dtype=torch.uint8))
    full = replace(dots(), mask=tv_tensors.Mask(torch.ones(HEIGHT, WIDTH, dtype=torch.uint8)))
    assert any((augment(full, "affine", seed).mask == 0).any() for seed in range(10))  # type: ignore[union-attr]


def test_augment_is_a_function_of_sample_and_seed() -> None:
    sample = dots()
    before = sample.image.clone(), sample.keypoints.clone()  # type: ignore[union-attr]
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    first = augment(sample, "affine", 5)
    assert states == (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
    torch.manual_seed(1), random.seed(1)
    again = augment(sample, "affine", 5)
    for one, other in ((first.image, again.image), (first.mask, again.mask), (first.keypoints, again.keypoints)):
        assert torch.equal(one, other)  # type: ignore[arg-type]
    assert torch.equal(sample.image, before[0])
    assert torch.equal(sample.keypoints, before[1])  # type: ignore[arg-type]
    others = [augment(sample, "affine", seed).image for seed in (6, 5 + 2**32, 5 + 2**40, -5)]
    assert all(not torch.equal(first.image, other) for other in others)


MOVES: list[Callable[[Sample], Sample]] = [
    lambda sample: fit(sample, 50, "stretch"),
    lambda sample: fit(sample, 50, "crop"),
    lambda sample: fit(sample, 50, "pad"),
    flip,
    lambda sample: augment(sample, "affine", 1),
]


@pytest.mark.parametrize("move", MOVES)
def test_a_image_alone(move: Callable[[Sample], Sample]) -> None:
    moved = move(Sample(image=dots().image, label=1, name="alone"))
    assert (moved.label, moved.name) == (1, "alone")
    assert moved.mask is moved.keypoints is moved.visible is moved.part_masks is moved.box is None


@pytest.mark.parametrize("move", MOVES)
def test_without_parts(move: Callable[[Sample], Sample]) -> None:
    frame = (HEIGHT, WIDTH)
    none = tv_tensors.KeyPoints(torch.zeros(0, 2), canvas_size=frame)
    moved = move(Sample(dots().image, 0, "no parts", keypoints=none, visible=torch.zeros(0, dtype=torch.bool)))
    assert moved.keypoints.shape == (0, 2)


def test_a_box_that_leaves_is_gone() -> None:
    box = tv_tensors.BoundingBoxes([[2.0, 2.0, 9.0, 9.0]], format="XYXY", canvas_size=(HEIGHT, WIDTH))
    assert crop(replace(dots(), box=box), 20, 20, 50, 50).box is None


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 80), st.sampled_from(["stretch", "crop", "pad"]))
def test_any_shape_fits(height: int, width: int, size: int, how: str) -> None:
    image = tv_tensors.Image(torch.zeros(3, height, width, dtype=torch.uint8))
    mask = tv_tensors.Mask(torch.ones(height, width, dtype=torch.uint8))
    moved = fit(Sample(image, 0, "any", mask=mask), size, how)  # type: ignore[arg-type]
    assert moved.image.shape == (3, size, size)
    assert moved.mask.shape == (size, size)
    assert moved.mask.any()


def test_unknown_words() -> None:
    with pytest.raises(DaplError, match="'squeeze'; give one of stretch, crop, pad"):
        fit(dots(), 10, "squeeze")  # type: ignore[arg-type]
    with pytest.raises(DaplError, match="'wild'; give one of none, flip, affine"):
        augment(dots(), "wild")  # type: ignore[arg-type]
    with pytest.raises(DaplError, match="size is 1"):
        fit(dots(), 1)


def test_normalise() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    mean, std = torch.tensor(IMAGENET_MEAN)[:, None, None], torch.tensor(IMAGENET_STD)[:, None, None]
    assert torch.allclose(normalise(images), (images / 255 - mean) / std, atol=1e-5)
    one = normalise(tv_tensors.Image(images[0]), mean=(0, 0, 0), std=(1, 1, 1))
    assert type(one) is Tensor
    assert torch.allclose(one, images[0] / 255)
    assert normalise(images.to(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)
    assert normalise(torch.tensor(FILL, dtype=torch.uint8).view(1, 3, 1, 1)).abs().max() < 0.02
    with pytest.raises(TypeError, match="uint8"):
        normalise(images.float())
