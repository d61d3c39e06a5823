"""The prototype layer against loops written from the paper."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.models.prototypes import (
    CosinePrototypes,
    Prototypes,
    UnitPrototypes,
    class_table,
    log_similarity,
)

B, C, N, D1, H, W = 3, 4, 3, 5, 4, 2


@pytest.fixture
def layer() -> Prototypes:
    """C·N prototypes in float64, for embeddings of `embedding`."""
    torch.manual_seed(0)
    return Prototypes(torch.eye(C).bool().repeat_interleave(N, 0), groups=N, width=D1).double()


@pytest.fixture
def embedding() -> Tensor:
    return torch.rand(B, N, D1, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def squared_distance(patch: Tensor, prototype: Tensor) -> float:
    return sum((z - p) ** 2 for z, p in zip(patch.tolist(), prototype.tolist(), strict=True))


def slow_distances(embedding: Tensor, vectors: Tensor) -> Tensor:
    """‖z_{h,w} − p_j‖² for j = (c−1)·N + h, counted from 1 as in the paper."""
    result = torch.empty(len(embedding), len(vectors), H, W, dtype=torch.float64)
    for image in range(len(embedding)):
        for k in range(1, C + 1):
            for head in range(1, N + 1):
                j = (k - 1) * N + head
                for row in range(H):
                    for column in range(W):
                        patch = embedding[image, head - 1, :, row, column]
                        result[image, j - 1, row, column] = squared_distance(patch, vectors[j - 1])
    return result


def test_index_rule() -> None:
    layer = Prototypes(torch.eye(200).bool().repeat_interleave(10, 0), groups=10, width=2)
    assert len(layer) == 2000
    for number in (0, 9, 10, 1234, 1999):
        c, h = divmod(number, 10)
        assert layer.group_of[number] == h
        assert layer.membership[number].nonzero().flatten().tolist() == [c]


def test_uneven_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="7 prototypes cannot be shared out evenly among 3 groups"):
        Prototypes(torch.ones(7, 2, dtype=torch.bool), groups=3, width=2)


def test_all_start_kept_and_within_the_unit_cube(layer: Prototypes) -> None:
    assert layer.kept.all()
    assert layer.vectors.min() >= 0
    assert layer.vectors.max() <= 1


def test_similarity_is_equation_2(layer: Prototypes) -> None:
    for distance in (0.0, 1e-6, 0.3, 1.0, 50.0, 1e4):
        expected = math.log((distance + 1) / (distance + 1e-4))
        assert layer.similarity(torch.tensor(distance, dtype=torch.float64)).item() == pytest.approx(expected)
    assert log_similarity(torch.tensor(0.0), 0.01).item() == pytest.approx(math.log(100), rel=1e-5)


def test_distances_of_all(layer: Prototypes, embedding: Tensor) -> None:
    assert_close(layer.distances(embedding), slow_distances(embedding, layer.vectors))


def test_distances_of_named_agree_with_those_of_all(layer: Prototypes, embedding: Tensor) -> None:
    everything = layer.distances(embedding)
    same = torch.tensor([11, 0, 4, 4])
    assert_close(layer.distances(embedding, same), everything[:, same])
    own = torch.tensor([[0, 7], [11, 3], [5, 5]])
    expected = torch.stack([everything[image, own[image]] for image in range(B)])
    assert_close(layer.distances(embedding, own), expected)


def test_distances_are_never_negative() -> None:
    """‖z‖² − 2z·p + ‖p‖² rounds below 0 where z is p, and the log would follow it."""
    layer = Prototypes(torch.eye(3).bool(), groups=1, width=64)
    embedding = 100 * layer.vectors.detach().T.reshape(1, 1, 64, 3, 1)
    with torch.no_grad():
        layer.vectors.mul_(100)
    distances = layer.distances(embedding)
    assert distances.min() >= 0
    assert layer.similarity(distances).isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_nearest_is_the_minimum_over_allowed_places(masked: bool, layer: Prototypes, embedding: Tensor) -> None:
    allowed = torch.rand(B, H, W, generator=torch.Generator().manual_seed(2)) > 0.6
    allowed[:, 0, 1] = True
    assert not allowed.flatten(1).all(1).any()
    expected = slow_distances(embedding, layer.vectors)
    distances, locations = layer.nearest(embedding, allowed if masked else None)
    for image in range(B):
        places = [(y, x) for y in range(H) for x in range(W) if not masked or allowed[image, y, x]]
        for j in range(C * N):
            nearest = min((expected[image, j, y, x].item(), y * W + x) for y, x in places)
            assert (distances[image, j].item(), locations[image, j].item()) == pytest.approx(nearest)


def test_score_is_the_maximum_of_the_activation_map(layer: Prototypes, embedding: Tensor) -> None:
    """The paper takes the log everywhere and then the maximum; here the minimum first and the log once."""
    scores = layer.similarity(layer.nearest(embedding).distances)
    assert_close(scores, layer.similarity(layer.distances(embedding)).amax((2, 3)))


def test_across_groups_compares_a_head_with_prototypes_of_others(layer: Prototypes, embedding: Tensor) -> None:
    negatives = torch.tensor([[1, 11], [0, 5], [7, 3]])
    scores = layer.across_groups(embedding, negatives)
    assert scores.shape == (B, N, 2)
    for image in range(B):
        for head in range(N):
            for number, j in enumerate(negatives[head].tolist()):
                nearest = min(
                    squared_distance(embedding[image, head, :, y, x], layer.vectors[j])
                    for y in range(H)
                    for x in range(W)
                )
                expected = math.log((nearest + 1) / (nearest + 1e-4))
                assert scores[image, head, number].item() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_ends_at_the_embedding(dtype: torch.dtype) -> None:
    """In half precision a distance near ε is noise, and so is its log; and the gradient must find its way back."""
    torch.manual_seed(0)
    layer = Prototypes(torch.eye(C).bool().repeat_interleave(N, 0), groups=N, width=D1)
    embedding = torch.rand(B, N, D1, H, W).to(dtype).requires_grad_()
    negatives = torch.tensor([[1, 11], [0, 5], [7, 3]])
    with torch.autocast("cpu", dtype=dtype):
        distances, locations = layer.nearest(embedding)
        maps, scores = layer.distances(embedding), layer.across_groups(embedding, negatives)
    exact = copy.deepcopy(layer).double()
    full = embedding.detach().double()
    assert distances.dtype == maps.dtype == scores.dtype == torch.float32
    assert torch.equal(locations, exact.nearest(full).locations)
    assert_close(distances.double(), exact.nearest(full).distances, rtol=1e-5, atol=1e-6)
    assert_close(maps.double(), exact.distances(full), rtol=1e-5, atol=1e-6)
    assert_close(scores.double(), exact.across_groups(full, negatives), rtol=1e-4, atol=1e-5)
    distances.sum().backward()
    assert embedding.grad is not None
    assert embedding.grad.dtype == dtype
    assert embedding.grad.isfinite().all()


# --- whose they are ---------------------------------------------------------------------------------------------


def members(table: Tensor, counts: Tensor) -> list[list[int]]:
    return [row[counted].tolist() for row, counted in zip(table, counts, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_the_class_table_is_that_of_a_slow_loop(seed: int) -> None:
    """Classes with few, many and no prototypes, some shared and some removed."""
    generator = torch.Generator().manual_seed(seed)
    membership = torch.rand(9, 5, generator=generator) < 0.4
    membership[:, 2] = False
    kept = torch.rand(9, generator=generator) < 0.7
    table, counts = class_table(membership, kept)
    most = max(sum(membership[j, c].item() for j in range(9)) for c in range(5))
    assert table.shape == counts.shape == (5, most)
    expected = [[j for j in range(9) if membership[j, c] and kept[j]] for c in range(5)]
    assert members(table, counts) == expected
    everything = class_table(membership, torch.ones(9, dtype=torch.bool))
    assert members(*everything) == [[j for j in range(9) if membership[j, c]] for c in range(5)]
    assert table.min() >= 0  # what fills a row up can be looked up too
    assert table.max() < 9


def test_removed_prototypes_keep_their_place_in_the_table() -> None:
    """Rows are compared across images and epochs: the columns of a class do not move."""
    membership, kept = torch.eye(2).bool().repeat_interleave(3, 0), torch.ones(6, dtype=torch.bool)
    kept[1] = False
    table, counts = class_table(membership, kept)
    assert table.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert counts.tolist() == [[True, False, True], [True, True, True]]


def test_no_prototypes_at_all() -> None:
    table, counts = class_table(torch.zeros(0, 3, dtype=torch.bool), torch.ones(0, dtype=torch.bool))
    assert table.shape == counts.shape == (3, 0)


def changed_kept(layer: Prototypes) -> None:
    layer.kept[4] = False


def changed_membership(layer: Prototypes) -> None:
    layer.add_classes(4, *layer.classes_of([0]))


def loaded(layer: Prototypes) -> None:
    other = copy.deepcopy(layer)
    other.kept[4] = False
    layer.load_state_dict(other.state_dict())


@pytest.mark.parametrize("change", [changed_kept, changed_membership, loaded])
def test_the_table_follows_what_changes(change: Callable[[Prototypes], None], layer: Prototypes) -> None:
    before = layer.by_class()
    assert layer.by_class() is before  # not made anew for every batch
    apart = copy.deepcopy(layer)
    change(layer)
    assert members(*layer.by_class()) == members(*class_table(layer.membership, layer.kept))
    assert members(*layer.by_class()) != members(*before)
    assert members(*apart.by_class()) == members(*before)  # a copy does not follow


# --- on the unit sphere -----------------------------------------------------------------------------------------


def test_half_the_squared_distance_is_the_cosine_distance(embedding: Tensor) -> None:
    torch.manual_seed(0)
    layer = UnitPrototypes(torch.eye(C).bool().repeat_interleave(N, 0), groups=N, width=D1).double()
    unit = torch.nn.functional.normalize(embedding - 0.5, dim=2)
    halves = layer.distances(unit) / 2
    nearest = layer.nearest(unit)
    assert_close(nearest.distances, 2 * halves.flatten(2).amin(2))
    for image in range(B):
        for j in range(C * N):
            vector = layer.vectors[j].tolist()
            length = math.sqrt(sum(value * value for value in vector))
            for y in range(H):
                for x in range(W):
                    patch = unit[image, j % N, :, y, x].tolist()
                    cosine = sum(a * b for a, b in zip(patch, vector, strict=True)) / length
                    assert halves[image, j, y, x].item() == pytest.approx(1 - cosine)


def test_the_cosine_similarity_is_that_of_a_slow_loop(embedding: Tensor) -> None:
    torch.manual_seed(0)
    layer = CosinePrototypes(
        torch.eye(C).bool().repeat_interleave(N, 0), groups=N, width=D1, scale=7.0, signed=True
    ).double()
    values = layer.comparable(embedding - 0.5)
    scores = layer.similarity(layer.nearest(values).distances)
    distances = layer.distances(values)
    maps, shown = layer.similarity(distances), layer.activation(distances)
    for image in range(B):
        for j in range(C * N):
            vector = layer.vectors[j].tolist()
            cosines = []
            for y in range(H):
                for x in range(W):
                    patch = (embedding - 0.5)[image, j % N, :, y, x].tolist()
                    lengths = math.hypot(*patch) * math.hypot(*vector)
                    cosines.append(sum(a * b for a, b in zip(patch, vector, strict=True)) / lengths)
                    assert maps[image, j, y, x].item() == pytest.approx(7 * cosines[-1], abs=1e-6)
                    assert shown[image, j, y, x].item() == pytest.approx(max(0, 7 * cosines[-1]), abs=1e-6)
            assert scores[image, j].item() == pytest.approx(7 * max(cosines), abs=1e-6)
    assert maps.min() < 0 < scores.max()


def test_a_score_that_is_not_signed_is_its_map_and_one_that_is_learns_from_behind() -> None:
    behind = torch.tensor([3.0], requires_grad=True)  # cos = −½
    layers = [CosinePrototypes(torch.eye(1).bool(), 1, 2, scale=7.0, signed=signed) for signed in (False, True)]
    for layer, score in zip(layers, (0.0, -3.5), strict=True):
        found = layer.similarity(behind)
        assert found.item() == score
        assert layer.activation(behind).item() == 0
        distance, scale = torch.autograd.grad(found.sum(), (behind, layer.scale))
        assert (distance.item(), scale.item()) == ((-3.5, -0.5) if layer.signed else (0.0, 0.0))


def test_a_cosine_prototype_that_was_projected_has_the_highest_score_there_is(embedding: Tensor) -> None:
    layer = CosinePrototypes(
        torch.eye(C).bool().repeat_interleave(N, 0), groups=N, width=D1, scale=7.0, signed=True
    ).double()
    values = layer.comparable(embedding - 0.5)
    with torch.no_grad():
        layer.vectors[N] = values[1, 0, :, 2, 1]
        scores = layer.similarity(layer.nearest(values).distances)
    assert scores[1, N].item() == pytest.approx(7.0)
    assert scores.max() <= 7 + 1e-6
