"""How the system parts is trained, before there are prototypes: where its heads start, and two stages of its own.

Heads start at what stands on the object, told apart by k-means: from random queries some runs found eight parts of a
bird and others six (docs/validation-notebook.md). In `locate` they learn where to look; `discriminate` gives their
layers in closed form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.batches.sources import Batch, features_of, grid_masks
from dapl.config import LossConfig
from dapl.models.parts import Locator, Parts, pooled_under, standardised
from dapl.processes.interface import Processes
from dapl.training import losses
from dapl.training.feature_foreground import FeatureForeground

MOST_PLACES = 20_000
"""Places of objects that are clustered; more of them change little and take time."""
TRIES = 30
"""Starts of k-means, of which the one with the nearest centres is taken."""
ROUNDS = 30
SHARPNESS = 4.0
"""How much higher a head's logit is at its own centre than at the mean place, for centres as far off as they are on
average."""
OTHER_STAGES = 0.1
"""By how much the random queries of the other stages are made smaller, so that the centres decide at first."""


def k_means(places: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Centres of clusters, the nearest of a few tries: P×D → count×D. Each try starts by k-means++.

    >>> places = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> k_means(places, 2, torch.Generator().manual_seed(0)).sort(0).values
    tensor([[0.0500],
            [5.0500]])
    """
    tries = []
    for _ in range(TRIES):
        centres = places[torch.randint(len(places), (1,), generator=generator)]
        for _ in range(count - 1):
            farness = torch.cdist(places, centres).amin(1).square().clamp_min(torch.finfo(places.dtype).tiny)
            centres = torch.cat((centres, places[torch.multinomial(farness, 1, generator=generator)]))
        for _ in range(ROUNDS):
            nearest = torch.cdist(places, centres).argmin(1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, places)
            sizes = nearest.bincount(minlength=count).unsqueeze(1)
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        tries.append((float(torch.cdist(places, centres).amin(1).square().mean()), centres))
    return min(tries, key=lambda tried: tried[0])[1]


@torch.no_grad()
def start_heads(
    locator: Locator,
    batches: Sequence[tuple[Sequence[Tensor], Tensor | None]],
    generator: torch.Generator,
) -> bool:
    """Query h becomes the one that is highest where features are as in cluster h of the object's places.

    On the finest stage, with f standardised, μ its mean over objects and c_h the centres from there: the logit is
    s·(c_h·(f − μ) − ‖c_h‖²/2), which is highest for the nearest centre.

    Args:
        locator: its queries are set.
        batches: stages of B×Ds×Hs×Ws each, and the object B×H×W in [0, 1] on the finest grid; None: all places.
        generator: what k-means starts from.

    Returns:
        False, and nothing was changed, where objects have fewer places than there are heads.
    """
    stage = max(range(len(batches[0][0])), key=lambda s: batches[0][0][s].shape[-2:].numel())
    found = []
    for stages, masks in batches:
        places = standardised(stages[stage]).movedim(1, -1)
        found.append((places.flatten(0, 2) if masks is None else places[masks > 0.5]).float().cpu())
    places = torch.cat(found)
    if len(places) < locator.heads:
        return False
    places = places[torch.randperm(len(places), generator=generator)[:MOST_PLACES]]
    mean = places.mean(0)
    centres = k_means(places - mean, locator.heads, generator)
    scale = SHARPNESS / centres.square().sum(1).mean().clamp_min(torch.finfo(centres.dtype).tiny)
    for number, query in enumerate(locator.queries):
        assert isinstance(query, nn.Conv2d)
        assert query.bias is not None
        weight, bias = query.weight[: locator.heads], query.bias[: locator.heads]
        if number == stage:
            weight.copy_((scale * centres)[..., None, None])
            bias.copy_(-scale * (centres @ mean + centres.square().sum(1) / 2))
        else:
            weight.mul_(OTHER_STAGES)
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
