"""How the system parts is trained, before there are prototypes: the object, where heads start, and two own stages.

Where data has no masks the features themselves tell the object: it is what varies most over the images. Heads start at
what stands on the object, told apart by k-means: from random queries some runs found eight parts of a bird and others
six (docs/validation-notebook.md). In `locate` they learn where to look; `discriminate` gives their layers in closed
form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.batches.sources import Batch, features_of, grid_masks
from dapl.common.errors import DaplError
from dapl.config import LossConfig
from dapl.models.parts import Locator, Parts, pooled_under, standardised
from dapl.processes.interface import Processes
from dapl.training import losses

FOREGROUND_SAMPLE = 1000
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


MOST_PLACES = 20_000
"""Places of objects that are clustered; more of them change little and take time."""
LEAST_WEIGHT = 1e-12
"""Of a place among those that are drawn to be clustered, beside 1 of the one with the most variation."""
K_MEANS_TRIES = 30
"""Starts of k-means, of which the one with the nearest centres is taken."""
K_MEANS_ROUNDS = 30
START_SHARPNESS = 4.0
"""How much higher a head's logit is at its own centre than at the mean place, for centres as far off as they are on
average."""
OTHER_STAGES = 0.1
"""By how much the random queries of the deepest stage are made smaller, so that the centres decide at first."""


def k_means(places: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Centres of clusters, the nearest of a few tries: P×D → count×D. Each try starts by k-means++.

    >>> places = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> k_means(places, 2, torch.Generator().manual_seed(0)).sort(0).values
    tensor([[0.0500],
            [5.0500]])
    """
    tries = []
    for _ in range(K_MEANS_TRIES):
        centres = places[torch.randint(len(places), (1,), generator=generator)]
        for _ in range(count - 1):
            farness = torch.cdist(places, centres).amin(1).square().clamp_min(torch.finfo(places.dtype).tiny)
            centres = torch.cat((centres, places[torch.multinomial(farness, 1, generator=generator)]))
        for _ in range(K_MEANS_ROUNDS):
            nearest = torch.cdist(places, centres).argmin(1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, places)
            sizes = nearest.bincount(minlength=count).unsqueeze(1)
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        tries.append((float(torch.cdist(places, centres).amin(1).square().mean()), centres))
    return min(tries, key=lambda tried: tried[0])[1]


def variation(maps: Tensor, on_object: Tensor) -> Tensor:
    """How different a place is from those beside, above and below it that are on the object too.

    The mean over these of ‖f(l) − f(l')‖²/D, and 0 where there are none. It is high around eyes, beaks and patches of
    colour, and low on even plumage. Shapes: maps B×D×H×W, on_object bool B×H×W → B×H×W.

    >>> maps = torch.tensor([[[[0.0, 0.0, 2.0, 9.0]]]])
    >>> variation(maps, torch.tensor([[[True, True, True, False]]]))
    tensor([[[0., 2., 4., 0.]]])
    """
    sums, counts = torch.zeros_like(maps[:, 0]), torch.zeros_like(maps[:, 0])
    for axis in (1, 2):
        pairs = maps.shape[axis + 1] - 1
        both = on_object.narrow(axis, 0, pairs) & on_object.narrow(axis, 1, pairs)
        differences = maps.diff(dim=axis + 1).square().mean(1) * both
        for start in (0, 1):  # a pair counts for both of its places
            sums.narrow(axis, start, pairs).add_(differences)
            counts.narrow(axis, start, pairs).add_(both)
    return sums / counts.clamp_min(1)


@torch.no_grad()
def start_heads(
    locator: Locator,
    batches: Sequence[tuple[Sequence[Tensor], Tensor | None]],
    generator: torch.Generator,
    share: float = 0.5,
    power: float = 0.0,
) -> bool:
    """Query h becomes the one that is highest where features are as in cluster h of the object's places.

    By all stages but the deepest, whose places know more of the image than of where they are. With f what these say of
    a place, each standardised, μ its mean over objects and c_h the centres from there: the logit is
    s·(c_h·(f − μ) − ‖c_h‖²/2), which is highest for the nearest centre.

    Args:
        locator: its queries are set.
        batches: stages of B×Ds×Hs×Ws each, and the object B×H×W in [0, 1] on the finest grid; None: all places.
        generator: what k-means starts from.
        share: of the object, above which a place is one of its places.
        power: places are drawn with chances in proportion to their `variation` to this power; 0: each once.

    Returns:
        False, and nothing was changed, where objects have fewer places than there are heads.
    """
    number = max(1, len(locator.queries) - 1)
    found, varying = [], []
    for stages, masks in batches:
        grid = max((tuple(maps.shape[-2:]) for maps in stages), key=lambda size: size[0] * size[1])
        same = [
            F.interpolate(standardised(maps), grid, mode="bilinear", align_corners=False) for maps in stages[:number]
        ]
        maps = torch.cat(same, dim=1)
        on_object = torch.ones_like(maps[:, 0], dtype=torch.bool) if masks is None else masks > share
        found.append(maps.movedim(1, -1)[on_object].float().cpu())
        if power:
            varying.append(variation(maps, on_object)[on_object].float().cpu())
    places = torch.cat(found)
    if len(places) < locator.heads:
        return False
    if power:
        weights = torch.cat(varying)
        weights = (weights / weights.max().clamp_min(LEAST_WEIGHT)).pow(power).clamp_min(LEAST_WEIGHT)
        chosen = torch.multinomial(weights, MOST_PLACES, replacement=True, generator=generator)
    else:
        chosen = torch.randperm(len(places), generator=generator)[:MOST_PLACES]
    places = places[chosen]
    mean = places.mean(0)
    centres = k_means(places - mean, locator.heads, generator)
    scale = START_SHARPNESS / centres.square().sum(1).mean().clamp_min(torch.finfo(centres.dtype).tiny)
    offsets = -scale * (centres @ mean + centres.square().sum(1) / 2) / number
    at = 0
    for query in locator.queries:
        assert isinstance(query, nn.Conv2d)
        assert query.bias is not None
        own = centres[:, at : at + query.in_channels]
        at += query.in_channels
        if own.numel():
            query.weight[: locator.heads] = (scale * own)[..., None, None]
            query.bias[: locator.heads] = offsets
        else:
            query.weight[: locator.heads] *= OTHER_STAGES
    return True


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


@torch.no_grad()
def discriminate(model: Parts, batches: Iterable[Batch], shrinkage: float, processes: Processes) -> None:
    """Make W_h of every head the discriminants of what it sees in the training images. One pass.

    Whitened by what varies within classes, one training crop stands for its class nearly as well as the mean of all:
    that is what a prototype has to do. Memory is O(N·D²), whatever the number of images.
    """
    model.eval()
    heads, channels, width = model.layers.weight.shape
    device = model.layers.weight.device
    counts = torch.zeros(model.classes, dtype=torch.double, device=device)
    sums = torch.zeros(heads, model.classes, channels, dtype=torch.double, device=device)
    squares = torch.zeros(heads, channels, channels, dtype=torch.double, device=device)
    for batch in batches:
        batch = batch.to(processes.device)
        with processes.autocast():
            seen = model.embed(features_of(model, batch)).seen
        assert seen is not None
        seen = F.layer_norm(seen.float(), seen.shape[-1:]).transpose(0, 1)  # N×B×D
        member = F.one_hot(batch.labels, model.classes).T.to(seen)
        counts += member.sum(1)
        sums += member @ seen
        squares += seen.mT @ seen
    counts, sums, squares = (processes.sum(part) for part in (counts, sums, squares))
    for head in range(heads):  # one at a time: the decomposition of one is what memory has to hold
        layers = discriminants(counts, sums[head], squares[head], width, shrinkage)
        model.layers.weight[head].copy_(layers)


def discriminants(counts: Tensor, sums: Tensor, squares: Tensor, width: int, shrinkage: float) -> Tensor:
    """Directions that tell classes apart (Fisher's linear discriminants), best first, in units of the spread within.

    With S_w the covariance within classes, λ its mean variance and m_c the class means, they are the main axes of the
    m_c in the coordinates in which S_w + shrinkage·λ·I is the identity. C classes have C − 1 of them; the other columns
    are 0.

    Shapes: counts C, sums C×D and squares D×D (Σ x xᵀ over all images) → D×width.

    >>> x, y = torch.tensor([[0.0, 0.0], [0.0, 4.0], [1.0, 0.0], [1.0, 4.0]]).double(), torch.tensor([0, 0, 1, 1])
    >>> member = F.one_hot(y).T.double()
    >>> found = discriminants(member.sum(1), member @ x, x.T @ x, width=2, shrinkage=1e-3)
    >>> (found / found.abs().amax()).abs().round(decimals=3)  # the first axis tells them apart, the second does not
    tensor([[1., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    there = counts > 0
    means = sums[there] / counts[there].unsqueeze(1)
    within = (squares - (means * counts[there].unsqueeze(1)).T @ means) / counts.sum()
    within = within + shrinkage * within.diagonal().mean() * torch.eye(len(within)).to(within)
    variances, axes = torch.linalg.eigh(within)
    whitening = axes * variances.clamp_min(torch.finfo(variances.dtype).tiny).rsqrt()
    between = (means - means.mean(0)) @ whitening
    directions = torch.linalg.svd(between, full_matrices=False).Vh[: max(len(means) - 1, 1)]
    found = whitening @ directions[:width].T
    return F.pad(found, (0, width - found.shape[1]))
