"""Many classes: tables by class and distances in chunks, the same numbers as without chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks import many_classes
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dapl.models import Dapl, create_backbone, distances
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
        monkeypatch.setattr(distances, "_CHUNK_ELEMENTS", elements)
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
    found = {what: number for what, number, _, _ in many_classes.measure(300)}
    assert found.keys() == {"step", "projection", "evaluation"}
    # Each image is of a class of its own, whose prototypes it takes.
    assert found["projection"] == 2 * many_classes.BATCH * many_classes.HEADS
    assert found["evaluation"] > 0.5  # a projected prototype is nowhere nearer than in the image that it was taken from


class Largest(TorchDispatchMode):
    """Sees the largest tensor that any operation gives."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (one for one in tree_leaves(result) if isinstance(one, torch.Tensor))
        self.numel = max([self.numel, *(one.untyped_storage().nbytes() for one in tensors)])
        return result


def test_no_tensor_grows_with_prototypes_times_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step, a projection and an evaluation, and in what a checkpoint keeps: twice the classes, twice the size."""
    monkeypatch.setattr(many_classes, "BATCH", 2)  # so that what grows with both would be the largest
    monkeypatch.setattr(many_classes, "SIDE", 2)
    largest = {}
    for classes in (400, 800):
        with Largest() as seen:
            assert len(list(many_classes.measure(classes, batches=1))) == 3
        largest[classes] = seen.numel
    assert largest[800] <= 2.1 * largest[400]
    backbone = create_backbone("test_efficientnet", weights="random")
    sizes = []
    for classes in (100, 200, 400):
        model = Dapl(backbone, classes, heads=2, head_dim=4)
        sizes.append(sum(tensor.nbytes for tensor in model.state_dict().values()))
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0]) > 0


def test_a_file_with_a_matrix_of_all_prototypes_and_classes_is_read() -> None:
    """As checkpoints had it before: P×C, of which a prototype may have several classes."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(12, 4, generator=generator) < 0.4
    layer = Prototypes(torch.eye(4, dtype=torch.bool).repeat_interleave(3, 0), groups=3, width=5)
    state = {name: tensor for name, tensor in layer.state_dict().items() if name != "of_class"}
    layer.load_state_dict(state | {"membership": matrix})
    assert torch.equal(layer.membership, matrix)
    assert torch.equal(Prototypes(matrix, groups=3, width=5).of_class, layer.of_class)
    assert layer.classes_of() == [row.nonzero().flatten().tolist() for row in matrix]
    assert torch.equal(layer.of_images(torch.tensor([3, 0])), matrix.T[[3, 0]])
