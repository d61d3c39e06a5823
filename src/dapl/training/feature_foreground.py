"""Foreground from the features themselves, for data without masks: what varies most over the images is the object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.models.parts import standardised

SAMPLE = 1000
"""Training images that the components are taken from; more of them change little and take time."""


@dataclass(frozen=True)
class Component:
    """The first principal component of a stage: a place with features f has the coordinate v·(f − μ)."""

    mean: Tensor
    """μ: D."""
    direction: Tensor
    """v: D, scaled so that the coordinate has deviation 1 and is lower at the border of images than inside."""


@dataclass(frozen=True)
class FeatureForeground:
    """m(l) = sigmoid(sharpness · (t(l) − 1)), t = Σ_s v_s·(f_s(l) − μ_s) standardised over places and images.

    What lies one deviation above the mean is on the edge: of CUB's birds that is about what their masks say, and where
    the object fills more of the image the deviation grows with it.
    """

    components: tuple[Component, ...]
    mean: float
    deviation: float
    sharpness: float = 4.0

    def __call__(self, stages: Sequence[Tensor]) -> Tensor:
        """Stages of B×Ds×Hs×Ws → foreground B×H×W in (0, 1) on the finest grid."""
        coordinates = summed_coordinates(self.components, stages)
        return torch.sigmoid(self.sharpness * ((coordinates - self.mean) / self.deviation - 1))


def border_of(height: int, width: int) -> Tensor:
    """bool H×W: the outermost cells, where objects are rare.

    >>> border_of(3, 3).sum()
    tensor(8)
    """
    inside = torch.zeros(height, width, dtype=torch.bool)
    inside[1:-1, 1:-1] = True
    return ~inside


def first_component(stages: Iterable[Tensor]) -> Component:
    """The first principal component of maps of one stage, batch by batch: B×D×H×W each, channels as they are.

    >>> maps = torch.zeros(1, 2, 3, 3)
    >>> maps[0, 1, 1, 1] = 9.0    # the second channel sees something in the middle
    >>> found = first_component([maps])
    >>> bool(found.direction[1] > 0), round(float(found.mean[1]), 3)
    (True, 1.0)
    """
    count, total, products, border_count, border_total = 0, None, None, 0, None
    for maps in stages:
        places = maps.movedim(1, -1).flatten(0, 2)  # (B·H·W)×D
        border = border_of(*maps.shape[-2:]).to(maps.device).repeat(len(maps), 1, 1).flatten()
        parts = tuple(part.double() for part in (places.sum(0), places.T @ places, places[border].sum(0)))
        if total is None or products is None or border_total is None:
            total, products, border_total = parts
        else:
            total, products, border_total = total + parts[0], products + parts[1], border_total + parts[2]
        count, border_count = count + len(places), border_count + int(border.sum())
    assert total is not None
    assert products is not None
    assert border_total is not None
    mean = total / count
    values, vectors = torch.linalg.eigh(products / count - mean.outer(mean))
    direction = vectors[:, -1] / values[-1].clamp_min(torch.finfo(torch.float32).tiny).sqrt()
    if (border_total / border_count - mean) @ direction > 0:
        direction = -direction
    return Component(mean.float(), direction.float())


def summed_coordinates(components: Sequence[Component], stages: Sequence[Tensor]) -> Tensor:
    """Σ_s v_s·(f_s(l) − μ_s), stages enlarged to the finest grid: B×Ds×Hs×Ws each → B×H×W."""
    height, width = max((tuple(stage.shape[-2:]) for stage in stages), key=lambda grid: grid[0] * grid[1])
    found = []
    for component, stage in zip(components, stages, strict=True):
        direction, mean = component.direction.to(stage.device), component.mean.to(stage.device)
        coordinate = torch.einsum("bdhw,d->bhw", standardised(stage), direction) - mean @ direction
        found.append(F.interpolate(coordinate.unsqueeze(1), (height, width), mode="bilinear", align_corners=False))
    return torch.stack(found).sum(0).squeeze(1)


@torch.no_grad()
def feature_foreground(batches: Sequence[Sequence[Tensor]]) -> FeatureForeground:
    """Foreground by the first principal component of each stage, over the batches: stages of B×Ds×Hs×Ws each.

    Early stages have finer places, deep ones know more of objects; the sum tells birds better than each of them does
    (docs/validation-notebook.md).

    >>> foreground = feature_foreground([(torch.rand(4, 8, 6, 6), torch.rand(4, 16, 3, 3))])
    >>> foreground((torch.rand(2, 8, 6, 6), torch.rand(2, 16, 3, 3))).shape
    torch.Size([2, 6, 6])
    """
    if not batches:
        raise DaplError("loss.locate.foreground_from: there are no training images to take the foreground from.")
    count = len(batches[0])
    components = tuple(first_component(standardised(stages[s]) for stages in batches) for s in range(count))
    coordinates = torch.cat([summed_coordinates(components, stages).flatten() for stages in batches]).double()
    deviation = float(coordinates.std().clamp_min(torch.finfo(torch.float32).tiny))
    return FeatureForeground(components, float(coordinates.mean()), deviation)
