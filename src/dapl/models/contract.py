"""What every system of the zoo meets, so that training, projection, metrics and pictures are written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from dapl.models.prototypes import Prototypes


@dataclass(frozen=True)
class Output:
    """One forward pass. B pictures, P prototypes, C classes, G groups (heads) of width D on an H×W grid."""

    logits: Tensor
    """B×C."""
    scores: Tensor
    """B×P: similarity of each prototype to its nearest patch."""
    distances: Tensor
    """B×P: squared distance to that patch."""
    locations: Tensor
    """B×P: where that patch is, row·W + column."""
    embedding: Tensor
    """B×G×D×H×W: what the prototypes were compared with."""


class PrototypeModel(nn.Module, ABC):
    """Backbone → embedding → scores → logits.

    ``features`` (the backbone's output) is where a frozen backbone can be cut off and cached, ``scores`` where
    everything but the classifier can; hence `from_features` and `classify`.
    """

    backbone: nn.Module
    prototypes: Prototypes

    @abstractmethod
    def embed(self, features: Tensor) -> Tensor:
        """B×D0×H×W → B×G×D×H×W."""

    @abstractmethod
    def classify(self, scores: Tensor) -> Tensor:
        """B×P → B×C. Prototypes that were pruned do not count."""

    @abstractmethod
    def class_weights(self) -> Tensor:
        """P×C: logit_c = Σ_j scores_j · class_weights[j, c], for every system."""

    @abstractmethod
    def parts(self) -> dict[str, nn.Module]:
        """Modules by the names that a schedule gives learning rates to; together they hold every parameter."""

    def forward(self, images: Tensor) -> Output:
        """images: B×3×H0×W0, uint8 or float in [0, 1]."""
        return self.from_features(self.backbone(images))

    def from_features(self, features: Tensor) -> Output:
        """features: B×D0×H×W."""
        embedding = self.embed(features)
        distances, locations = self.prototypes.nearest(embedding)
        scores = self.prototypes.similarity(distances)
        return Output(self.classify(scores), scores, distances, locations, embedding)

    def activation_maps(self, images: Tensor, prototypes: Tensor | None = None) -> Tensor:
        """a = log-similarity at every location: B×P×H×W, or B×M×H×W for the prototypes named (long M or B×M)."""
        return self.maps(self.embed(self.backbone(images)), prototypes)

    def maps(self, embedding: Tensor, prototypes: Tensor | None = None) -> Tensor:
        """As `activation_maps`, from an embedding that is already there."""
        return self.prototypes.similarity(self.prototypes.distances(embedding, prototypes))

    def to_pixels(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Activation maps on the picture, bicubic: …×H×W → …×size."""
        flat = maps.flatten(0, -3).unsqueeze(1)
        return F.interpolate(flat, size=size, mode="bicubic", align_corners=False).view(*maps.shape[:-2], *size)

    @property
    def classes(self) -> int:
        return self.prototypes.membership.shape[1]

    def prototypes_of(self, labels: Tensor) -> Tensor:
        """Prototypes of each picture's class, B×M, where every class has as many (before any merging)."""
        per_class = self.prototypes.membership.sum(0)
        table = self.prototypes.membership.T.nonzero()[:, 1].view(self.classes, int(per_class[0]))
        return table[labels]
