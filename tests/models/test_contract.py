"""What every registered system owes to training, projection, metrics and images; a new one is tested by itself."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.config import PARTS, ModelConfig
from dapl.models.build import SYSTEMS, build_model
from dapl.models.contract import PrototypeModel

B, C, SIZE = 2, 4, 64
BACKBONE = {"name": "mobilenetv2_100", "weights": "random", "stages": [-2, -1]}
SMALL = {
    "dapl": {"heads": 3, "head_dim": 4},
    "protopnet": {"prototypes_per_class": 3, "width": 8},
    "protopshare": {"prototypes_per_class": 3, "width": 8},
    "parts": {"heads": 3, "head_dim": 4, "crop_size": 32},
    "pixpnet": {"prototypes_per_class": 3, "width": 8},
    "dapl, cosine": {"heads": 3, "head_dim": 4, "similarity": "cosine"},
    "protopnet, cosine": {"prototypes_per_class": 3, "width": 8, "similarity": "cosine"},
}
"""Fields that make a system small; one without an entry is built with its defaults."""
VARIANTS = sorted({*SYSTEMS, *SMALL})


def small_config(variant: str) -> ModelConfig:
    fields = {"system": variant.split(",")[0], "backbone": BACKBONE, **SMALL.get(variant, {})}
    return TypeAdapter(ModelConfig).validate_python(fields)


@cache
def _built(system: str) -> PrototypeModel:
    return build_model(small_config(system), C, seed=3).eval()


@pytest.fixture(params=VARIANTS)
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(system: str) -> PrototypeModel:
    """In evaluation mode, with random weights; a copy, so that a test may change it."""
    return copy.deepcopy(_built(system))


@pytest.fixture
def with_prototypes(model: PrototypeModel) -> PrototypeModel:
    """A system that has prototypes, as all have but the black box."""
    if not len(model.prototypes):
        pytest.skip("the black box has no prototypes")
    return model


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (B, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_shapes(model: PrototypeModel, images: Tensor) -> None:
    output, count, groups = model(images), len(model.prototypes), model.prototypes.groups
    assert output.logits.shape == (B, C)
    assert output.scores.shape == (B, model.score_count)
    assert output.distances.shape == output.locations.shape == (B, count)
    assert output.locations.dtype == torch.long
    values = output.embedding.values
    assert values.shape[:2] == (B, groups)
    assert values.shape[2] == model.prototypes.vectors.shape[1]


@torch.no_grad()
def test_shapes_of_maps(with_prototypes: PrototypeModel, images: Tensor) -> None:
    model = with_prototypes
    output, count = model(images), len(model.prototypes)
    assert output.scores.shape == (B, count)
    height, width = output.embedding.grid
    assert output.locations.min() >= 0
    assert output.locations.max() < height * width
    maps = model.activation_maps(images)
    assert maps.shape == (B, count, height, width)
    assert maps.min() >= 0
    pixels = model.to_pixels(maps, (SIZE, SIZE))
    assert pixels.shape == (B, count, SIZE, SIZE)


def test_prototypes_say_whose_they_are(with_prototypes: PrototypeModel) -> None:
    model, prototypes = with_prototypes, with_prototypes.prototypes
    assert prototypes.membership.shape == (len(prototypes), C)
    assert prototypes.membership.dtype == prototypes.kept.dtype == torch.bool
    assert prototypes.membership.any(0).all()
    assert prototypes.membership.any(1).all()
    assert prototypes.kept.shape == (len(prototypes),)
    assert prototypes.kept.all()
    assert prototypes.group_of.shape == (len(prototypes),)
    assert set(prototypes.group_of.tolist()) == set(range(prototypes.groups))
    assert model.classes == C


@torch.no_grad()
def test_a_group_is_compared_with_its_own_prototypes(with_prototypes: PrototypeModel, images: Tensor) -> None:
    model = with_prototypes
    before = model(images)
    for group in range(model.prototypes.groups):
        embedding = before.embedding.values.clone()
        embedding[:, group] += 1
        moved = (model.prototypes.nearest(embedding).distances - before.distances).abs().amax(0) > 0
        assert torch.equal(moved, model.prototypes.group_of == group)


def test_prototypes_of_a_class(with_prototypes: PrototypeModel) -> None:
    model = with_prototypes
    prototypes = model.prototypes
    prototypes.kept[1] = False
    prototypes.add_classes(4, [0])  # now of class 0 too, as after merging
    labels = torch.tensor([2, 0, 2])
    named, counts = model.prototypes_of(labels)
    assert counts.shape == named.shape
    for label, numbers, counted in zip(labels.tolist(), named, counts, strict=True):
        own = (prototypes.membership[:, label] & prototypes.kept).nonzero().flatten()
        assert numbers[counted].tolist() == own.tolist()


@torch.no_grad()
def test_bytes_and_floats_are_the_same_image(model: PrototypeModel, images: Tensor) -> None:
    assert_close(model(images).logits, model(images.float() / 255).logits)


@torch.no_grad()
def test_features_can_be_cached(model: PrototypeModel, images: Tensor) -> None:
    whole, cut = model(images), model.from_features(model.extractor(images))
    assert torch.equal(whole.embedding.values, cut.embedding.values)
    for name in ("logits", "scores", "distances", "locations"):
        assert torch.equal(getattr(whole, name), getattr(cut, name)), name


@torch.no_grad()
def test_scores_can_be_cached(model: PrototypeModel, images: Tensor) -> None:
    output = model(images)
    assert torch.equal(model.classify(output.scores), output.logits)


@torch.no_grad()
@pytest.mark.parametrize("pruned", [[], [0, 5]])
def test_contributions_sum_to_the_logits(pruned: list[int], model: PrototypeModel, images: Tensor) -> None:
    if "classifier" in model.components():
        for parameter in model.components()["classifier"].parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    if len(model.prototypes):
        model.prototypes.kept[pruned] = False
    output = model(images)
    contributions = output.scores.unsqueeze(2) * model.class_weights()
    assert contributions.shape == (B, model.score_count, C)
    assert_close(contributions.sum(1), output.logits, rtol=0, atol=1e-4)


@torch.no_grad()
def test_pruned_prototypes_do_not_count(with_prototypes: PrototypeModel, images: Tensor) -> None:
    model = with_prototypes
    scores = model(images).scores
    changed = scores.clone()
    changed[:, 5] += 3
    assert not torch.equal(model.classify(changed), model.classify(scores))
    model.prototypes.kept[5] = False
    assert torch.equal(model.classify(changed), model.classify(scores))
    assert len(model.prototypes) == scores.shape[1]  # not renumbered


@torch.no_grad()
def test_maps_of_some_are_those_of_all(with_prototypes: PrototypeModel, images: Tensor) -> None:
    model = with_prototypes
    everything = model.activation_maps(images)
    same = torch.tensor([7, 0, 3])
    assert_close(model.activation_maps(images, same), everything[:, same], rtol=1e-4, atol=1e-4)
    own = torch.tensor([[1, 2], [4, 0]])
    expected = torch.stack([everything[image, own[image]] for image in range(B)])
    assert_close(model.activation_maps(images, own), expected, rtol=1e-4, atol=1e-4)
    output = model(images)
    assert_close(model.maps(output.embedding), everything)
    shown = output.scores.clamp_min(0)  # a map shows nothing where the score is negative
    assert shown.any()
    assert_close(everything.amax((2, 3)), shown, rtol=1e-4, atol=1e-4)
    at_locations = everything.flatten(2).gather(2, output.locations.unsqueeze(2)).squeeze(2)
    assert_close(at_locations, shown, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_state_round_trip(system: str, model: PrototypeModel, images: Tensor) -> None:
    if len(model.prototypes):
        model.prototypes.kept[2] = False
        model.prototypes.add_classes(2, [3])
    other = build_model(small_config(system), C, seed=4).eval()
    assert not torch.equal(other(images).logits, model(images).logits)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.prototypes.kept, model.prototypes.kept)
    assert torch.equal(other.prototypes.membership, model.prototypes.membership)
    labels = torch.tensor([0, 3])
    for mine, theirs in zip(model.prototypes_of(labels), other.prototypes_of(labels), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(other(images).logits, model(images).logits)


@torch.no_grad()
def test_evaluation_is_deterministic_and_per_image(model: PrototypeModel, images: Tensor) -> None:
    first = model(images).logits
    assert torch.equal(model(images).logits, first)
    alone = torch.cat([model(image.unsqueeze(0)).logits for image in images])
    assert_close(alone, first, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_gradients_reach_every_part(training: bool, model: PrototypeModel, images: Tensor) -> None:
    model.train(training)
    output = model(images)
    nn.functional.cross_entropy(output.logits, torch.tensor([0, 3])).backward()
    for name, part in model.components().items():
        if name == "scout":  # of parts: a classifier that learns, with the locator, in the stage locate
            continue
        gradients = [parameter.grad for parameter in part.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients), name
        assert any(gradient.any() for gradient in gradients if gradient is not None), name


def test_parts_are_those_that_a_schedule_may_name(model: PrototypeModel) -> None:
    parts = model.components()
    assert set(parts) <= set(PARTS)
    assert "backbone" in parts
    held = [id(parameter) for part in parts.values() for parameter in part.parameters()]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters() if parameter.numel())


def test_the_seed_decides_the_weights_and_nothing_else(system: str) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, same, other = (build_model(small_config(system), C, seed=seed).state_dict() for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_model_for_a_checkpoint_needs_no_weights(system: str) -> None:
    config = small_config(system)
    hub = config.model_copy(update={"backbone": config.backbone.model_copy(update={"weights": "/no/such/file.pth"})})
    assert len(build_model(hub, C, pretrained=False).prototypes) == len(_built(system).prototypes)
