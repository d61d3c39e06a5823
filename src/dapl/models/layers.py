"""Layers between backbone and prototypes: the add-on, and self-attention whose heads are never mixed.

What makes one head differ from another stays its own.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Init = Literal["fan_out", "fan_in"]


def regular_addon(channels: int, width: int, init: Init = "fan_out", sigmoid: bool = True) -> nn.Sequential:
    """1×1 conv D0→D, ReLU, 1×1 conv D→D, sigmoid: ProtoPNet's "regular" add-on. B×D0×H×W → B×D×H×W in (0, 1).

    Without the sigmoid, vectors point in all directions, as cosine similarity wants them.

    ``fan_out`` is ProtoPNet's initialisation (Kaiming, biases 0). It was made for features of size 1; on those of a
    linear bottleneck (EfficientNet-Lite: deviation 2.7) it starts with most sigmoids saturated, and ``fan_in`` (that of
    torch's layers, uniform within 1/√fan_in) does not.
    """
    layers = nn.Sequential(nn.Conv2d(channels, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1))
    if sigmoid:
        layers.append(nn.Sigmoid())
    if init == "fan_out":
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layers


class HeadAttention(nn.Module):
    """Equation 1: A = softmax(QKᵀ/√D1)V for each of N heads, with no output projection after it.

    Shapes: features B×D×H×W → B×N×D1×H×W with D = N·D1.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        width = heads * head_dim
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        height, width = features.shape[-2:]
        tokens = features.flatten(2).transpose(1, 2)  # B×HW×D
        query, key, value = (self._split(layer(tokens)) for layer in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value)  # scales by 1/√D1
        return attended.transpose(2, 3).unflatten(3, (height, width))

    def weights(self, features: Tensor) -> Tensor:
        """The attention itself, B×N×HW×HW: row l says from where location l took its values."""
        tokens = features.flatten(2).transpose(1, 2)
        query, key = self._split(self.query(tokens)), self._split(self.key(tokens))
        return (query @ key.transpose(2, 3) / self.head_dim**0.5).softmax(-1)

    def _split(self, tokens: Tensor) -> Tensor:
        """B×HW×D → B×N×HW×D1."""
        return tokens.unflatten(2, (self.heads, self.head_dim)).transpose(1, 2)
