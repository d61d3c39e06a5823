"""ProtoPNet against loops written from the paper, against CaBRNet's, and ProtoPShare's merging of its prototypes."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from dapl.models.protopnet import ProtoPNet

B, C, N, D0, D, H, W = 3, 4, 2, 5, 6, 3, 4
P = C * N
RECORDED = Path(__file__).parent / "fixtures" / "protopnet.json"


class FeaturesAsGiven(nn.Module):
    """B×D0×H×W features instead of images."""

    channels = D0

    def forward(self, features: Tensor) -> Tensor:
        return features


def build(**fields: Any) -> ProtoPNet:
    return ProtoPNet(FeaturesAsGiven(), C, N, D, **fields)  # type: ignore[arg-type]


def random_model(seed: int, **fields: Any) -> ProtoPNet:
    """In float64, every weight drawn anew."""
    model, generator = build(**fields).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
        model.prototypes.vectors.copy_(torch.rand(P, D, dtype=torch.float64, generator=generator))
    return model


@pytest.fixture
def model() -> ProtoPNet:
    return random_model(0)


@pytest.fixture
def features() -> Tensor:
    return torch.randn(B, D0, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# --- the paper, slowly ------------------------------------------------------------------------------------------


def slow_addon(model: ProtoPNet, patch: Tensor) -> list[float]:
    """1×1 convolution, ReLU, 1×1 convolution, sigmoid, of one place."""
    first, _, second, _ = model.addon
    values = patch.tolist()
    for layer, bend in ((first, lambda v: max(v, 0.0)), (second, lambda v: 1 / (1 + math.exp(-v)))):
        weights, biases = layer.weight[:, :, 0, 0].tolist(), layer.bias.tolist()
        values = [
            bend(sum(w * v for w, v in zip(row, values, strict=True)) + bias)
            for row, bias in zip(weights, biases, strict=True)
        ]
    return values


def slow_distances(model: ProtoPNet, features: Tensor) -> Tensor:
    """‖z − p‖² of every prototype and place: B×P×H×W."""
    found = torch.empty(len(features), P, H, W, dtype=torch.float64)
    for image in range(len(features)):
        for row in range(H):
            for column in range(W):
                z = slow_addon(model, features[image, :, row, column])
                for j, vector in enumerate(model.prototypes.vectors.tolist()):
                    found[image, j, row, column] = sum((a - b) ** 2 for a, b in zip(z, vector, strict=True))
    return found


def slow_logits(model: ProtoPNet, features: Tensor, epsilon: float = 1e-4) -> Tensor:
    """Minimum over places, then the log, then the last layer."""
    logits = torch.zeros(len(features), C, dtype=torch.float64)
    for image, maps in enumerate(slow_distances(model, features)):
        for j in range(P):
            distance = min(maps[j].flatten().tolist())
            score = math.log((distance + 1) / (distance + epsilon))
            for c in range(C):
                logits[image, c] += model.classifier.weight[c, j].item() * score
    return logits


@torch.no_grad()
def test_distances_and_scores_are_those_of_the_loops(model: ProtoPNet, features: Tensor) -> None:
    expected, output = slow_distances(model, features), model(features)
    assert_close(output.distances, expected.flatten(2).amin(2))
    assert output.locations.tolist() == expected.flatten(2).argmin(2).tolist()
    assert_close(model.prototypes.distances(output.embedding.values), expected)
    assert_close(output.scores, torch.log((output.distances + 1) / (output.distances + 1e-4)))


@torch.no_grad()
@pytest.mark.parametrize("epsilon", [1e-4, 0.05])
def test_logits_are_those_of_the_loops(epsilon: float, features: Tensor) -> None:
    model = random_model(0, epsilon=epsilon)
    assert_close(model(features).logits, slow_logits(model, features, epsilon))


def test_the_last_layer_starts_at_one_and_minus_a_half() -> None:
    model = build()
    assert model.classifier.bias is None
    for c in range(C):
        for j in range(P):
            assert model.classifier.weight[c, j].item() == (1.0 if j // N == c else -0.5)
    assert build(other_class_weight=0.0).classifier.weight.min() == 0  # as ProtoPShare starts


def test_prototypes_start_within_the_unit_cube_and_the_addon_as_published() -> None:
    torch.manual_seed(0)
    model = ProtoPNet(FeaturesAsGiven(), 100, 10, 128)  # type: ignore[arg-type]
    vectors = model.prototypes.vectors
    assert vectors.shape == (1000, 128)
    assert vectors.min() >= 0
    assert vectors.max() < 1
    assert vectors.mean().item() == pytest.approx(0.5, abs=0.01)
    for layer in (model.addon[0], model.addon[2]):
        assert not layer.bias.any()  # Kaiming, fan out of a 1×1 convolution: deviation √(2/128)
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 128), rel=0.1)
    for layer in (build(addon_init="fan_in").addon[index] for index in (0, 2)):  # as torch starts it
        assert layer.bias.any()
        assert layer.weight.abs().max() <= 1 / math.sqrt(layer.in_channels)


def test_only_weights_to_other_classes_are_penalised(model: ProtoPNet) -> None:
    model.prototypes.kept[5] = False
    expected = sum(
        abs(model.classifier.weight[c, j].item()) for c in range(C) for j in range(P) if j // N != c and j != 5
    )
    penalty = model.penalised_weights().abs().sum()
    assert penalty.item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(penalty, model.classifier.weight)
    for c in range(C):
        for j in range(P):
            assert (gradient[c, j] != 0).item() == (j // N != c and j != 5)
    before = model.penalised_weights().numel()
    model.absorb(0, [2])  # of class 0 and 1, and penalised to neither
    assert model.penalised_weights().numel() == before - 1


# --- merging, as ProtoPShare does it ----------------------------------------------------------------------------


@torch.no_grad()
def test_absorbing_sums_weights_and_unites_classes(model: ProtoPNet, features: Tensor) -> None:
    """As a network with the columns summed by hand, the others zero, and nothing marked."""
    before, by_hand = copy.deepcopy(model), copy.deepcopy(model)
    weight = by_hand.classifier.weight
    weight[:, 1] += weight[:, 4] + weight[:, 7]
    weight[:, 2] += weight[:, 3]
    weight[:, [3, 4, 7]] = 0
    model.absorb(1, [4, 7])
    model.absorb(2, [3])
    assert_close(model(features).logits, by_hand(features).logits)
    assert_close(model(features).logits, slow_logits(by_hand, features))
    assert_close(model.class_weights(), weight.T)
    assert model.prototypes.kept.nonzero().flatten().tolist() == [0, 1, 2, 5, 6]
    assert model.prototypes.membership[1].tolist() == [True, False, True, True]
    assert model.prototypes.membership[2].tolist() == [False, True, False, False]  # both were of class 1
    assert torch.equal(model.prototypes.vectors, before.prototypes.vectors)


@torch.no_grad()
def test_prototypes_that_answer_the_same_merge_without_a_trace(model: ProtoPNet, features: Tensor) -> None:
    model.prototypes.vectors[[3, 6]] = model.prototypes.vectors[0].clone()
    before = model(features).logits
    model.absorb(0, [3, 6])
    assert_close(model(features).logits, before)


def test_absorbed_twice_over(model: ProtoPNet) -> None:
    """Weights that came to a prototype go on with it; those it left behind count no more."""
    weight = model.classifier.weight.detach().clone()
    model.absorb(2, [5])
    model.absorb(0, [2])
    assert_close(model.classifier.weight[:, 0], weight[:, [0, 2, 5]].sum(1))
    assert model.prototypes.membership[0].tolist() == [True, True, True, False]
    assert model.prototypes.kept.tolist() == [True, True, False, True, True, False, True, True]


def test_classes_have_their_shared_prototypes(model: ProtoPNet) -> None:
    assert model.prototypes.by_class()[0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    model.absorb(1, [2, 6])
    table, counts = model.prototypes.by_class()
    members = [row[counted].tolist() for row, counted in zip(table, counts, strict=True)]
    assert members == [[0, 1], [1, 3], [4, 5], [1, 7]]


# --- CaBRNet ----------------------------------------------------------------------------------------------------


def cabrnet_copy(model: ProtoPNet, similarity: str) -> nn.Module:
    """CaBRNet's classifier (what comes behind the add-on) with the weights of a model of ours."""
    decision = pytest.importorskip(
        "cabrnet.archs.protopnet.decision", reason="cabrnet is not installed; pip install --no-deps cabrnet loguru"
    )
    vectors = model.prototypes.vectors
    theirs = decision.ProtoPNetClassifier(
        similarity_config={"name": similarity},
        num_classes=model.classes,
        num_features=vectors.shape[1],
        num_proto_per_class=len(vectors) // model.classes,
        compatibility_mode=similarity.startswith("Legacy"),
    ).eval()
    theirs.prototypes.copy_(vectors[:, :, None, None])
    theirs.last_layer.weight.copy_(model.classifier.weight)
    return theirs.to(vectors.dtype)


SIMILARITIES = ["ProtoPNetSimilarity", "LegacyProtoPNetSimilarity"]
"""Its own, and the one that reproduces the published code to the rounding."""


@torch.no_grad()
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_cabrnet_gives_the_same_logits(similarity: str) -> None:
    torch.manual_seed(0)
    model = ProtoPNet(FeaturesAsGiven(), 20, 10, 128).eval()  # type: ignore[arg-type]
    model.classifier.weight.add_(torch.randn_like(model.classifier.weight))
    features = 3 * torch.randn(6, D0, 7, 7)
    output = model(features)
    logits, distances = cabrnet_copy(model, similarity)(model.addon(features))
    assert logits.abs().max() > 5  # or the next line says little
    assert_close(output.logits, logits, rtol=0, atol=1e-4)
    assert_close(output.distances, distances, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_cabrnet_gives_the_logits_that_were_recorded(similarity: str) -> None:
    model, features, logits = recorded(torch.float64)
    theirs = cabrnet_copy(model, similarity).double()
    assert_close(theirs(model.addon(features))[0], logits, rtol=0, atol=1e-4)


def record() -> None:
    """Writes the fixture: weights, features and the logits of *this* code, in double precision.

    With cabrnet installed, the test above compares it with CaBRNet. Only to be made anew when the model is meant to
    change: ``python -c "import runpy; runpy.run_path('tests/models/test_protopnet.py')['record']()"``.
    """
    model = random_model(7)
    features = torch.randn(B, D0, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        logits = model(features).logits
    weights = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    content = {"weights": weights, "features": features.tolist(), "logits": logits.tolist()}
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(content) + "\n", encoding="utf-8")


def recorded(dtype: torch.dtype) -> tuple[ProtoPNet, Tensor, Tensor]:
    """Model, features and logits of the fixture."""
    content = json.loads(RECORDED.read_text(encoding="utf-8"))
    model = build().to(dtype)
    own, weights = model.state_dict(), content["weights"]
    kinds = {name: own[name].dtype if name in own else torch.bool for name in weights}  # whose they are was a matrix
    model.load_state_dict({name: torch.tensor(value, dtype=kinds[name]) for name, value in weights.items()})
    return model, *(torch.tensor(content[name], dtype=dtype) for name in ("features", "logits"))  # type: ignore


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_logits_are_those_that_were_recorded(dtype: torch.dtype, tolerance: float) -> None:
    model, features, logits = recorded(dtype)
    assert logits.abs().max() > 1
    assert_close(model(features).logits, logits, rtol=0, atol=tolerance)
