"""The total loss of a fit stage, as one module that can be wrapped for several devices and for precision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dapl.batches.sources import Batch, features_of, grid_masks
from dapl.config import LossConfig
from dapl.models.contract import Output, PrototypeModel
from dapl.training import losses


class Objective(nn.Module):
    """Batch in, named terms out; ``total`` is what is minimised."""

    def __init__(self, model: PrototypeModel, weights: LossConfig) -> None:
        super().__init__()
        self.model = model
        self.weights = weights

    def draw_negatives(self, generator: torch.Generator) -> Tensor | None:
        """Prototypes of other heads for each head, or None where the contrastive term is off or none is left."""
        prototypes, contrast = self.model.prototypes, self.weights.contrast
        if not contrast.weight or prototypes.groups < 2:
            return None
        drawn = draw_negatives(prototypes.kept.cpu(), prototypes.groups, contrast.negatives, generator)
        return drawn.to(prototypes.vectors.device) if drawn.numel() else None

    def forward(self, batch: Batch, negatives: Tensor | None) -> dict[str, Tensor]:
        """``negatives``: long N×M from `draw_negatives`, or None where the contrastive term is off."""
        output = self.model.from_features(features_of(self.model, batch))
        terms = {"cross_entropy": losses.cross_entropy(output.logits, batch.labels)}
        total = terms["cross_entropy"]
        if len(self.model.prototypes):
            for name, weight, term in (*self._distances(batch, output), *self._optional(batch, output, negatives)):
                terms[name] = term
                total = total + weight * term
        terms["accuracy"] = (output.logits.argmax(1) == batch.labels).float().mean()
        return {"total": total, **terms}

    def _distances(self, batch: Batch, output: Output) -> Iterator[tuple[str, float, Tensor]]:
        prototypes = self.model.prototypes
        distances = output.distances.masked_fill(~prototypes.kept, torch.inf)
        cluster = losses.cluster_all if self.weights.cluster_of == "all" else losses.cluster
        # Each image as a class of its own: a column of its own prototypes, without those of all the other classes.
        membership, labels = prototypes.of_images(batch.labels).T, torch.arange(len(distances), device=distances.device)
        yield "cluster", self.weights.cluster, cluster(distances, membership, labels)
        yield "separation", -self.weights.separation, losses.separation(distances, membership, labels)

    def _optional(self, batch: Batch, output: Output, negatives: Tensor | None) -> Iterator[tuple[str, float, Tensor]]:
        """(name, weight, value) of the terms whose weight is not 0."""
        contrast, foreground, spatial = self.weights.contrast, self.weights.foreground, self.weights.spatial
        if negatives is not None:
            positives, counts = self._positives(output, batch.labels)
            scores = self.model.prototypes.across_groups(output.embedding.values, negatives)
            yield "contrast", contrast.weight, losses.contrastive(positives, scores, contrast.margin, counts)
        if foreground.weight and batch.masks is not None:
            named, counts = self._looked_at(batch.labels, foreground.over)
            masks = grid_masks(batch.masks, output.embedding.grid)
            if named is None and output.embedding.where is None:  # all maps of a batch: none of them is kept
                bias = self.model.prototypes.share_beside(output.embedding.values, masks)
            else:
                bias = losses.background_bias(self.model.maps(output.embedding, named), masks)
            yield "foreground", foreground.weight, losses.foreground_of(bias, foreground.threshold, counts)
        if spatial.weight:
            named, counts = self._looked_at(batch.labels, "class")
            maps = self.model.maps(output.embedding, named)
            yield "spatial", spatial.weight, losses.spatial_overlap(maps, spatial.sharpness, counts)

    def _looked_at(self, labels: Tensor, over: str) -> tuple[Tensor | None, Tensor]:
        """Prototypes (None: all) and which of them count, B×M."""
        if over == "all":
            return None, self.model.prototypes.kept.expand(len(labels), -1)
        return self.model.prototypes_of(labels)

    def _positives(self, output: Output, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the prototypes assigned to each head: B×N×1 for the image's class, B×N×C for all of P_h.

        And which of them count, in the same shape.
        """
        if self.weights.contrast.positives == "class":
            named, counts = self.model.prototypes_of(labels)
            return output.scores.gather(1, named).unsqueeze(2), counts.unsqueeze(2)
        prototypes = self.model.prototypes
        scores, kept = (t.unflatten(-1, (-1, prototypes.groups)).mT for t in (output.scores, prototypes.kept))
        return scores, kept.expand_as(scores)


def draw_negatives(kept: Tensor, groups: int, number: int, generator: torch.Generator) -> Tensor:
    """For each group, different prototypes of other groups that are kept: long G×min(number, how many each group has).

    >>> kept = torch.tensor([True, True, False, True])  # prototype 2 of group 0 was removed
    >>> draw_negatives(kept, 2, 64, torch.Generator().manual_seed(0)).tolist()
    [[1], [0]]
    """
    own = torch.arange(len(kept)) % groups == torch.arange(groups).unsqueeze(1)
    possible = kept & ~own
    chance = torch.rand(groups, len(kept), generator=generator).masked_fill(~possible, -1)
    return chance.topk(min(number, int(possible.sum(1).min())), dim=1).indices
