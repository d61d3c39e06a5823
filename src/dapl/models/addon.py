"""The add-on between backbone and attention."""

from torch import nn


def regular_addon(channels: int, width: int) -> nn.Sequential:
    """1×1 conv D0→D, ReLU, 1×1 conv D→D, sigmoid: ProtoPNet's "regular" add-on. B×D0×H×W → B×D×H×W in (0, 1)."""
    layers = nn.Sequential(nn.Conv2d(channels, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.Sigmoid())
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layers
