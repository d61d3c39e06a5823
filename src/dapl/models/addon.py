"""The add-on between backbone and prototypes."""

from __future__ import annotations

from typing import Literal

from torch import nn

Init = Literal["fan_out", "fan_in"]


def regular_addon(channels: int, width: int, init: Init = "fan_out") -> nn.Sequential:
    """1×1 conv D0→D, ReLU, 1×1 conv D→D, sigmoid: ProtoPNet's "regular" add-on. B×D0×H×W → B×D×H×W in (0, 1).

    ``fan_out`` is ProtoPNet's initialisation (Kaiming, biases 0). It was made for features of size 1; on those of a
    linear bottleneck (EfficientNet-Lite: deviation 2.7) it starts with most sigmoids saturated, and ``fan_in`` (that of
    torch's layers, uniform within 1/√fan_in) does not.
    """
    layers = nn.Sequential(nn.Conv2d(channels, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.Sigmoid())
    if init == "fan_out":
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layers
