"""Receptive fields, checked by gradients of real networks and by the arithmetic of convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.models.backbone import Backbone
from dapl.models.receptive import ReceptiveFields, receptive_fields

Size = tuple[int, int]


def random_network(name: str, stages: list[int]) -> Backbone:
    """In float64, evaluation mode, and with no branch switched off, as timm starts some of them."""
    torch.manual_seed(0)
    backbone = Backbone(name, stages).double().eval().requires_grad_(False)
    for parameter in backbone.parameters():
        if not parameter.any():
            parameter.normal_(std=0.2)
    return backbone


def cells(height: int, width: int) -> list[tuple[int, int]]:
    """A corner, the middle, and one off the diagonal on which fields are found."""
    return [(0, 0), (height // 2, width // 2), (height - 1, width // 3)]


def reached(network: nn.Module, size: Size, images: int = 2) -> dict[tuple[int, int], Tensor]:
    """The pixels with a gradient from some cells on some random image, all channels mixed: bool size."""
    found: dict[tuple[int, int], Tensor] = {}
    for seed in range(images):
        generator = torch.Generator().manual_seed(seed)
        image = torch.rand(1, 3, *size, dtype=torch.float64, generator=generator).requires_grad_()
        features = network(image)[0]
        mixture = torch.randn(len(features), dtype=torch.float64, generator=generator)
        for row, column in cells(features.shape[1], features.shape[2]):
            cell = features[:, row, column] @ mixture
            (gradient,) = torch.autograd.grad(cell, image, retain_graph=True)
            found[row, column] = found.get((row, column), torch.tensor(False)) | (gradient[0] != 0).any(0)
    return found


def check(network: nn.Module, fields: ReceptiveFields, size: Size) -> None:
    """Outside of a cell's field the gradient is exactly zero; each side of the field is reached."""
    for (row, column), seen in reached(network, size).items():
        (top, bottom), (left, right) = fields.rows[row].tolist(), fields.columns[column].tolist()
        inside = torch.zeros(size, dtype=torch.bool)
        inside[top:bottom, left:right] = True
        assert not (seen & ~inside).any()
        assert seen[[top, bottom - 1]].any(1).all()
        assert seen[:, [left, right - 1]].any(0).all()


@pytest.mark.parametrize(
    ("name", "stages", "size", "restricted"),
    [
        ("tf_efficientnet_lite0", [-4], (64, 96), True),  # 'same' padding, which is not symmetric
        ("tf_efficientnet_lite0", [-3], (96, 96), True),
        ("tf_efficientnet_lite0", [-2], (64, 64), False),
        ("tf_efficientnet_lite0", [-1], (64, 64), False),
        ("mobilenetv2_100", [-3], (64, 96), True),
        ("resnet18", [1], (64, 96), True),  # max pooling, branches
        ("resnet18", [2], (96, 128), True),
        ("densenet121", [1], (64, 80), True),  # concatenation
        ("vgg11", [2], (64, 48), True),
        ("convnext_atto", [0], (64, 80), True),  # LayerNorm takes the mean of channels away
        ("nf_resnet26", [1], (64, 48), True),  # weights less their mean
        ("xception41", [1], (64, 64), True),  # timm takes its maps by hooks
        ("mobilenetv2_100", [-4, -3], (96, 128), True),  # fused: the coarser one is upsampled
    ],
)
def test_outside_of_its_field_a_cell_has_no_gradient(
    name: str, stages: list[int], size: Size, restricted: bool
) -> None:
    """``restricted``: the largest field is not the whole image, so that there is an outside."""
    network = random_network(name, stages)
    fields = receptive_fields(network, size)
    assert (fields.size() != size) == restricted
    with torch.no_grad():
        assert network(torch.zeros(1, 3, *size)).shape[2:] == (len(fields.rows), len(fields.columns))
    check(network, fields, size)


@pytest.mark.parametrize("name", ["efficientnet_b0", "resnetv2_50x1_bit"])
def test_what_pools_over_the_image_sees_it_all(name: str) -> None:
    """Squeeze-and-excitation; group normalisation, whose statistics are those of the image."""
    network, size = random_network(name, [1]), (64, 96)
    fields = receptive_fields(network, size)
    assert fields.size() == size
    assert fields.rows.tolist() == [[0, 64]] * len(fields.rows)
    assert fields.columns.tolist() == [[0, 96]] * len(fields.columns)
    check(network, fields, size)


# --- the arithmetic ---------------------------------------------------------------------------------------------


Layer = tuple[type[nn.Module], int, int, int, int]
"""Kind, kernel, stride, padding, dilation."""
PLAIN: list[list[Layer]] = [
    [(nn.Conv2d, 3, 1, 1, 1)],
    [(nn.Conv2d, 3, 2, 1, 1), (nn.MaxPool2d, 2, 2, 0, 1), (nn.Conv2d, 3, 1, 1, 1)],
    [(nn.Conv2d, 7, 2, 3, 1), (nn.MaxPool2d, 3, 2, 1, 1), (nn.Conv2d, 3, 1, 1, 1), (nn.Conv2d, 3, 2, 1, 1)],
    [(nn.Conv2d, 3, 1, 2, 2), (nn.AvgPool2d, 2, 2, 0, 1), (nn.Conv2d, 3, 1, 0, 1)],
    [(nn.Conv2d, 5, 3, 0, 1), (nn.Conv2d, 1, 1, 0, 1), (nn.MaxPool2d, 3, 1, 1, 1)],
]


def plain_network(layers: list[Layer]) -> nn.Sequential:
    modules: list[nn.Module] = []
    channels = 3
    for kind, kernel, stride, padding, dilation in layers:
        if kind is nn.Conv2d:
            modules += [nn.Conv2d(channels, 4, kernel, stride, padding, dilation), nn.BatchNorm2d(4), nn.ReLU()]
            channels = 4
        else:
            modules.append(kind(kernel, stride, padding))
    return nn.Sequential(*modules)


def slow_fields(layers: list[Layer], side: int) -> list[list[int]]:
    """Backwards through the layers: output o of a layer sees inputs o·s − p … o·s − p + d·(k − 1), if they exist."""
    lengths = [side]
    for _, kernel, stride, padding, dilation in layers:
        lengths.append((lengths[-1] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
    found = []
    for cell in range(lengths.pop()):
        first = last = cell
        for (_, kernel, stride, padding, dilation), length in zip(reversed(layers), reversed(lengths), strict=True):
            first = max(first * stride - padding, 0)
            last = min(last * stride - padding + dilation * (kernel - 1), length - 1)
        found.append([first, last + 1])
    return found


@pytest.mark.parametrize("layers", PLAIN, ids=range(len(PLAIN)))
@pytest.mark.parametrize("size", [(40, 40), (37, 52)])
def test_plain_networks_have_the_fields_of_the_formula(layers: list[Layer], size: Size) -> None:
    fields = receptive_fields(plain_network(layers), size)
    assert fields.rows.tolist() == slow_fields(layers, size[0])
    assert fields.columns.tolist() == slow_fields(layers, size[1])
    assert fields.size() == tuple(max(b - a for a, b in slow_fields(layers, side)) for side in size)


def test_vgg_16_has_the_field_that_is_known_of_it() -> None:
    """44 pixels behind its third pooling (conv 3×3 twice, twice, three times)."""
    blocks = [2, 2, 3]
    layers: list[Layer] = []
    for count in blocks:
        layers += [(nn.Conv2d, 3, 1, 1, 1)] * count + [(nn.MaxPool2d, 2, 2, 0, 1)]
    assert receptive_fields(plain_network(layers), (96, 96)).size() == (44, 44)


def test_same_padding_by_arithmetic() -> None:
    """TensorFlow's: ⌈n/s⌉ outputs, the odd pixel of padding behind. The stem of lite0 is one such convolution."""
    for side in (64, 63):
        fields = receptive_fields(random_network("tf_efficientnet_lite0", [0]).network.conv_stem, (side, side))
        outputs = math.ceil(side / 2)
        before = max(0, (outputs - 1) * 2 + 3 - side) // 2
        expected = [[max(0, 2 * o - before), min(side, 2 * o - before + 3)] for o in range(outputs)]
        assert fields.rows.tolist() == expected


# --- what it leaves alone ---------------------------------------------------------------------------------------


def test_the_network_is_left_as_it_was() -> None:
    network = random_network("resnet18", [1]).float().requires_grad_(True).train()  # a frozen one stays in evaluation
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    kinds = [type(module) for module in network.modules()]
    state = torch.get_rng_state()
    receptive_fields(network, (64, 64))
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training
    assert [type(module) for module in network.modules()] == kinds
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    features = network(torch.rand(1, 3, 64, 64))
    assert features.dtype == torch.float32
    assert features.min() == 0  # its ReLU still cuts off


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_in_whatever_mode_images_are_drawn(mode: Callable) -> None:
    network = plain_network(PLAIN[1])
    expected = receptive_fields(network, (32, 32))
    with mode():
        found = receptive_fields(network, (32, 32))
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.columns, expected.columns)


def test_dilated_pooling_is_refused() -> None:
    with pytest.raises(DaplError, match="receptive fields: the backbone has a dilated max pooling"):
        receptive_fields(nn.Sequential(nn.Conv2d(3, 2, 1), nn.MaxPool2d(2, dilation=2)), (16, 16))


def test_a_network_that_sees_nothing_is_refused() -> None:
    with pytest.raises(DaplError, match="receptive fields: no pixel is seen to reach a cell"):
        receptive_fields(nn.Hardtanh(2.0, 3.0), (4, 4))
