"""Masks for images of which nothing is known: what stands out in the features of a backbone, cut out by colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.config import BackboneConfig
from dapl.data.images import read_image
from dapl.masks.polygons import filled_box
from dapl.masks.refine import GrabCutRefiner, Prompt
from dapl.models.backbone import Backbone, create_backbone
from dapl.training.feature_foreground import FeatureForeground, feature_foreground

STAGES = (-2, "head")
"""The stages that `dapl train FOLDER` takes for heads that are parts: places, and what stands before pooling."""
SIDE = 224
SAMPLE = 300
"""Images that the components are taken from."""
WITHOUT_COLOURS = 0.1
"""Share of the image that is taken where colours tell nothing: about what a bird has of a photograph."""
_AT_ONCE = 16


class FeatureRefiner:
    """GrabCut from how likely each place is on the object by `feature_foreground`, which all the images together tell.

    Where nothing stands out, GrabCut is told the box or the middle of the image alone; where it finds nothing there
    either, the likeliest places are the mask.
    Nothing outside of a box that the prompt has lies on the object; points are surely on it where a box goes with them.

    >>> refiner = FeatureRefiner(sorted(Path("birds").rglob("*.jpg")))  # doctest: +SKIP
    >>> refiner(image, Prompt()).shape                                  # doctest: +SKIP
    (333, 500)
    """

    name = "features"

    def __init__(self, images: Sequence[Path], backbone: Backbone | None = None) -> None:
        """``backbone``: with the stages `STAGES`; None: the default of a config."""
        self._grabcut = GrabCutRefiner()
        self._backbone = (backbone or _default_backbone()).eval()
        self._foreground: FeatureForeground = self._fitted(images)

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
        with torch.no_grad():
            likely = self._foreground(self._backbone(_square(pixels).unsqueeze(0)))
            likely = F.interpolate(likely.unsqueeze(1), image.shape[:2], mode="bilinear", align_corners=False)[0, 0]
        found = likely.numpy()
        if prompt.box is not None:
            found = found * filled_box(prompt.box, image.shape[:2])
        points = prompt.points if prompt.box is not None else None  # alone they are a guess, as the centre is
        for known in (Prompt(points=points, likely=found), Prompt(box=prompt.box, points=points)):
            mask = self._grabcut(image, known)
            if 0 < mask.mean() < 1:
                return mask
        return found > np.quantile(found, 1 - WITHOUT_COLOURS)

    @torch.no_grad()
    def _fitted(self, images: Sequence[Path]) -> FeatureForeground:
        sample = images[:: max(1, -(-len(images) // SAMPLE))]
        batches = []
        for first in range(0, len(sample), _AT_ONCE):
            pixels = torch.stack([_square(read_image(path)) for path in sample[first : first + _AT_ONCE]])
            batches.append(self._backbone(pixels))
        return feature_foreground(batches)


def _default_backbone() -> Backbone:
    fields = BackboneConfig(stages=list(STAGES), fuse=False).model_dump()
    return create_backbone(**fields)


def _square(image: Tensor) -> Tensor:
    """uint8 3×H×W → uint8 3×SIDE×SIDE, stretched."""
    resized = F.interpolate(image.unsqueeze(0).float(), (SIDE, SIDE), mode="bilinear", antialias=True)
    return resized[0].round().clamp(0, 255).to(torch.uint8)
