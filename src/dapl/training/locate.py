"""The stage `locate` of the system parts: the heads learn where to look, before there are prototypes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dapl.batches.sources import Batch, grid_masks
from dapl.config import LossConfig
from dapl.models.parts import Parts, pooled_under
from dapl.training import losses
from dapl.training.feature_foreground import FeatureForeground


class LocateObjective(nn.Module):
    """Batch in, named terms out, as `Objective`; ``total`` is what is minimised.

    The terms say what a map of parts is. The class may have a say through the scout, a small classifier per head on
    what the maps pool: heads then look for places that tell classes apart, and with head dropout each of them has to.
    Without weight the scout only watches, and its accuracy tells how much the places of the heads know of the class.
    """

    def __init__(self, model: Parts, weights: LossConfig, foreground: FeatureForeground | None = None) -> None:
        """``foreground``: what tells the object by the features, in place of the masks of the batches."""
        super().__init__()
        self.model, self.weights, self.foreground = model, weights.locate, foreground

    def forward(self, batch: Batch, negatives: Tensor | None = None) -> dict[str, Tensor]:
        model, weights = self.model, self.weights
        stages = self.stages(batch)
        maps = model.locator(stages)
        heads, of_object = maps[:, : model.heads], 1 - maps[:, -1]
        masks = self.object_masks(batch, stages, heads.shape[-2:])
        area = (of_object.detach() if masks is None else masks).mean((1, 2))
        cosines = self._cosines(heads if weights.cross_entropy else heads.detach(), stages)
        logits = self._logits(cosines, batch.labels.device)
        terms = {"cross_entropy": losses.cross_entropy(logits, batch.labels)}
        weighted = [(weights.cross_entropy or 1.0, terms["cross_entropy"])]
        optional = {
            "commitment": (
                weights.commitment,
                lambda: losses.commitment(self._cosines(heads, stages), batch.labels),
            ),
            "concentration": (weights.concentration, lambda: losses.concentration(heads, area)),
            "balance": (weights.balance, lambda: losses.imbalance_of_heads(heads)),
            "balance_in_image": (weights.balance_in_image, lambda: losses.imbalance_of_heads(heads, in_image=True)),
            "equivariance": (
                weights.equivariance,
                lambda: losses.equivariance(maps, model.locator(self.stages(batch, mirrored=True))),
            ),
        }
        if masks is not None:
            optional["foreground"] = (weights.foreground, lambda: losses.coverage_of_object(of_object, masks))
        for name, (weight, term) in optional.items():
            if weight:
                terms[name] = term()
                weighted.append((weight, terms[name]))
        terms["accuracy"] = (logits.argmax(1) == batch.labels).float().mean()
        return {"total": torch.stack([weight * term for weight, term in weighted]).sum(), **terms}

    def object_masks(self, batch: Batch, stages: tuple[Tensor, ...], grid: Sequence[int]) -> Tensor | None:
        """B×H×W, the object on the grid of the maps, or None where nothing tells it."""
        if self.foreground is not None:
            with torch.no_grad():
                return self.foreground(stages)
        return None if batch.masks is None else grid_masks(batch.masks, grid)

    def draw_negatives(self, generator: torch.Generator) -> None:
        """None: nothing is contrasted here."""

    def logits(self, batch: Batch) -> Tensor:
        """B×C of the scout, with all heads."""
        stages = self.stages(batch)
        return self.model.scout.scale * self._cosines(self.model.locator(stages)[:, : self.model.heads], stages).sum(2)

    def _cosines(self, heads: Tensor, stages: tuple[Tensor, ...]) -> Tensor:
        """B×C×N of the scout, of what the maps B×N×H×W pool."""
        return self.model.scout(pooled_under(heads, stages[-1]))

    def _logits(self, cosines: Tensor, device: torch.device) -> Tensor:
        """With head dropout: each head is left out of a step of an image with the model's probability."""
        model = self.model
        stays = (torch.rand(len(cosines), 1, model.heads, device=device) >= model.head_dropout).to(cosines)
        return model.scout.scale * model.heads * (cosines * stays).sum(2) / stays.sum(2).clamp_min(1)

    def stages(self, batch: Batch, mirrored: bool = False) -> tuple[Tensor, ...]:
        """What the heads locate by, each stage by itself, of the images or of their mirror images."""
        features: tuple[Tensor, ...] | None = batch.mirrored if mirrored else batch.features
        if features is not None:
            return features
        assert batch.images is not None
        return self.model.overview(batch.images.flip(-1) if mirrored else batch.images)
