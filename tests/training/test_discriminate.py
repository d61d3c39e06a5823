"""The stage `discriminate`: its directions by another way to find them, and what they are for."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F

from dapl.batches.sources import Batch
from dapl.models import Parts, create_backbone
from dapl.processes.interface import SingleProcess
from dapl.training.discriminate import discriminants, discriminate

CLASSES, CHANNELS = 4, 6


def data(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(count) % CLASSES
    means = torch.randn(CLASSES, CHANNELS, generator=generator, dtype=torch.double)
    spread = torch.randn(CHANNELS, CHANNELS, generator=generator, dtype=torch.double)
    return means[labels] + torch.randn(count, CHANNELS, generator=generator, dtype=torch.double) @ spread, labels


def test_directions_are_those_of_the_generalised_eigenproblem() -> None:
    """S_b w = μ (S_w + λI) w, solved by scipy, spans the same space with the same lengths."""
    values, labels = data()
    member = F.one_hot(labels).T.double()
    found = discriminants(member.sum(1), member @ values, values.T @ values, width=5, shrinkage=0.2).numpy()
    assert (found[:, CLASSES - 1 :] == 0).all()  # four classes differ along three directions
    x, y = values.numpy(), labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    within = sum(np.outer(row - means[c], row - means[c]) for row, c in zip(x, y, strict=True)) / len(x)
    within = within + 0.2 * within.diagonal().mean() * np.eye(CHANNELS)
    between = sum(np.outer(mean - means.mean(0), mean - means.mean(0)) for mean in means)
    _, expected = scipy.linalg.eigh(between, within)
    expected = expected[:, ::-1][:, : CLASSES - 1]
    ours = found[:, : CLASSES - 1]
    for one, other in zip(ours.T, expected.T, strict=True):  # each is known but for its sign
        assert min(np.abs(one - other).max(), np.abs(one + other).max()) == pytest.approx(0, abs=1e-8)


def test_a_class_without_images_does_not_count() -> None:
    values, labels = data()
    member = F.one_hot(labels, CLASSES + 1).T.double()
    with_empty = discriminants(member.sum(1), member @ values, values.T @ values, width=5, shrinkage=0.2)
    member = member[:-1]
    without = discriminants(member.sum(1), member @ values, values.T @ values, width=5, shrinkage=0.2)
    torch.testing.assert_close(with_empty, without)


def test_every_head_has_the_discriminants_of_what_it_sees() -> None:
    torch.manual_seed(0)
    backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False)
    model = Parts(backbone, classes=2, heads=3, head_dim=4, evidence="map").eval()
    images, labels = torch.rand(6, 3, 64, 64), torch.tensor([0, 1, 0, 1, 0, 1])
    batches = [Batch(torch.arange(6)[rows], labels[rows], images=images[rows]) for rows in (slice(0, 4), slice(4, 6))]
    discriminate(model, batches, 0.3, SingleProcess())
    with torch.no_grad():
        seen = F.layer_norm(model(images).embedding.seen, model(images).embedding.seen.shape[-1:])
    for head in range(3):
        x, member = seen[:, head].double(), F.one_hot(labels).T.double()
        expected = discriminants(member.sum(1), member @ x, x.T @ x, 4, 0.3)
        # Single precision in the model, and eigenvectors of nearly equal variances: what they give is compared.
        ours = (x @ model.layers.weight[head].double())[:, 0]
        theirs = (x @ expected)[:, 0]
        assert abs(F.cosine_similarity(ours - ours.mean(), theirs - theirs.mean(), dim=0)) > 0.999
