"""DAPL: one head meets its own prototypes only, and logits are Σ w·s. What all systems owe is in test_contract."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.models.dapl import Dapl

B, C, N, D1, SIDE = 2, 4, 3, 5, 6


class SmallBackbone(nn.Module):
    """B×3×12×12 → B×7×6×6."""

    channels = 7

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, self.channels, 2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        return self.convolution(images)


@pytest.fixture
def model() -> Dapl:
    """In float64, with an attention lively enough that places differ."""
    torch.manual_seed(0)
    model = Dapl(SmallBackbone(), C, N, D1).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in (*model.attention.parameters(), *model.addon.parameters()):
            parameter.mul_(4)
    return model


@pytest.fixture
def images() -> Tensor:
    return torch.rand(B, 3, 2 * SIDE, 2 * SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def prune(model: Dapl, *numbers: int) -> None:
    model.prototypes.kept[list(numbers)] = False


@torch.no_grad()
def test_shapes_of_its_own(model: Dapl, images: Tensor) -> None:
    assert model(images).embedding.values.shape == (B, N, D1, SIDE, SIDE)
    assert model.attention_weights(model.backbone(images)).shape == (B, N, SIDE**2, SIDE**2)
    assert model.prototypes_of(torch.tensor([2, 0]))[0].tolist() == [[6, 7, 8], [0, 1, 2]]


@torch.no_grad()
@pytest.mark.parametrize("head", range(N))
@pytest.mark.parametrize("matrix", ["query", "key", "value"])
def test_a_head_moves_only_its_own_scores(matrix: str, head: int, model: Dapl, images: Tensor) -> None:
    before = model(images).scores
    getattr(model.attention, matrix).weight[head * D1 : (head + 1) * D1] += 0.5
    moved = (model(images).scores - before).abs().amax(0).view(C, N)
    assert moved[:, head].min() > 0
    assert moved[:, torch.arange(N) != head].max() == 0


@torch.no_grad()
@pytest.mark.parametrize("number", [0, 5, C * N - 1])
def test_a_prototype_moves_only_its_own_score(number: int, model: Dapl, images: Tensor) -> None:
    before = model(images)
    model.prototypes.vectors[number] += 0.1
    after = model(images)
    moved = (after.scores - before.scores).abs().amax(0)
    assert moved.nonzero().flatten().tolist() == [number]
    assert (after.logits - before.logits).abs().amax(0).nonzero().flatten().tolist() == [number // N]


@torch.no_grad()
@pytest.mark.parametrize("pruned", [(), (1, 6, 7)])
def test_logits_are_equation_4(pruned: tuple[int, ...], model: Dapl, images: Tensor) -> None:
    model.classifier.weight.copy_(torch.randn(C, N))
    prune(model, *pruned)
    output = model(images)
    for image in range(B):
        for c in range(C):
            logit = 0.0
            for h in range(N):
                j = c * N + h
                if j not in pruned:
                    logit += model.classifier.weight[c, h].item() * output.scores[image, j].item()
            assert output.logits[image, c].item() == pytest.approx(logit)


def test_class_weights_start_at_one(model: Dapl) -> None:
    assert torch.equal(model.classifier.weight, torch.ones(C, N, dtype=torch.float64))
    assert torch.equal(model.class_weights(), model.prototypes.membership.double())


@torch.no_grad()
def test_to_pixels_is_bicubic(model: Dapl, images: Tensor) -> None:
    maps = model.activation_maps(images)
    expected = F.interpolate(maps, size=(30, 20), mode="bicubic", align_corners=False)
    assert_close(model.to_pixels(maps, (30, 20)), expected)
    assert_close(model.to_pixels(maps[1], (30, 20)), expected[1])
