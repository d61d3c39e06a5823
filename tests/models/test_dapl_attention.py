"""Attention against equation 1, head by head: a loop that reads the rows of that head alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.models.dapl import HeadAttention

B, N, D1, H, W = 2, 3, 4, 2, 3


@pytest.fixture
def attention() -> HeadAttention:
    torch.manual_seed(0)
    return HeadAttention(N, D1).double()


@pytest.fixture
def features() -> Tensor:
    return torch.randn(B, N * D1, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def slow_head(attention: HeadAttention, features: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Equation 1 for one image (D×H×W) and one head: its weights HW×HW and its output D1×H×W."""
    rows = slice(head * D1, (head + 1) * D1)
    tokens = [features[:, y, x] for y in range(H) for x in range(W)]
    query = [attention.query.weight[rows] @ token for token in tokens]
    key = [attention.key.weight[rows] @ token for token in tokens]
    value = [attention.value.weight[rows] @ token for token in tokens]
    weights = torch.empty(H * W, H * W, dtype=torch.float64)
    output = torch.zeros(D1, H, W, dtype=torch.float64)
    for here in range(H * W):
        logits = [sum(q * k for q, k in zip(query[here], other, strict=True)) / math.sqrt(D1) for other in key]
        total = sum(math.exp(logit) for logit in logits)
        for there in range(H * W):
            weights[here, there] = math.exp(logits[there]) / total
            output[:, here // W, here % W] += weights[here, there] * value[there]
    return weights, output


@torch.no_grad()
def test_equation_1(attention: HeadAttention, features: Tensor) -> None:
    attended, weights = attention(features), attention.weights(features)
    assert attended.shape == (B, N, D1, H, W)
    assert weights.shape == (B, N, H * W, H * W)
    for image in range(B):
        for head in range(N):
            expected_weights, expected = slow_head(attention, features[image], head)
            assert_close(attended[image, head], expected)
            assert_close(weights[image, head], expected_weights)


def test_only_three_matrices(attention: HeadAttention) -> None:
    """No bias, and no output projection, which would mix the heads."""
    shapes = {name: tuple(parameter.shape) for name, parameter in attention.named_parameters()}
    assert shapes == {f"{matrix}.weight": (N * D1, N * D1) for matrix in ("query", "key", "value")}


def test_gradcheck(features: Tensor) -> None:
    attention = HeadAttention(2, 2).double()
    small = features[:, :4, :, :2].clone().requires_grad_()

    def attend(features: Tensor, *matrices: Tensor) -> Tensor:
        named = dict(zip(("query.weight", "key.weight", "value.weight"), matrices, strict=True))
        return torch.func.functional_call(attention, named, (features,))

    assert torch.autograd.gradcheck(attend, (small, *attention.parameters()))
