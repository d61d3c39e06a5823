"""Projection against a slow loop written from the paper: the nearest patch of the own class with FG_Ratio > τ_FG."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.metrics.test_regions import slow_region
from torch import Tensor
from torch.testing import assert_close

from dapl.batches.run_data import RunData
from dapl.batches.sources import Batch, in_order
from dapl.metrics.functional import activation_regions
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.runs.checkpoint import fresh_records
from dapl.runs.schemas import PrototypeRecord
from dapl.training.projection import Projection, project, record_projection

N, CLASSES, GROUPS, WIDTH, H, W = 13, 3, 2, 5, 3, 4


@pytest.fixture
def drawn(patches: Callable) -> tuple[PrototypeModel, Tensor, Tensor, Tensor]:
    """A model, features n×GD×H×W, labels and foreground shares n×H×W; at most cells are half foreground or less."""
    generator = torch.Generator().manual_seed(1)
    model = patches(CLASSES, GROUPS, WIDTH)
    with torch.no_grad():
        model.prototypes.vectors.copy_(torch.rand(model.prototypes.vectors.shape, generator=generator))
    features = torch.rand(N, GROUPS * WIDTH, H, W, generator=generator)
    shares = torch.rand(N, H, W, generator=generator) ** 2
    return model, features, torch.arange(N) % CLASSES, shares


def batched(
    features: Tensor, labels: Tensor, masks: Tensor | None, order: list[Tensor] | None = None
) -> Iterator[Batch]:
    for rows in order or in_order(len(features), 4):
        yield Batch(rows, labels[rows], features=features[rows], masks=None if masks is None else masks[rows])


def slow_projection(
    model: PrototypeModel, features: Tensor, labels: Tensor, shares: Tensor | None, threshold: float | None
) -> list[tuple[int, int, float, bool]]:
    """(image, location, squared distance, grounded) of each prototype, patch by patch."""
    found = []
    for j, vector in enumerate(model.prototypes.vectors.tolist()):
        label, head = divmod(j, GROUPS)
        candidates = []
        for image in range(len(features)):
            for row in range(H):
                for column in range(W):
                    if labels[image] == label:
                        patch = features[image, head * WIDTH : (head + 1) * WIDTH, row, column].tolist()
                        distance = sum((z - p) ** 2 for z, p in zip(patch, vector, strict=True))
                        share = 1.0 if shares is None else float(shares[image, row, column])
                        candidates.append((share, distance, image, row * W + column))
        limit = -1.0 if threshold is None or shares is None else threshold
        enough = [candidate for candidate in candidates if candidate[0] > limit]
        highest = max(candidate[0] for candidate in candidates)
        pool = enough or [candidate for candidate in candidates if candidate[0] == highest]
        _, distance, image, location = min(pool, key=lambda candidate: candidate[1:])
        found.append((image, location, distance, bool(enough)))
    return found


def assert_found(found: Projection, expected: list[tuple[int, int, float, bool]]) -> None:
    assert found.image.tolist() == [image for image, _, _, _ in expected]
    assert found.location.tolist() == [location for _, location, _, _ in expected]
    assert found.distance.tolist() == pytest.approx([distance for _, _, distance, _ in expected], rel=1e-4)
    assert found.grounded.tolist() == [grounded for _, _, _, grounded in expected]


@pytest.mark.parametrize("threshold", [0.5, 0.9, None])
def test_projection_is_the_papers(drawn: tuple, processes: Processes, threshold: float | None) -> None:
    model, features, labels, shares = drawn
    expected = slow_projection(model, features, labels, shares, threshold)
    unconstrained = slow_projection(model, features, labels, shares, None)
    assert threshold is None or expected != unconstrained, "the masks make no difference, so this test says nothing"
    found = project(model, batched(features, labels, shares), threshold, processes)
    assert_found(found, expected)
    for j, (image, location, _, _) in enumerate(expected):
        patch = features[image].flatten(1)[:, location].view(GROUPS, WIDTH)[j % GROUPS]
        assert torch.equal(model.prototypes.vectors[j], patch)
        assert found.share[j] == shares[image].flatten()[location]


def test_without_masks_every_patch_is_allowed(drawn: tuple, processes: Processes) -> None:
    model, features, labels, _ = drawn
    expected = slow_projection(model, features, labels, None, 0.5)
    found = project(model, batched(features, labels, None), 0.5, processes)
    assert_found(found, expected)
    assert found.share.isnan().all()


def test_without_a_patch_above_the_threshold_the_highest_share_is_taken(drawn: tuple, processes: Processes) -> None:
    model, features, labels, shares = drawn
    shares[labels == 1] *= 0.4
    expected = slow_projection(model, features, labels, shares, 0.5)
    found = project(model, batched(features, labels, shares), 0.5, processes)
    assert_found(found, expected)
    assert found.grounded.tolist() == [j // GROUPS != 1 for j in range(CLASSES * GROUPS)]
    assert torch.allclose(found.share[2:4], shares[labels == 1].max())


def test_a_share_equal_to_the_threshold_is_not_enough(drawn: tuple, processes: Processes) -> None:
    model, features, labels, shares = drawn
    half = torch.full_like(shares, 0.5)
    expected = slow_projection(model, features, labels, half, 0.5)
    found = project(copy.deepcopy(model), batched(features, labels, half), 0.5, processes)
    assert_found(found, expected)
    assert not found.grounded.any()
    half[:, 1, 1] = 0.75  # the only patch of each image that is allowed
    found = project(model, batched(features, labels, half), 0.5, processes)
    assert found.grounded.all()
    assert found.location.tolist() == [W + 1] * 6


def test_a_class_of_pure_background_still_gets_a_patch(drawn: tuple, processes: Processes) -> None:
    model, features, labels, shares = drawn
    expected = slow_projection(model, features, labels, torch.zeros_like(shares), 0.5)
    found = project(model, batched(features, labels, torch.zeros_like(shares)), 0.5, processes)
    assert_found(found, expected)
    assert not found.grounded.any()


@pytest.mark.parametrize("flat", [False, True], ids=["enough foreground", "fallback"])
def test_ties_go_to_the_first_image_and_place(drawn: tuple, processes: Processes, flat: bool) -> None:
    model, features, labels, shares = drawn
    features[:] = features[0, :, :1, :1]  # all patches of all images are one
    masks = torch.full_like(shares, 0.3 if flat else 0.9)
    backwards = [rows.flip(0) for rows in reversed(in_order(N, 4))]
    found = project(model, batched(features, labels, masks, backwards), 0.5, processes)
    assert found.image.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.location.tolist() == [0] * 6


@pytest.mark.parametrize("batch_size", [1, 3, N])
def test_batches_and_their_order_do_not_matter(drawn: tuple, processes: Processes, batch_size: int) -> None:
    model, features, labels, shares = drawn
    start = model.prototypes.vectors.detach().clone()
    expected = project(model, batched(features, labels, shares), 0.8, processes)
    with torch.no_grad():
        model.prototypes.vectors.copy_(start)
    mixed = torch.randperm(N, generator=torch.Generator().manual_seed(0)).split(batch_size)
    found = project(model, batched(features, labels, shares, list(mixed)), 0.8, processes)
    for name in ("image", "location", "share", "grounded"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert_close(found.distance, expected.distance)
    assert_close(found.maps, expected.maps)


def test_a_class_without_images_keeps_its_prototypes(drawn: tuple, processes: Processes) -> None:
    model, features, labels, shares = drawn
    before = model.prototypes.vectors.detach().clone()
    found = project(model, batched(features, labels.clamp(max=1), shares), 0.5, processes)
    assert torch.equal(model.prototypes.vectors[4:], before[4:])
    assert found.image[4:].tolist() == [-1, -1]
    records = [PrototypeRecord(j, ["a"], 0) for j in range(6)]

    class Names:
        names = [f"image {number}" for number in range(N)]

    regions = torch.ones(6, 8, 8, dtype=torch.bool)
    updated = record_projection(records, found, Names, regions)  # type: ignore[arg-type]
    assert [record.image is None for record in updated] == [False] * 4 + [True] * 2


def test_the_map_is_that_of_the_projected_prototype_on_its_image(drawn: tuple, processes: Processes) -> None:
    model, features, labels, shares = drawn
    found = project(model, batched(features, labels, shares), 0.5, processes)
    with torch.no_grad():
        everywhere = model.activation_maps(features[found.image])
    assert_close(found.maps, everywhere[torch.arange(6), torch.arange(6)], rtol=1e-4, atol=1e-2)
    assert found.maps.flatten(1).argmax(1).tolist() == found.location.tolist()


def test_memory_does_not_grow_with_the_images(patches: Callable, processes: Processes) -> None:
    model = patches(2, 2, 8)
    alive: list[int] = []

    def endless(count: int) -> Iterator[Batch]:
        for number in range(count):
            rows = torch.arange(4) + 4 * number
            yield Batch(rows, rows % 2, features=torch.rand(4, 16, 8, 8), masks=torch.rand(4, 8, 8))
            if number in (2, 11):
                alive.append(sum(value.numel() for value in gc.get_objects() if type(value) is Tensor))

    project(model, endless(12), 0.5, processes)
    # a batch holds more than 4,000 numbers, its distances alone 32: nine of either would show
    assert alive[1] - alive[0] < 9 * 32


# --- on images ----------------------------------------------------------------------------------------------------


def on_images(model: PrototypeModel, run_data: RunData, processes: Processes) -> list[PrototypeRecord]:
    source = run_data.source("train", model)
    found = project(model, source.batches(in_order(len(source), 4)), 0.5, processes)
    regions = activation_regions(found.maps.unsqueeze(1), (64, 64)).squeeze(1)
    dataset = run_data.dataset("train")
    return record_projection(fresh_records(model, dataset.classes), found, dataset, regions)


@torch.no_grad()
def test_records_can_be_recomputed_from_the_image(
    model: PrototypeModel, run_data: RunData, processes: Processes
) -> None:
    before = model.prototypes.vectors.clone()
    records = on_images(model, run_data, processes)
    dataset = run_data.dataset("train")
    assert len(records) == 6
    for j, record in enumerate(records):
        assert (record.index, record.head) == (j, j % 2)
        assert record.classes == [dataset.classes[j // 2]]
        sample = dataset[dataset.names.index(record.image)]
        assert sample.label == j // 2
        embedding = model.embed(model.backbone(sample.image.unsqueeze(0))).values[0, j % 2]  # D×H×W
        row, column = record.location
        patch = embedding[:, row, column]
        assert_close(model.prototypes.vectors[j], patch, rtol=0, atol=1e-5)
        assert record.distance == pytest.approx(float((patch - before[j]).square().sum()), abs=1e-5)
        cell = sample.mask[16 * row : 16 * (row + 1), 16 * column : 16 * (column + 1)]
        assert record.foreground_share == pytest.approx(float(cell.float().mean()), abs=1e-6)
        assert record.grounded == (record.foreground_share > 0.5)
        assert record.box == slow_box(embedding, model.prototypes.vectors[j])


def slow_box(embedding: Tensor, vector: Tensor) -> list[int] | None:
    """Bounds of the pixels that reach the 95th percentile of the log-similarity map, upsampled bicubically."""
    squares = (embedding.double() - vector.double()[:, None, None]).square().sum(0)
    similarity = torch.log((squares + 1) / (squares + 1e-4))
    pixels = F.interpolate(similarity[None, None], size=(64, 64), mode="bicubic", align_corners=False)[0, 0]
    largest = float(similarity.max())
    if largest - float(similarity.min()) <= 1e-3 * largest:  # flat: no region
        return None
    rows, columns = slow_region(pixels, 64 * 64 - 3891, largest).nonzero().unbind(1)  # 3891 = ⌈0.95 · 4095⌉
    return [int(end) for end in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)]


def test_a_second_projection_changes_nothing(model: PrototypeModel, run_data: RunData, processes: Processes) -> None:
    first = on_images(model, run_data, processes)
    vectors = model.prototypes.vectors.detach().clone()
    second = on_images(model, run_data, processes)
    assert torch.equal(model.prototypes.vectors, vectors)
    assert [record.image for record in second] == [record.image for record in first]
    assert [record.distance for record in second] == pytest.approx([0.0] * len(second), abs=1e-10)
