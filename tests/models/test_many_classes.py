"""Many classes: tables by class and distances in chunks, the same numbers as without chunks."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from dapl.models import Dapl, create_backbone
from dapl.models import prototypes as module
from dapl.models.prototypes import Prototypes, class_table


def test_the_prototypes_of_each_class_in_their_order() -> None:
    generator = torch.Generator().manual_seed(0)
    membership = torch.rand(40, 9, generator=generator) < 0.2
    membership[:, 3] = False  # a class that has lost all
    kept = torch.rand(40, generator=generator) < 0.8
    table, counts = class_table(membership, kept)
    for label in range(9):
        own = [j for j in range(40) if membership[j, label]]
        assert table[label, : len(own)].tolist() == own
        assert counts[label].tolist() == [bool(kept[j]) for j in own] + [False] * (table.shape[1] - len(own))
    assert [tuple(tensor.shape) for tensor in class_table(membership[:0], kept[:0])] == [(9, 0), (9, 0)]


def test_distances_and_gradients_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    prototypes = Prototypes(torch.eye(4, dtype=torch.bool).repeat_interleave(3, 0), groups=3, width=5)
    embedding = torch.rand(7, 3, 5, 4, 4, generator=generator)
    weights = torch.rand(7, 12, generator=generator)
    found = []
    for elements in (1 << 24, 130):  # all at once; two images at a time
        monkeypatch.setattr(module, "_CHUNK_ELEMENTS", elements)
        given = embedding.clone().requires_grad_()
        prototypes.zero_grad()
        nearest = prototypes.nearest(given)
        (nearest.distances * weights).sum().backward()
        found.append((nearest.distances.detach(), nearest.locations, given.grad, prototypes.vectors.grad))
    for whole, pieces in zip(*found, strict=True):
        assert_close(pieces, whole, rtol=1e-6, atol=1e-6)


def test_the_weights_of_some_classes_are_columns_of_all() -> None:
    model = Dapl(create_backbone("test_efficientnet", weights="random"), classes=5, heads=2, head_dim=4)
    torch.nn.init.normal_(model.classifier.weight)
    model.prototypes.kept[3] = False
    classes = torch.tensor([4, 0, 4])
    assert torch.equal(model.weights_of_classes(classes), model.class_weights()[:, classes])
    scores = torch.rand(3, 10)
    assert_close(scores @ model.class_weights(), model.classify(scores))


def test_the_benchmark_of_many_classes_measures_what_it_says() -> None:
    """300 classes; 10,000 are for `python -m benchmarks.many_classes`, whose numbers are in docs/scale.md."""
    benchmark = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "many_classes.py"))
    found = {what: number for what, number, _, _ in benchmark["measure"](300)}
    assert found.keys() == {"step", "projection", "evaluation"}
    assert (
        found["projection"] == 2 * benchmark["BATCH"] * benchmark["HEADS"]
    )  # each image is of a class of its own, whose prototypes it takes
    assert found["evaluation"] > 0.5  # a projected prototype is nowhere nearer than in the image that it was taken from
