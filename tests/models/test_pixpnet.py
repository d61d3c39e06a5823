"""PixPNet against loops written from the paper: cosine distance, similarity, plain sums, maps by receptive field."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.metrics.functional import activation_regions
from dapl.metrics.functional.regions import model_regions
from dapl.models.backbone import Backbone
from dapl.models.pixpnet import PixPNet, gaussians
from dapl.models.prototypes import UnitPrototypes
from dapl.models.receptive import ReceptiveFields, receptive_fields

B, C, N, D, SIZE = 2, 3, 2, 5, (32, 48)
P = C * N


@pytest.fixture
def model() -> PixPNet:
    """On a stage that sees less than the image, in evaluation mode, in float64."""
    torch.manual_seed(0)
    model = PixPNet(Backbone("resnet18", [0]), C, N, D).double().eval()
    with torch.no_grad():
        for layer in (model.addon[0], model.addon[2]):
            layer.bias.normal_()
        model.prototypes.vectors.normal_()
    return model


@pytest.fixture
def images() -> Tensor:
    return torch.rand(B, 3, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def slow_cosine_distance(z: list[float], p: list[float]) -> float:
    lengths = math.sqrt(sum(a * a for a in z)) * math.sqrt(sum(b * b for b in p))
    return 1 - sum(a * b for a, b in zip(z, p, strict=True)) / lengths


@torch.no_grad()
def test_scores_and_logits_are_those_of_the_loops(model: PixPNet, images: Tensor) -> None:
    output, maps = model(images), model.activation_maps(images)
    patches = model.addon(model.backbone(images))  # before anything is given unit length
    _, _, height, width = patches.shape
    for image in range(B):
        logits = [0.0] * C
        for j in range(P):
            vector, nearest = model.prototypes.vectors[j].tolist(), math.inf
            for row in range(height):
                for column in range(width):
                    distance = slow_cosine_distance(patches[image, :, row, column].tolist(), vector)
                    similarity = math.log(1 / (distance + 1e-6) + 1)
                    assert maps[image, j, row, column].item() == pytest.approx(similarity, rel=1e-6)
                    nearest = min(nearest, distance)
            score = math.log(1 / (nearest + 1e-6) + 1)
            assert output.scores[image, j].item() == pytest.approx(score, rel=1e-6)
            assert output.distances[image, j].item() / 2 == pytest.approx(nearest, rel=1e-6)
            logits[j // N] += score
        assert output.logits[image].tolist() == pytest.approx(logits)


def test_similarity_at_its_ends() -> None:
    layer = UnitPrototypes(torch.eye(2).bool(), groups=1, width=3, epsilon=1e-6)
    squared = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64)  # the same, across, the opposite
    expected = [math.log(1 / (d + 1e-6) + 1) for d in (0.0, 1.0, 2.0)]
    assert layer.similarity(squared).tolist() == pytest.approx(expected)


def test_the_length_of_a_vector_says_nothing(model: PixPNet, images: Tensor) -> None:
    with torch.no_grad():
        before = model(images).logits
        model.prototypes.vectors.mul_(torch.arange(1, P + 1).unsqueeze(1))
        assert_close(model(images).logits, before)
    model(images).logits.sum().backward()
    gradient = model.prototypes.vectors.grad
    assert gradient is not None
    along = (gradient * model.prototypes.vectors).sum(1)
    assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-9)


def test_there_is_no_last_layer(model: PixPNet) -> None:
    assert set(model.components()) == {"backbone", "addon", "prototypes"}
    model.prototypes.kept[3] = False
    expected = [[float(j // N == c and j != 3) for c in range(C)] for j in range(P)]
    assert model.class_weights().tolist() == expected
    assert not model.class_weights().requires_grad


# --- maps to pixels ---------------------------------------------------------------------------------------------


def slow_centres(ends: list[list[int]], size: int) -> list[float]:
    """The middle of a field; of one that the edge of the image cuts, the place of the cell."""
    centres = []
    for number, (first, end) in enumerate(ends):
        cut = first == 0 or end == size
        centres.append((number + 0.5) * size / len(ends) if cut else (first + end) / 2)
    return centres


def slow_pixels(activation: Tensor, fields: ReceptiveFields, size: tuple[int, int]) -> Tensor:
    """Each cell paints a Gaussian on its receptive field, σ a quarter of its sides; the highest counts."""
    rows, columns = fields.rows.tolist(), fields.columns.tolist()
    downs, acrosses = slow_centres(rows, size[0]), slow_centres(columns, size[1])
    pixels = torch.zeros(size, dtype=torch.float64)
    for r, (top, bottom) in enumerate(rows):
        for c, (left, right) in enumerate(columns):
            for y in range(top, bottom):
                for x in range(left, right):
                    down = (y + 0.5 - downs[r]) / ((bottom - top) / 4)
                    across = (x + 0.5 - acrosses[c]) / ((right - left) / 4)
                    value = activation[r, c].item() * math.exp(-0.5 * (down * down + across * across))
                    pixels[y, x] = max(pixels[y, x].item(), value)
    return pixels


@torch.no_grad()
def test_maps_are_painted_as_the_loop_paints_them(model: PixPNet, images: Tensor) -> None:
    maps = model.activation_maps(images, torch.tensor([4, 1]))
    pixels = model.to_pixels(maps, SIZE)
    assert pixels.shape == (B, 2, *SIZE)
    fields = receptive_fields(model.backbone, SIZE)
    assert fields.size() < SIZE  # or all cells would paint alike
    for image in range(B):
        for number in range(2):
            expected = slow_pixels(maps[image, number], fields, SIZE)
            assert_close(pixels[image, number], expected)


def test_cells_that_see_the_whole_image_paint_where_they_are() -> None:
    """Their fields are all alike, cut by the image, and would all have one middle."""
    painted = gaussians(torch.tensor([[0, 90]] * 3), 90)
    assert ((painted.argmax(1) + 0.5 - torch.tensor([15, 45, 75])).abs() <= 0.5).all()


@torch.no_grad()
def test_one_cell_paints_its_field_and_nothing_else(model: PixPNet) -> None:
    fields = model.receptive_fields(SIZE)
    maps = torch.zeros(1, 1, len(fields.rows), len(fields.columns), dtype=torch.float64)
    maps[0, 0, 7, 12] = 3.0
    pixels = model.to_pixels(maps, SIZE)[0, 0]
    (top, bottom), (left, right) = fields.rows[7].tolist(), fields.columns[12].tolist()
    inside = torch.zeros(SIZE, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    assert 0 < inside.sum() < inside.numel() / 4
    assert torch.equal(pixels > 0, inside)
    peak = divmod(int(pixels.argmax()), SIZE[1])
    assert abs(peak[0] + 0.5 - (top + bottom) / 2) <= 0.5
    assert abs(peak[1] + 0.5 - (left + right) / 2) <= 0.5
    assert 2.5 < pixels.max() <= 3


def test_outside_of_all_fields_there_is_nothing() -> None:
    """A grid of cells with pixels between them, as a stride larger than the kernel leaves them."""
    painted = gaussians(torch.tensor([[1, 3], [5, 7]]), 9)
    assert torch.equal(painted.sum(0) > 0, torch.tensor([False, True, True, False, False, True, True, False, False]))
    assert painted.amax(1).tolist() == pytest.approx([math.exp(-0.5)] * 2)  # half a pixel from the middle, σ = 0.5


@torch.no_grad()
def test_painting_does_not_depend_on_type_or_place(model: PixPNet) -> None:
    fields = model.receptive_fields(SIZE)
    maps = torch.rand(2, 3, 4, len(fields.rows), len(fields.columns), dtype=torch.float64)
    pixels = model.to_pixels(maps, SIZE)
    assert pixels.shape == (2, 3, 4, *SIZE)
    assert_close(model.to_pixels(maps[1, 2:], SIZE), pixels[1, 2:])
    single = model.to_pixels(maps.float(), SIZE)
    assert single.dtype == torch.float32
    assert_close(single, pixels.float())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_regions_are_those_of_the_painted_maps(model: PixPNet, images: Tensor, mode: Callable) -> None:
    """And not of bicubic ones, in whatever mode they are first asked for."""
    square = images[:, :, :, :32]
    with mode():
        maps = model.activation_maps(square)
        regions = model_regions(model, maps, 32)
        assert torch.equal(regions, activation_regions(model.to_pixels(maps, (32, 32)), None))
        assert not torch.equal(regions, activation_regions(maps, 32))


def test_fields_are_found_once_for_a_size(model: PixPNet) -> None:
    first = model.receptive_fields(SIZE)
    assert model.receptive_fields(SIZE) is first
    assert len(model.receptive_fields((32, 32)).columns) < len(first.columns)


def test_the_field_is_told(model: PixPNet) -> None:
    assert model.facts(64) == {"receptive_field": list(receptive_fields(model.backbone, (64, 64)).size())}
    assert model.facts(64) != {"receptive_field": [64, 64]}
