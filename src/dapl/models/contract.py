"""What every system of the zoo meets, so that training, projection, metrics and images are written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.models.prototypes import Prototypes

FeatureTensors = Any
"""What the extractor of a system gives: a tensor, or a tuple of them, each with B rows. A system knows which."""


def map_features(function: Callable[[Tensor], Any], features: FeatureTensors) -> Any:
    """``function`` of the tensor, or the tuple of what it gives for each.

    >>> map_features(len, (torch.rand(4, 8), torch.rand(4, 2)))
    (4, 4)
    """
    return tuple(function(one) for one in features) if isinstance(features, tuple) else function(features)


@dataclass(frozen=True)
class Embedding:
    """What the prototypes are compared with. B images, G groups (heads) of width D.

    A patch is a cell of the H×W grid, or, where a head has a single embedding of the place that it looks at, that
    whole region: then the values have one cell, and ``where`` says where it is.

    >>> cells = Embedding(torch.rand(4, 2, 3, 7, 7))
    >>> regions = Embedding(torch.rand(4, 2, 3, 1, 1), where=torch.rand(4, 2, 14, 14))
    >>> cells.grid, regions.grid, regions[1:3].where.shape
    ((7, 7), (14, 14), torch.Size([2, 2, 14, 14]))
    """

    values: Tensor
    """B×G×D×H×W, or B×G×D×1×1."""
    where: Tensor | None = None
    """B×G×H×W, not negative, 1 at the highest place: where each head looks; None where a patch is a cell."""
    seen: Tensor | None = None
    """B×G×S: what the values were made of, where a prototype can be embedded again from it; else None."""
    squares: Tensor | None = None
    """B×G×3: the square that each head saw, and no pixel more: centre x, y and side, as shares of the image; None
    where a head may have seen all of the image."""
    tokens: Tensor | None = None
    """B×D×H×W: what attention took the values from, of a system that has attention; else None."""

    @property
    def grid(self) -> tuple[int, int]:
        """H and W of the maps."""
        height, width = (self.values if self.where is None else self.where).shape[-2:]
        return height, width

    def each(self, change: Callable[[Tensor], Tensor]) -> Embedding:
        """With every tensor changed."""
        return Embedding(*(None if one is None else change(one) for one in vars(self).values()))  # type: ignore[arg-type]

    def __getitem__(self, rows: slice | Tensor) -> Embedding:
        return self.each(lambda one: one[rows])

    def float(self) -> Embedding:
        return self.each(lambda one: one.float())


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
    """B×P: where that patch is (of a region: its highest place), row·W + column."""
    embedding: Embedding
    """What the prototypes were compared with."""


class PrototypeModel(nn.Module, ABC):
    """Extractor → features → embedding → scores → logits.

    ``features`` (what the extractor gives) is where a frozen backbone can be cut off and cached, ``scores`` where
    everything but the classifier can; hence `from_features` and `classify`.

    >>> model.from_features(model.extractor(images)).logits      # as model(images).logits      # doctest: +SKIP
    """

    backbone: nn.Module
    prototypes: Prototypes
    """None of them where a system does not explain itself (the black box)."""

    @property
    def extractor(self) -> nn.Module:
        """From images to features: all that is cached when none of its parameters learns. Mostly the backbone."""
        return self.backbone

    @property
    def overview(self) -> nn.Module:
        """From images to what a system locates by before it looks closer; the extractor where there is no such step.

        Where there is one, the extractor takes what this gave as a second argument, if it is known already.
        """
        return self.extractor

    @abstractmethod
    def embed(self, features: FeatureTensors) -> Embedding:
        """What the prototypes are compared with; features mostly B×D0×H×W."""

    def classify(self, scores: Tensor) -> Tensor:
        """B×P → B×C. Prototypes that were pruned do not count."""
        return scores @ self.class_weights()

    @abstractmethod
    def class_weights(self) -> Tensor:
        """P×C: logit_c = Σ_j scores_j · class_weights[j, c], for every system."""

    def weights_of_classes(self, classes: Tensor) -> Tensor:
        """P×B: the columns of `class_weights` for B classes; a system with many classes need not make all of them."""
        return self.class_weights()[:, classes]

    def components(self) -> dict[str, nn.Module]:
        """Modules by the names that a schedule gives learning rates to; together they hold every parameter."""
        return dict(self.named_children())

    def forward(self, images: Tensor) -> Output:
        """images: B×3×H0×W0, uint8 or float in [0, 1]."""
        return self.from_features(self.extractor(images))

    def from_features(self, features: FeatureTensors) -> Output:
        embedding = self.embed(features)
        distances, locations = self.prototypes.nearest(embedding.values)
        if embedding.where is not None:  # a region has one embedding, and is where the head looks most
            locations = embedding.where.flatten(2).argmax(2)[:, self.prototypes.group_of]
        scores = self.prototypes.similarity(distances)
        return Output(self.classify(scores), scores, distances, locations, embedding)

    def activation_maps(self, images: Tensor, prototypes: Tensor | None = None) -> Tensor:
        """a = similarity at every location: B×P×H×W, or B×M×H×W for the prototypes named (long M or B×M)."""
        return self.maps(self.embed(self.extractor(images)), prototypes)

    def maps(self, embedding: Embedding, prototypes: Tensor | None = None) -> Tensor:
        """As `activation_maps`, from an embedding that is already there.

        Where a patch is a region, a_j(l) = s_j·where_h(l): the similarity, spread as the head looks. The highest value
        of a map is the score in either case; where a score is negative, as with cosine similarity, the map is 0.
        """
        distances = self.prototypes.distances(embedding.values, prototypes)
        return self.maps_of_distances(distances, embedding, prototypes)

    def maps_of_distances(self, distances: Tensor, embedding: Embedding, prototypes: Tensor | None = None) -> Tensor:
        """As `maps`, from the distances of the embedding's patches, B×M×H×W or (of regions) B×M×1×1."""
        activation = self.prototypes.activation(distances)
        if embedding.where is None:
            return activation
        return activation * self._where_of(embedding.where, prototypes)

    def _where_of(self, where: Tensor, prototypes: Tensor | None) -> Tensor:
        """B×G×H×W → B×M×H×W, of the group of each prototype."""
        groups = self.prototypes.group_of if prototypes is None else self.prototypes.group_of[prototypes]
        if groups.dim() == 1:
            return where[:, groups]
        return where[torch.arange(len(where), device=where.device).unsqueeze(1), groups]

    def to_pixels(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Activation maps on the image, bicubic: …×H×W → …×size."""
        flat = maps.flatten(0, -3).unsqueeze(1)
        return F.interpolate(flat, size=size, mode="bicubic", align_corners=False).view(*maps.shape[:-2], *size)

    def evidence_maps(self, embedding: Embedding, prototypes: Tensor, locations: Tensor) -> Tensor | None:
        """From where in the image the embedding at a location took its values, B×M×H×W, each summing to 1.

        None for a system whose embedding at a location is made of what is there and no more: its activation map says
        all. Shapes: prototypes and locations long B×M.
        """
        return None

    def field_share(self, image_size: int) -> float:
        """The share of the image that a location of the embedding can depend on at all, mean over locations.

        By the receptive fields of the backbone; a system whose embedding mixes locations says 1.
        """
        from dapl.models.receptive import receptive_fields

        return receptive_fields(self.backbone, (image_size, image_size)).share((image_size, image_size))

    def extra_repr(self) -> str:
        kept = int(self.prototypes.kept.sum())
        removed = f", {len(self.prototypes) - kept} of them removed" if kept < len(self.prototypes) else ""
        return f"{self.classes} classes, {len(self.prototypes)} prototypes{removed}"

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.prototypes.classes

    @property
    def score_count(self) -> int:
        """How many scores an image has, one per prototype except for the black box."""
        return len(self.prototypes)

    def penalised_weights(self) -> Tensor:
        """The class weights that the L1 term of the last layer counts, in any shape."""
        return self.class_weights()

    def point_at(self, seen: Tensor, found: Tensor) -> None:
        """Remember what prototypes were made of, P×S, where they were found (bool P), to embed them again later."""

    def follow_sources(self, follow: bool) -> None:
        """Whether prototypes are pointers: embedded again, from what they were made of, as the model learns."""
        if follow:
            raise DaplError(f"schedule: pointers are not for {type(self).__name__}, whose prototypes are free vectors.")

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


def square_pixels(squares: Tensor, size: int) -> Tensor:
    """The pixels that squares touch: …×3 (centre x, y and side as shares) → long …×4, left, top, right, bottom.

    Right and bottom are exclusive.

    >>> square_pixels(torch.tensor([0.5, 0.5, 0.24]), 224)
    tensor([ 85,  85, 139, 139])
    """
    centre, half = squares[..., :2].double(), squares[..., 2:].double() / 2
    # Shares are in single precision: what ends at a pixel's edge may reach a trace beyond it, so that one counts too.
    first, end = ((centre - half) * size - 1e-3).floor(), ((centre + half) * size + 1e-3).ceil()
    return torch.cat((first, end), dim=-1).long().clamp(0, size)
