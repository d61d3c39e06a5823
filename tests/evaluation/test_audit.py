"""Auditing models from outside: the contract, and an original ProtoPNet from nothing but its tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor

from dapl.batches.sources import grid_masks
from dapl.common.errors import DaplError
from dapl.data.sample import Subset
from dapl.data.toybirds import ToyBirds
from dapl.data.transforms import fit
from dapl.evaluation import Evaluation, EvaluationProtocol, audit, table
from dapl.evaluation.original_protopnet import read_protopnet
from dapl.metrics import functional as F
from dapl.runs.loading import load_run

SIZE = 64


@pytest.fixture(scope="module")
def birds() -> ToyBirds:
    return ToyBirds(classes=3, images_per_class=3, size=SIZE, split="test")


class TwoPlaces:
    """Prototypes that look at two fixed places of any image; the last class has one prototype less."""

    membership = torch.tensor([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]).bool()

    def maps(self, images: Tensor, labels: Tensor) -> Tensor:
        maps = torch.full((len(images), 2, 4, 4), 0.01)
        maps[:, 0, 1, 1] = 1
        maps[:, 1, 2, 2] = 1
        return maps


def test_a_model_needs_only_maps_and_a_table(birds: ToyBirds):
    result = audit(TwoPlaces(), birds, size=SIZE, quiet=True)
    assert {"coverage", "diversity", "background_bias", "region_background_share"} <= result.numbers.keys()
    assert "accuracy" not in result.numbers
    assert result.missing == {}
    assert result["coverage"] > 0
    assert result["redundancy"] == 0  # the two places share no pixel
    assert result.prototypes == {"prototypes": 5, "prototypes_kept": 5}


def test_prototypes_that_a_class_does_not_have_do_not_count(birds: ToyBirds):
    class Whole(TwoPlaces):
        """The second prototype looks everywhere."""

        def maps(self, images: Tensor, labels: Tensor) -> Tensor:
            maps = super().maps(images, labels)
            maps[:, 1] = 1
            return maps

    last = Subset(birds, [6, 7, 8])  # images of the class with one prototype
    result = audit(Whole(), last, size=SIZE, quiet=True)
    assert result["coverage"] == audit(TwoPlaces(), last, size=SIZE, quiet=True)["coverage"]


def test_an_audit_of_our_own_model_gives_the_numbers_of_evaluate(trained: Path, evaluated: tuple[Path, Evaluation]):
    model = load_run(trained).model

    class Adapter:
        membership = model.prototypes.membership

        def maps(self, images: Tensor, labels: Tensor) -> Tensor:
            return model.activation_maps(images, model.prototypes_of(labels)[0])

        def logits(self, images: Tensor) -> Tensor:
            return model(images).logits

    test = ToyBirds(classes=3, images_per_class=6, size=SIZE, split="test")
    result = audit(Adapter(), test, size=SIZE, batch=7, quiet=True)
    expected = evaluated[1]
    own = {"sparsity", "class_size", "explanation_size"}
    assert result.numbers.keys() == expected.numbers.keys() - own
    for name, number in result.numbers.items():
        assert number.value == pytest.approx(expected[name], abs=1e-5), name


def test_files_are_written_where_asked(birds: ToyBirds, tmp_path: Path):
    result = audit(TwoPlaces(), birds, size=SIZE, out=tmp_path, name="birds", quiet=True)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["numbers"]["coverage"]["value"] == result["coverage"]
    assert {path.name for path in (tmp_path / "metrics").iterdir()} >= {
        "per_class.csv",
        "per_part.csv",
        "redundancy.png",
    }


def test_negative_maps_have_no_background_share_and_say_so(birds: ToyBirds):
    class Negative(TwoPlaces):
        def maps(self, images: Tensor, labels: Tensor) -> Tensor:
            return super().maps(images, labels) - 2

    result = audit(Negative(), birds, size=SIZE, quiet=True)
    assert "background_bias" not in result.numbers
    assert "negative values" in result.missing["background_bias"]
    assert result["coverage"] == audit(TwoPlaces(), birds, size=SIZE, quiet=True)["coverage"]
    assert "not measured: background bias, oirr: the maps hold negative values" in " ".join(table(result).split())


def test_what_an_audit_cannot_do_is_said(birds: ToyBirds):
    result = audit(TwoPlaces(), birds, size=SIZE, metrics="accuracy,stability,coverage", quiet=True)
    assert "no `logits` method" in result.missing["accuracy"]
    assert "an audit has only maps" in result.missing["stability"]
    assert "coverage" in result.numbers


def test_a_model_of_other_classes_or_shapes_is_refused(birds: ToyBirds):
    class Fewer(TwoPlaces):
        membership = torch.eye(2).bool()

    class Flat(TwoPlaces):
        def maps(self, images: Tensor, labels: Tensor) -> Tensor:
            return super().maps(images, labels)[:, :1]

    with pytest.raises(DaplError, match="membership is 2×2, but must be prototypes × classes, and the data has 3"):
        audit(Fewer(), birds, size=SIZE, quiet=True)
    with pytest.raises(DaplError, match="maps: the model gave 9×1×4×4, but 9 images and 2 prototypes"):
        audit(Flat(), birds, size=SIZE, quiet=True)
    with pytest.raises(DaplError, match="an audit does not know where prototypes came from"):
        audit(TwoPlaces(), birds, EvaluationProtocol(scope="projection"), size=SIZE, quiet=True)


# --- an original ProtoPNet --------------------------------------------------------------------------------------


def protopnet_state(architecture: str, classes: int = 3, per_class: int = 2, width: int = 8) -> dict[str, Tensor]:
    """A state dict as ``PPNet.state_dict()`` of github.com/cfchen-duke/ProtoPNet has it, random weights."""
    torch.manual_seed(0)
    with torch.device("meta"):  # only the names and shapes: the classifier of a VGG has 120 million random numbers
        shapes = torchvision.models.get_model(architecture, weights=None).state_dict()
    keep = {
        name: torch.randn(like.shape) * 0.05 if like.ndim > 1 else torch.rand(like.shape).to(like.dtype)
        for name, like in shapes.items()
        if not name.startswith(("fc.", "classifier.", "avgpool."))
    }
    channels = {"resnet18": 512, "vgg11": 512, "densenet121": 1024}[architecture]
    prototypes = classes * per_class
    own = torch.eye(classes).repeat_interleave(per_class, dim=1)
    return {
        "prototype_vectors": torch.rand(prototypes, width, 1, 1),
        "ones": torch.ones(prototypes, width, 1, 1),
        **{f"features.{name}": tensor for name, tensor in keep.items()},
        "add_on_layers.0.weight": torch.randn(width, channels, 1, 1) * 0.1,
        "add_on_layers.0.bias": torch.randn(width) * 0.1,
        "add_on_layers.2.weight": torch.randn(width, width, 1, 1),
        "add_on_layers.2.bias": torch.randn(width) * 0.1,
        "last_layer.weight": own * 1.5 - 0.5 + 0.1 * torch.rand(classes, prototypes),
    }


def reference(state: dict[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
    """ProtoPNet's own forward, by plain operations: all maps B×P×H×W, and logits."""
    conv = torch.nn.functional.conv2d
    z = conv(features, state["add_on_layers.0.weight"], state["add_on_layers.0.bias"]).relu()
    z = conv(z, state["add_on_layers.2.weight"], state["add_on_layers.2.bias"]).sigmoid()
    vectors = state["prototype_vectors"]
    squares = conv(z**2, state["ones"]) - 2 * conv(z, vectors) + (vectors**2).sum((1, 2, 3)).view(-1, 1, 1)
    distances = squares.relu()
    nearest = -torch.nn.functional.max_pool2d(-distances, distances.shape[-2:]).flatten(1)
    similarity = torch.log((nearest + 1) / (nearest + 1e-4))
    return torch.log((distances + 1) / (distances + 1e-4)), similarity @ state["last_layer.weight"].T


def resnet_features(state: dict[str, Tensor], images: Tensor) -> Tensor:
    network = torchvision.models.resnet18(weights=None)
    network.load_state_dict({k.removeprefix("features."): v for k, v in state.items()}, strict=False)
    network.eval()
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    for layer in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"):
        x = getattr(network, layer)(x)
    return x


@torch.no_grad()
def test_an_original_protopnet_is_read_and_audited(birds: ToyBirds, tmp_path: Path):
    state = protopnet_state("resnet18")
    torch.save(state, tmp_path / "ppnet.pth")
    model = read_protopnet(tmp_path / "ppnet.pth", "resnet18")
    samples = [fit(birds[index], SIZE) for index in range(len(birds))]
    images = torch.stack([sample.image.as_subclass(Tensor) for sample in samples])
    labels = torch.tensor(list(birds.labels))
    maps, logits = reference(state, resnet_features(state, images.float()))
    own = torch.stack([labels * 2, labels * 2 + 1], dim=1)
    expected = maps[torch.arange(len(labels))[:, None], own]
    torch.testing.assert_close(model.maps(images, labels), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.logits(images), logits, rtol=1e-3, atol=1e-3)

    result = audit(model, birds, size=SIZE, quiet=True)
    parts = torch.stack([sample.part_masks.as_subclass(Tensor).bool() for sample in samples])  # type: ignore[union-attr]
    masks = torch.stack([sample.mask.as_subclass(Tensor) for sample in samples])  # type: ignore[union-attr]
    measured = model.maps(images, labels)
    regions, visible = F.activation_regions(measured, SIZE), F.visible_parts(parts)
    assigned = F.assign(F.overlap(regions, parts), 0.2, visible)
    assert result["coverage"] == pytest.approx(F.coverage(assigned, visible).mean().item(), abs=1e-5)
    assert result["diversity"] == pytest.approx(F.diversity(regions, assigned, visible).mean().item(), abs=1e-5)
    bias = F.background_bias(measured, grid_masks(masks, measured.shape[-2:])).mean().item()
    assert result["background_bias"] == pytest.approx(bias, abs=1e-5)
    assert result["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


@pytest.mark.parametrize("architecture", ["vgg11", "densenet121"])
def test_other_backbones_of_protopnet(architecture: str, tmp_path: Path):
    state = protopnet_state(architecture)
    save_file(state, tmp_path / "ppnet.safetensors")
    model = read_protopnet(tmp_path / "ppnet.safetensors", architecture)
    maps = model.maps(torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8), torch.tensor([0, 2]))
    assert maps.shape == (2, 2, 2, 2)
    assert (maps >= 0).all()


def test_a_pruned_protopnet_knows_its_classes_from_the_last_layer(tmp_path: Path):
    state = protopnet_state("resnet18")
    for name, axis in (("prototype_vectors", 0), ("ones", 0), ("last_layer.weight", 1)):
        state[name] = state[name].index_select(axis, torch.tensor([0, 2, 3, 4, 5]))
    torch.save(state, tmp_path / "pruned.pth")
    model = read_protopnet(tmp_path / "pruned.pth", "resnet18")
    assert model.membership.int().argmax(1).tolist() == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("change", "architecture", "message"),
    [
        (lambda s: s.pop("prototype_vectors"), "resnet18", "has no 'prototype_vectors'"),
        (lambda s: s.pop("features.conv1.weight"), "resnet18", "conv1.weight is missing. Is it another architecture"),
        (lambda s: None, "resnet34", "Is it another architecture"),
        (lambda s: None, "resnet_18", "did you mean 'resnet18'"),
        (lambda s: s.update(ones=s["ones"], prototype_vectors=torch.rand(6, 8, 2, 2)), "resnet18", "expected P×D×1×1"),
    ],
)
def test_files_that_are_something_else_are_refused(change, architecture: str, message: str, tmp_path: Path):
    state = protopnet_state("resnet18")
    change(state)
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(DaplError, match=message):
        read_protopnet(tmp_path / "other.pth", architecture)
