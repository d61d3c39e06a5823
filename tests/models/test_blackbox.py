"""The black box: mean over places, a linear layer, and nothing to show for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.models.backbone import Backbone
from dapl.models.blackbox import BlackBox

B, C, SIZE = 3, 4, 64


@pytest.fixture
def model() -> BlackBox:
    torch.manual_seed(0)
    model = BlackBox(Backbone("test_efficientnet", [-2]), C).eval()
    with torch.no_grad():
        model.classifier.weight.normal_()
    return model


@pytest.fixture
def images() -> Tensor:
    return torch.rand(B, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_it_is_a_pooled_linear_layer_with_bias(model: BlackBox, images: Tensor) -> None:
    linear = torch.nn.Linear(model.backbone.channels, C)
    linear.weight.copy_(model.classifier.weight[:, :-1])
    linear.bias.copy_(model.classifier.weight[:, -1])
    assert_close(model(images).logits, linear(model.backbone(images).mean((2, 3))))


def test_the_bias_starts_at_zero() -> None:
    model = BlackBox(Backbone("test_efficientnet", [-2]), C)
    assert not model.classifier.weight[:, -1].any()
    assert model.classifier.weight[:, :-1].any(1).all()


def test_it_has_no_prototypes(model: BlackBox, images: Tensor) -> None:
    assert len(model.prototypes) == 0
    assert model.classes == C
    assert set(model.components()) == {"backbone", "classifier"}
    table, counts = model.prototypes_of(torch.tensor([0, 3, 3]))
    assert table.shape == counts.shape == (3, 0)
    output = model(images)
    assert output.distances.shape == output.locations.shape == (B, 0)
    assert output.scores.shape == (B, model.backbone.channels + 1)
    assert model.score_count == model.backbone.channels + 1
    assert torch.equal(output.scores[:, -1], torch.ones(B))
    assert model.facts(SIZE) == {}


def test_it_cannot_merge(model: BlackBox) -> None:
    with pytest.raises(NotImplementedError, match="BlackBox cannot merge prototypes"):
        model.absorb(0, [1])


@torch.no_grad()
def test_half_precision_features_are_pooled_in_full(model: BlackBox, images: Tensor) -> None:
    features = model.backbone(images)
    half = model.from_features(features.bfloat16())
    assert half.logits.dtype == torch.float32
    assert_close(half.logits, model.from_features(features.bfloat16().float()).logits)
