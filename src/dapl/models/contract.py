"""What every system of the zoo meets, so that training, projection, metrics and images are written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dapl.models.prototypes import Prototypes


@dataclass(frozen=True)
class Output:
    """One forward pass. B images, P prototypes, C classes, G groups (heads) of width D on an H×W grid.

    >>> output = model(images)                            # doctest: +SKIP
    >>> output.logits.argmax(1), output.scores.shape      # doctest: +SKIP
    """

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

    >>> model.from_features(model.backbone(images)).logits      # as model(images).logits      # doctest: +SKIP
    """

    backbone: nn.Module
    prototypes: Prototypes
    """None of them where a system does not explain itself (the black box)."""

    @abstractmethod
    def embed(self, features: Tensor) -> Tensor:
        """B×D0×H×W → B×G×D×H×W."""

    def classify(self, scores: Tensor) -> Tensor:
        """B×P → B×C. Prototypes that were pruned do not count."""
        return scores @ self.class_weights()

    @abstractmethod
    def class_weights(self) -> Tensor:
        """P×C: logit_c = Σ_j scores_j · class_weights[j, c], for every system."""

    def components(self) -> dict[str, nn.Module]:
        """Modules by the names that a schedule gives learning rates to; together they hold every parameter."""
        return dict(self.named_children())

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
        """Activation maps on the image, bicubic: …×H×W → …×size."""
        flat = maps.flatten(0, -3).unsqueeze(1)
        return F.interpolate(flat, size=size, mode="bicubic", align_corners=False).view(*maps.shape[:-2], *size)

    def evidence_maps(self, features: Tensor, prototypes: Tensor, locations: Tensor) -> Tensor | None:
        """From where in the image the embedding at a location took its values, B×M×H×W, each summing to 1.

        None for a system whose embedding at a location is made of what is there and no more: its activation map says
        all. Shapes: features B×D0×H×W, prototypes and locations long B×M.
        """
        return None

    def extra_repr(self) -> str:
        kept = int(self.prototypes.kept.sum())
        removed = f", {len(self.prototypes) - kept} of them removed" if kept < len(self.prototypes) else ""
        return f"{self.classes} classes, {len(self.prototypes)} prototypes{removed}"

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.prototypes.membership.shape[1]

    @property
    def score_count(self) -> int:
        """How many scores an image has, one per prototype except for the black box."""
        return len(self.prototypes)

    def penalised_weights(self) -> Tensor:
        """The class weights that the L1 term of the last layer counts, in any shape."""
        return self.class_weights()

    def absorb(self, prototype: int, others: Sequence[int]) -> None:
        """Let a prototype stand for others too: it has the sum of their weights, and all their classes are its own."""
        raise NotImplementedError(f"{type(self).__name__} cannot merge prototypes.")

    def facts(self, image_size: int) -> dict[str, Any]:
        """What a run should say of the model beside its config, as plain values, for images of this size."""
        return {}

    def prototypes_of(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Prototypes of each image's class, long B×M, and which of them count, bool B×M (see `class_table`)."""
        table, counts = self.prototypes.by_class()
        return table[labels], counts[labels]
