"""Distances, their gradients against those of plain tensors, in pieces of any size, and what is kept in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.models import distances
from dapl.models.distances import nearest_locations
from dapl.models.prototypes import CosinePrototypes, Prototypes, UnitPrototypes, one_class_each
from dapl.training import losses

B, C, N, D1, H, W = 3, 4, 3, 5, 4, 2


@pytest.fixture
def layer() -> Prototypes:
    """C·N prototypes in float64, for embeddings of `embedding`."""
    torch.manual_seed(0)
    return Prototypes(one_class_each(C, N), groups=N, width=D1).double()


@pytest.fixture
def embedding() -> Tensor:
    return torch.rand(B, N, D1, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class _Nearest(torch.nn.Module):
    def __init__(self, layer: Prototypes) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, embedding: Tensor) -> Tensor:
        return self.layer.nearest(embedding).distances


@pytest.mark.parametrize("elements", [1, N * H * W * C, 2 * N * H * W * C + 1])
def test_chunks_change_nothing(
    elements: int, layer: Prototypes, embedding: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = torch.rand(B, H, W, generator=torch.Generator().manual_seed(3)) > 0.4
    allowed[:, 0, 0] = True
    whole, masked = layer.nearest(embedding), layer.nearest(embedding, allowed)
    monkeypatch.setattr(distances, "_CHUNK_ELEMENTS", elements)
    for expected, got in ((whole, layer.nearest(embedding)), (masked, layer.nearest(embedding, allowed))):
        assert torch.equal(expected.locations, got.locations)
        assert torch.equal(expected.distances, got.distances)


@pytest.mark.parametrize("places", [1, 49, 255, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_equally_near_patches_the_first(places: int, dtype: torch.dtype) -> None:
    values = torch.randint(0, max(2, places // 8), (2, 3, places, 5), dtype=dtype)
    values[0, 0, :, 0] = torch.nan
    found = distances._first_of_least(values)
    assert ((found >= 0) & (found < places)).all(), "also where nothing is the least"
    values[0, 0, :, 0] = 0
    found = distances._first_of_least(values)
    for b, g, q in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        column = values[b, g, :, q].tolist()
        assert found[b, g, q] == column.index(min(column))


@pytest.mark.parametrize("elements", [1, N * H * W * C, 2 * N * H * W * C + 1])
def test_chunks_change_no_gradient(
    elements: int, layer: Prototypes, embedding: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks, weights = (torch.rand(shape, dtype=torch.float64) for shape in ((B, H, W), (B, C * N)))
    inputs = embedding.requires_grad_(), layer.vectors

    def gradients() -> list[Tensor]:
        answers = layer.nearest(embedding).distances, layer.share_beside(embedding, masks)
        return [each for answer in answers for each in torch.autograd.grad((answer * weights).sum(), inputs)]

    whole = gradients()
    monkeypatch.setattr(distances, "_CHUNK_ELEMENTS", elements)
    assert_close(gradients(), whole)  # sums in another order


def test_chunks_bound_what_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    matmul = torch.matmul

    def watched(*args: Tensor) -> Tensor:
        result = matmul(*args)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(distances, "_CHUNK_ELEMENTS", 1000)
    monkeypatch.setattr(torch, "matmul", watched)
    nearest_locations(torch.rand(20, 2, 3, 9), torch.rand(2, 3, 11))  # 198 an image
    assert max(sizes) <= 1000
    assert sum(sizes) == 20 * 198


def test_gradcheck_of_scores(layer: Prototypes, embedding: Tensor) -> None:
    def scores(embedding: Tensor, vectors: Tensor) -> Tensor:
        nearest = torch.func.functional_call(_Nearest(layer), {"layer.vectors": vectors}, (embedding,))
        return layer.similarity(nearest)

    assert torch.autograd.gradcheck(scores, (embedding.requires_grad_(), layer.vectors))


def test_gradient_is_that_of_the_plain_minimum(layer: Prototypes, embedding: Tensor) -> None:
    weights = torch.rand(B, C * N, dtype=torch.float64)
    embedding.requires_grad_()
    inputs = (embedding, layer.vectors)
    plain = torch.autograd.grad((layer.distances(embedding).amin((2, 3)) * weights).sum(), inputs)
    ours = torch.autograd.grad((layer.nearest(embedding).distances * weights).sum(), inputs)
    assert_close(ours, plain)


@pytest.mark.parametrize("learns", ["embedding", "vectors"])
def test_gradient_of_only_one(learns: str, layer: Prototypes, embedding: Tensor) -> None:
    """Frozen prototypes, or a frozen backbone and attention, must not cost the other its gradient."""
    embedding.requires_grad_(learns == "embedding")
    layer.vectors.requires_grad_(learns == "vectors")
    layer.nearest(embedding).distances.sum().backward()
    assert (embedding.grad is not None) == (learns == "embedding")
    assert (layer.vectors.grad is not None) == (learns == "vectors")


@pytest.mark.parametrize(("images", "vectors"), [(0, 4), (2, 0)])
def test_nothing_to_compare_gives_gradients_that_are_0(images: int, vectors: int) -> None:
    patches, points = (
        torch.rand(images, N, D1, H * W, requires_grad=True),
        torch.rand(N, D1, vectors, requires_grad=True),
    )
    found = distances.NearestDistance.apply(patches, points, torch.zeros(images, N, vectors, dtype=torch.long))
    found.sum().backward()
    for each in (patches, points):
        assert each.grad is not None
        assert not each.grad.any()


def _kept_for_backward(compute: Callable[[], Tensor]) -> int:
    """Elements of the largest tensor that autograd saves."""
    sizes = [0]

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.untyped_storage().nbytes() // tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute()
    return max(sizes)


def test_no_map_of_every_prototype_is_kept_for_backward() -> None:
    batch, groups, classes, width, side = 4, 2, 100, 3, 10
    layer = Prototypes(torch.eye(classes).bool().repeat_interleave(groups, 0), groups, width)
    embedding = torch.rand(batch, groups, width, side, side, requires_grad=True)
    largest_input = max(embedding.numel(), layer.vectors.numel(), batch * len(layer))
    maps = batch * len(layer) * side * side
    assert maps > 20 * largest_input
    assert _kept_for_backward(lambda: layer.similarity(layer.nearest(embedding).distances)) <= largest_input
    negatives = torch.arange(100).view(2, 50)
    assert _kept_for_backward(lambda: layer.across_groups(embedding, negatives)) <= largest_input
    masks = torch.rand(batch, side, side)
    assert _kept_for_backward(lambda: layer.share_beside(embedding, masks)) <= largest_input
    assert _kept_for_backward(lambda: layer.similarity(layer.distances(embedding))) >= maps  # the watch can see it


# --- how much of a map lies beside the object --------------------------------------------------------------------


def beside(kind: type[Prototypes]) -> tuple[Prototypes, Tensor, Tensor]:
    """A layer, an embedding with a patch that is a prototype and a map that is 0 where there can be one, and masks."""
    torch.manual_seed(3)
    layer = kind(one_class_each(C, N), groups=N, width=D1).double()
    embedding = torch.randn(B, N, D1, H, W, dtype=torch.float64)
    embedding[0, 0, :, 1, 1] = layer.vectors.detach()[N]  # of the second class, first head
    if kind is CosinePrototypes:  # with its back to all of the image
        embedding[1, 1] = -layer.vectors.detach()[1, :, None, None]
    masks = torch.rand(B, H, W, dtype=torch.float64)
    return layer, layer.comparable(embedding).requires_grad_(), masks


@pytest.mark.parametrize("kind", [Prototypes, UnitPrototypes, CosinePrototypes])
def test_the_share_beside_and_its_gradient_are_those_of_the_maps(kind: type[Prototypes]) -> None:
    layer, embedding, masks = beside(kind)
    weights = torch.rand(B, C * N, dtype=torch.float64)
    plain = losses.background_bias(layer.activation(layer.distances(embedding)), masks)
    fused = layer.share_beside(embedding, masks)
    assert_close(fused, plain)
    assert (fused == 0).any() == (kind is CosinePrototypes)
    inputs = embedding, layer.vectors
    for one, other in zip(*(torch.autograd.grad((b * weights).sum(), inputs) for b in (fused, plain)), strict=True):
        assert_close(one, other, rtol=1e-6, atol=1e-9)
        assert one.abs().max() > 0


@pytest.mark.parametrize("kind", [Prototypes, UnitPrototypes, CosinePrototypes])
def test_gradcheck_of_the_share_beside(kind: type[Prototypes]) -> None:
    layer, _, masks = beside(kind)

    class Shares(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, embedding: Tensor) -> Tensor:
            return self.layer.share_beside(self.layer.comparable(embedding), masks)

    def shares(embedding: Tensor, vectors: Tensor) -> Tensor:
        return torch.func.functional_call(Shares(), {"layer.vectors": vectors}, (embedding,))

    apart = torch.randn(B, N, D1, H, W, dtype=torch.float64, requires_grad=True)  # no patch where d² has its minimum
    assert torch.autograd.gradcheck(shares, (apart, layer.vectors))
