"""ProtoPNet (Chen et al., 2019); merging its prototypes makes it ProtoPShare (Rymarczyk et al., 2021)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dapl.models.backbone import Backbone
from dapl.models.contract import Embedding, PrototypeModel
from dapl.models.prototypes import Similarity, make_prototypes, one_class_each

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


class ProtoPNet(PrototypeModel):
    """Add-on, prototypes of all classes in one space, log or cosine similarity, a last layer that connects all
    with all.

    The last layer has no bias and starts at 1 for the own class and ``other_class_weight`` for the others.

    >>> import torch
    >>> from dapl.models import ProtoPNet, create_backbone
    >>> model = ProtoPNet(create_backbone("test_efficientnet", weights="random"), classes=3)
    >>> model(torch.rand(5, 3, 64, 64)).scores.shape
    torch.Size([5, 30])
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        prototypes_per_class: int = 10,
        width: int = 128,
        epsilon: float = 1e-4,
        other_class_weight: float = -0.5,
        addon_init: Init = "fan_out",
        similarity: Similarity = "log",
        scale: float = 3.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.addon = regular_addon(backbone.channels, width, addon_init, sigmoid=similarity == "log")
        own = one_class_each(classes, prototypes_per_class)
        self.prototypes = make_prototypes(similarity, own, 1, width, epsilon, scale)
        self.classifier = nn.Linear(own.numel(), classes, bias=False)
        nn.init.ones_(self.classifier.weight)
        self.set_other_class_weight(other_class_weight)

    def embed(self, features: Tensor) -> Embedding:
        return Embedding(self.prototypes.comparable(self.addon(features).unsqueeze(1)))

    def classify(self, scores: Tensor) -> Tensor:
        return self.classifier(scores * self.prototypes.kept)

    def class_weights(self) -> Tensor:
        return self.classifier.weight.T * self.prototypes.kept.unsqueeze(1)

    def penalised_weights(self) -> Tensor:
        """The weights to other classes: evidence against a class should be rare."""
        return self.class_weights()[~self.prototypes.membership]

    @torch.no_grad()
    def set_other_class_weight(self, value: float) -> None:
        """All weights from prototypes to classes that are not theirs; they start with one value."""
        self.classifier.weight.masked_fill_(~self.prototypes.membership.T, value)

    @torch.no_grad()
    def absorb(self, prototype: int, others: Sequence[int]) -> None:
        """ProtoPShare's merging."""
        together, weight = [prototype, *others], self.classifier.weight
        weight[:, prototype] = weight[:, together].sum(1)
        self.prototypes.add_classes(prototype, itertools.chain(*self.prototypes.classes_of(others)))
        self.prototypes.kept[list(others)] = False
