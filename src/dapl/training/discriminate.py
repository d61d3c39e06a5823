"""The stage `discriminate` of the system parts: the layers of the heads in closed form."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.batches.sources import Batch, features_of
from dapl.models.parts import Parts
from dapl.processes.interface import Processes


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
