"""A model that is nothing but prototypes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dapl.models.contract import PrototypeModel
from dapl.models.prototypes import Prototypes


class Patches(PrototypeModel):
    """Features *are* the embedding, so that a test can say where each patch lies. All weights of classes are 1."""

    def __init__(self, classes: int, groups: int, width: int) -> None:
        super().__init__()
        self.backbone = nn.Identity()
        membership = torch.eye(classes, dtype=torch.bool).repeat_interleave(groups, dim=0)
        self.prototypes = Prototypes(membership, groups, width)

    def embed(self, features: Tensor) -> Tensor:
        return features.unflatten(1, (self.prototypes.groups, -1))

    def classify(self, scores: Tensor) -> Tensor:
        return scores @ self.class_weights()

    def class_weights(self) -> Tensor:
        return (self.prototypes.membership & self.prototypes.kept.unsqueeze(1)).float()

    def components(self) -> dict[str, nn.Module]:
        return {"backbone": self.backbone, "prototypes": self.prototypes}


@pytest.fixture
def patches() -> Callable[[int, int, int], Patches]:
    """``patches(classes, groups, width)``."""
    return Patches
