"""How parts is trained: where its heads start, and the stages locate and discriminate, each against a slower way.

What locate changes, and what it leaves to the stages after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from torch import Tensor

from dapl.batches.sources import Batch
from dapl.config import Config, DiscriminateStage, LossConfig
from dapl.config.training import LocateConfig
from dapl.data.build import build_splits
from dapl.data.transforms import fit
from dapl.models import Parts, create_backbone
from dapl.models.contract import square_pixels
from dapl.models.parts import Locator, standardised
from dapl.processes.interface import SingleProcess
from dapl.runs.checkpoint import load_checkpoint
from dapl.runs.loading import load_run
from dapl.runs.run import Run
from dapl.training import losses
from dapl.training.parts import (
    LocateObjective,
    discriminants,
    discriminate,
    feature_foreground,
    k_means,
    start_heads,
    variation,
)
from dapl.training.projection import set_to_class_means
from dapl.training.trainer import train

from ..conftest import TINY_RUN, TINY_SYSTEMS


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_k_means_is_the_best_split_of_few_points() -> None:
    points = torch.randn(7, 2, generator=seeded()).double()

    def inertia(owners: tuple[int, ...]) -> float:
        total = 0.0
        for group in set(owners):
            own = [points[p] for p in range(7) if owners[p] == group]
            centre = sum(own) / len(own)
            total += sum(float((one - centre).square().sum()) for one in own)
        return total

    best = min(inertia(owners) for owners in itertools.product(range(2), repeat=7))
    centres = k_means(points, 2, seeded())
    assert float(torch.cdist(points, centres).amin(1).square().sum()) == pytest.approx(best)


@pytest.mark.parametrize("with_masks", [True, False])
@pytest.mark.parametrize("enlarged", [False, True])
def test_a_place_belongs_to_the_head_with_the_nearest_centre(with_masks: bool, enlarged: bool) -> None:
    """By all stages but the deepest; here none has to be brought to the grid of another."""
    deepest, *fine = (torch.randn(3, 4 + n, 4, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    fine = fine[: 1 + enlarged]
    masks = torch.rand(3, 4, 4, generator=seeded()) if with_masks else None
    locator = Locator([maps.shape[1] for maps in (*fine, deepest)], heads=3)
    small = locator.queries[-1].weight[:3].clone()
    assert start_heads(locator, [((*fine, deepest), masks)], seeded(), share=0.1)
    assert torch.equal(locator.queries[-1].weight[:3], small * 0.1)

    features = torch.cat([standardised(maps) for maps in fine], dim=1)
    cells = [(b, y, x) for b in range(3) for y in range(4) for x in range(4)]
    cells = [cell for cell in cells if masks is None or masks[cell] > 0.1]
    places = [features[b, :, y, x] for b, y, x in cells]
    mean = sum(places) / len(places)
    scored = sum(query(standardised(maps)) for query, maps in zip(locator.queries, fine, strict=False))
    # The centres, seen from the mean, and longer or shorter by one factor.
    centres = torch.cat([query.weight[:3, :, 0, 0] for query in list(locator.queries)[:-1]], dim=1)
    lengths = centres.square().sum(1)
    scale = lengths.mean().item() / 4.0  # the scale is such that lengths without it have the mean 4 / scale
    for place, (b, y, x) in zip(places, cells, strict=True):
        away = [(place - mean - centre / scale).square().sum().item() for centre in centres]
        assert int(scored[b, :3, y, x].argmax()) == away.index(min(away))


def test_variation_by_loop() -> None:
    maps = torch.randn(2, 3, 4, 5, generator=seeded())
    on_object = torch.rand(2, 4, 5, generator=seeded()) > 0.3
    on_object[0, 0], on_object[0, 1] = torch.tensor([True, False, False, False, False]), False  # one stands alone
    found = variation(maps, on_object)
    for b, y, x in itertools.product(range(2), range(4), range(5)):
        beside = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
        beside = [(v, u) for v, u in beside if 0 <= v < 4 and 0 <= u < 5 and on_object[b, v, u]]
        if on_object[b, y, x]:
            each = [float((maps[b, :, y, x] - maps[b, :, v, u]).square().sum()) / 3 for v, u in beside]
            assert found[b, y, x].item() == pytest.approx(sum(each) / len(each) if each else 0.0, rel=1e-5)
    assert found[0, 0, 0] == 0


def test_heads_start_where_features_vary() -> None:
    """Half of the object is even up to a trace, the other half is stripes of two kinds: both heads start on those."""
    bright, dark = torch.tensor([9.0, 0.0, 0.0, 0.0]), torch.tensor([0.0, 9.0, 0.0, 0.0])
    maps = torch.tensor([0.0, 0.0, 9.0, 0.0]).view(1, 4, 1, 1) + 0.01 * torch.randn(1, 4, 8, 8, generator=seeded())
    maps[0, :, :, 4::2], maps[0, :, :, 5::2] = bright.view(4, 1, 1), dark.view(4, 1, 1)
    masks = torch.ones(1, 8, 8)
    masks[:, :, 3] = 0  # between them, so that no place of the even half is beside a stripe

    def owners(power: float) -> list[Tensor]:
        locator = Locator((4,), heads=2)
        assert start_heads(locator, [((maps,), masks)], seeded(), power=power)
        owner = locator.queries[0](standardised(maps))[0, :2].argmax(0)
        return [owner[0, 0], owner[0, 4], owner[0, 5]]

    even, one, other = (int(place) for place in owners(power=0))
    assert one == other != even  # three kinds of places and two heads: the even one is half of all
    _, one, other = (int(place) for place in owners(power=4))
    assert one != other


def test_fewer_places_than_heads_change_nothing() -> None:
    locator = Locator((4,), heads=3)
    before = [parameter.clone() for parameter in locator.parameters()]
    masks = torch.zeros(1, 4, 4)
    masks[0, 0, :2] = 1
    assert not start_heads(locator, [((torch.randn(1, 4, 4, 4, generator=seeded()),), masks)], seeded())
    assert all(torch.equal(was, now) for was, now in zip(before, locator.parameters(), strict=True))


B, N, H, W = 3, 4, 5, 6


@pytest.fixture
def maps() -> Tensor:
    """B×(N + 2)×H×W; at each place the heads, the rest of the object and background sum to 1."""
    return torch.randn(B, N + 2, H, W, generator=torch.Generator().manual_seed(1)).softmax(1)


def test_the_heads_together_are_the_object_by_loop(maps: Tensor) -> None:
    masks = torch.rand(B, H, W, generator=torch.Generator().manual_seed(2))
    expected = 0.0
    for b in range(B):
        for y in range(H):
            for x in range(W):
                covered = sum(float(maps[b, n, y, x]) for n in range(N + 1))
                share = float(masks[b, y, x])
                expected -= share * math.log(covered) + (1 - share) * math.log(1 - covered)
    assert losses.coverage_of_object(1 - maps[:, -1], masks).item() == pytest.approx(expected / (B * H * W), rel=1e-5)


def test_concentration_by_loop(maps: Tensor) -> None:
    variances, area = [], (0.5, 0.1, 0.001)  # the last object is a speck, and counts as 0.02
    for b in range(B):
        for n in range(N):
            one = maps[b, n] / maps[b, n].sum()
            places = [((x + 0.5) / W, (y + 0.5) / H, float(one[y, x])) for y in range(H) for x in range(W)]
            mean_x, mean_y = sum(x * q for x, _, q in places), sum(y * q for _, y, q in places)
            variance = sum(q * ((x - mean_x) ** 2 + (y - mean_y) ** 2) for x, y, q in places)
            variances.append(variance / max(area[b], 0.02))
    found = losses.concentration(maps[:, :N], torch.tensor(area)).item()
    assert found == pytest.approx(sum(variances) / len(variances), rel=1e-4)


@pytest.mark.parametrize("in_image", [False, True])
def test_imbalance_by_loop(maps: Tensor, in_image: bool) -> None:
    def divergence(masses: list[float]) -> float:
        shares = [mass / sum(masses) for mass in masses]
        return sum(share * math.log(share * N) for share in shares)

    each = [[float(maps[b, n].sum()) for n in range(N)] for b in range(B)]
    together = [sum(masses[n] for masses in each) for n in range(N)]
    expected = sum(map(divergence, each)) / B if in_image else divergence(together)
    # 1e-6 is added to each mass, about 6 here, so that an empty head has a logarithm
    assert losses.imbalance_of_heads(maps[:, :N], in_image).item() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_equivariance_by_loop(maps: Tensor) -> None:
    mirrored = maps.flip(0)
    cosines = []
    for b in range(B):
        for n in range(N + 2):
            one = [float(maps[b, n, y, x]) for y in range(H) for x in range(W)]
            other = [float(mirrored[b, n, y, W - 1 - x]) for y in range(H) for x in range(W)]
            product = sum(p * q for p, q in zip(one, other, strict=True))
            cosines.append(product / math.hypot(*one) / math.hypot(*other))
    assert losses.equivariance(maps, mirrored).item() == pytest.approx(1 - sum(cosines) / len(cosines), rel=1e-4)


@pytest.mark.parametrize("blur", [0.0, 1.0])
def test_features_and_images_give_the_same_terms(blur: float) -> None:
    torch.manual_seed(0)
    backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False).eval()
    model = Parts(backbone, classes=3, heads=2, head_dim=4, crop_size=32, blur=blur, head_dropout=0.0)
    model.requires_grad_(False)
    seen = model.overview
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    labels, masks = torch.tensor([0, 2]), torch.rand(2, 4, 4)
    cached = Batch(torch.arange(2), labels, features=seen(images), mirrored=seen(images.flip(-1)), masks=masks)
    objective = LocateObjective(model, LossConfig())
    from_images, from_features = (
        objective(Batch(torch.arange(2), labels, images=images, masks=masks)),
        objective(cached),
    )
    assert from_images.keys() == from_features.keys()
    for name, value in from_images.items():
        torch.testing.assert_close(value, from_features[name])
    weights = LossConfig().locate
    total = from_images["cross_entropy"] + sum(  # of the scout, which only watches
        getattr(weights, name) * from_images[name] for name in type(weights).model_fields if name in from_images
    )
    torch.testing.assert_close(from_images["total"], total)


@pytest.mark.parametrize(("cross_entropy", "commitment"), [(0.0, 0.0), (2.0, 0.0), (0.0, 0.5), (2.0, 0.5)])
def test_the_class_has_a_say_where_it_has_weight(cross_entropy: float, commitment: float) -> None:
    torch.manual_seed(0)
    backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False).eval()
    model = Parts(backbone, classes=3, heads=2, head_dim=4, crop_size=32, head_dropout=0.0)
    batch = Batch(
        torch.arange(2), torch.tensor([0, 2]), images=torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    )
    others = dict.fromkeys(("foreground", "concentration", "balance", "balance_in_image", "equivariance"), 0.0)
    locate = LocateConfig(cross_entropy=cross_entropy, commitment=commitment, **others)
    terms = LocateObjective(model, LossConfig(locate=locate))(batch)
    terms["total"].backward()
    moved = any(query.weight.grad is not None and query.weight.grad.any() for query in model.locator.queries)
    assert moved == bool(cross_entropy or commitment)
    assert bool(model.scout.centres.grad.any())
    expected = (cross_entropy or 1.0) * terms["cross_entropy"] + commitment * terms.get("commitment", torch.tensor(0.0))
    torch.testing.assert_close(terms["total"], expected)


def test_commitment_by_loop() -> None:
    cosines = torch.rand(B, 5, N, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([4, 0, 4])
    expected = sum(1 - float(cosines[b, labels[b], n]) for b in range(B) for n in range(N)) / (B * N)
    assert losses.commitment(cosines, labels).item() == pytest.approx(expected, rel=1e-5)


def test_without_masks_the_features_tell_the_object_or_nothing_does() -> None:
    backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False).eval()
    model = Parts(backbone, classes=3, heads=2, head_dim=4, crop_size=32).requires_grad_(False)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    batch = Batch(torch.arange(2), torch.tensor([0, 1]), images=images)
    assert "foreground" not in LocateObjective(model, LossConfig())(batch)
    by_features = feature_foreground([backbone(images)])
    term = LocateObjective(model, LossConfig(), by_features)(batch)["foreground"]
    of_object = 1 - model.locator(backbone(images))[:, -1]
    torch.testing.assert_close(term, losses.coverage_of_object(of_object, by_features(backbone(images))))


def test_the_prototypes_are_training_crops_in_the_end(trained: Callable[[str], Path]) -> None:
    """Pointers: after the last epoch a prototype is what its head makes of the training image that its record names."""
    loaded = load_run(trained("parts"))
    model, images = loaded.model, build_splits(loaded.config.data).train
    assert isinstance(model, Parts)
    for record in loaded.records[:4]:
        assert record.image is not None
        shown = fit(images[images.names.index(record.image)], loaded.config.data.image_size).image
        with torch.no_grad():
            embedding = model(shown.unsqueeze(0)).embedding
        assert embedding.squares is not None
        assert record.box == square_pixels(embedding.squares[0, record.head], shown.shape[-1]).tolist()
        # alone, not in a batch as in training: the last bits differ
        seen = embedding.values[0, record.head, :, 0, 0]
        torch.testing.assert_close(model.prototypes.points()[record.index].detach(), seen, rtol=1e-3, atol=1e-4)


def test_a_run_that_was_cut_short_while_locating_goes_on(configured: Callable[..., Config], tmp_path: Path) -> None:
    config = configured(TINY_RUN | TINY_SYSTEMS["parts"] | {"model.system": "parts", "model.blur": 0.7})
    located, *others = config.schedule
    config = config.model_copy(update={"schedule": [located, DiscriminateStage(), *others]})
    whole = train(config, tmp_path / "whole", quiet=True)
    first = config.model_copy(update={"schedule": config.schedule[:1]})
    train(first, tmp_path / "cut", quiet=True)
    cut = Run.open(tmp_path / "cut")
    cut.config_file.write_text(whole.config_file.read_text())
    again = train(config, tmp_path / "cut", resume=True, quiet=True)
    one, other = load_checkpoint(whole.last).model, load_checkpoint(again.last).model
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_heads_start_from_the_places_that_the_config_says(configured: Callable[..., Config], tmp_path: Path) -> None:
    """The first step is so small that where the heads started is where they are."""
    fields = TINY_RUN | TINY_SYSTEMS["parts"] | {"model.system": "parts"}
    rates = {"locator": 1e-12, "scout": 1e-3}
    fields["schedule"] = [{"stage": "locate", "epochs": 1, "batch_size": 8, "learning_rates": rates}]
    queries = []
    for number, share in enumerate((0.0, 0.0, 0.7)):
        run = train(configured(fields | {"loss.locate.start_share": share}), tmp_path / str(number), quiet=True)
        model = load_run(run.folder).model
        assert isinstance(model, Parts)
        queries.append(model.locator.queries[0].weight)
    assert torch.allclose(queries[0], queries[1])
    assert not torch.allclose(queries[0], queries[2])


def test_prototypes_start_at_the_means_of_their_classes() -> None:
    torch.manual_seed(0)
    backbone = create_backbone("test_efficientnet", [-2, -1], weights="random", fuse=False).eval()
    model = Parts(backbone, classes=2, heads=2, head_dim=3, crop_size=32).requires_grad_(False)
    seen, where = torch.rand(5, 2, backbone.stage_channels[-1]), torch.rand(5, 2, 4, 4)
    labels = torch.tensor([0, 1, 0, 1, 1])
    batches = [
        Batch(rows, labels[rows], features=(seen[rows], where[rows])) for rows in (torch.arange(3), torch.arange(3, 5))
    ]
    set_to_class_means(model, batches, SingleProcess())
    values = model.embed((seen, where)).values
    for j, vector in enumerate(model.prototypes.vectors):
        own = [values[i, j % 2, :, 0, 0] for i in range(5) if labels[i] == j // 2]
        torch.testing.assert_close(vector, torch.stack(own).sum(0))


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
