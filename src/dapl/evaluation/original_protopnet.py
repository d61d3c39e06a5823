"""An original ProtoPNet (Chen et al., 2019; github.com/cfchen-duke/ProtoPNet) from its state dict, to be audited.

The worked example of docs/audit.md: a model that was trained elsewhere, by other code, of which we have the tensors.
"""

from __future__ import annotations

from pathlib import Path

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
import torch
import torchvision
from torch import Tensor, nn

from dapl.common.errors import DaplError, nearest
from dapl.data.transforms import normalise
from dapl.models.prototypes import class_table, log_similarity
from dapl.models.weights import StateDict, read_state_dict

ARCHITECTURES = (
    *(f"resnet{layers}" for layers in (18, 34, 50, 101, 152)),
    *(f"densenet{layers}" for layers in (121, 161, 169, 201)),
    *(f"vgg{layers}{norm}" for layers in (11, 13, 16, 19) for norm in ("", "_bn")),
)
"""The backbones that ProtoPNet builds; its names and torchvision's are the same."""
_RESNET_LAYERS = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")


class OriginalProtoPNet(nn.Module):
    """Backbone, add-on and 1×1 prototypes compared with every patch; meets `dapl.evaluation.PrototypeMaps`."""

    membership: Tensor
    vectors: Tensor
    class_weights: Tensor

    def __init__(
        self, features: nn.Module, addon: nn.Module, vectors: Tensor, class_weights: Tensor, epsilon: float = 1e-4
    ) -> None:
        """``vectors``: P×D; ``class_weights``: C×P, the last layer.

        The file does not say whose a prototype is, but the last layer does: a prototype is tied to its own class by 1
        and to the others by −0.5 at first, and only the latter are driven to 0.
        """
        super().__init__()
        self.features, self.addon, self.epsilon = features, addon, epsilon
        self.register_buffer("vectors", vectors)
        self.register_buffer("class_weights", class_weights)
        own = class_weights.argmax(0)
        self.register_buffer("membership", torch.nn.functional.one_hot(own, len(class_weights)).bool())

    def maps(self, images: Tensor, labels: Tensor) -> Tensor:
        """log((d² + 1)/(d² + ε)) of the prototypes of each image's class: uint8 B×3×S×S, B → B×M×H×W."""
        table, _ = class_table(self.membership, torch.ones_like(self.membership[:, 0]))
        return log_similarity(self._distances(images, self.vectors[table[labels]]), self.epsilon)

    def logits(self, images: Tensor) -> Tensor:
        """uint8 B×3×S×S → B×C."""
        nearest_patch = self._distances(images, self.vectors.expand(len(images), -1, -1)).flatten(2).amin(2)
        return log_similarity(nearest_patch, self.epsilon) @ self.class_weights.T

    def _distances(self, images: Tensor, vectors: Tensor) -> Tensor:
        """‖z − p‖² of vectors B×M×D with every patch: B×M×H×W."""
        embedding = self.addon(self.features(normalise(images)))
        patches = embedding.flatten(2)
        squares = patches.square().sum(1, keepdim=True) + vectors.square().sum(2, keepdim=True)
        return (squares - 2 * vectors @ patches).clamp_min(0).unflatten(2, embedding.shape[-2:])


def read_protopnet(path: Path | str, architecture: str) -> OriginalProtoPNet:
    """From a file that ``torch.save(ppnet.state_dict(), path)`` wrote, or the same as safetensors; runs no code of it.

    ``architecture`` is ProtoPNet's ``base_architecture``, e.g. ``resnet34``. Files of whole pickled models, which
    ProtoPNet's own ``save_model_w_condition`` writes, are refused: load them where you trust them and save the state
    dict.
    """
    path = Path(path)
    state = {name.removeprefix("module."): tensor for name, tensor in read_state_dict(path).items()}
    for name in ("prototype_vectors", "last_layer.weight", "add_on_layers.0.weight"):
        if name not in state:
            raise DaplError(f"{path}: has no '{name}', so it is not the state dict of an original ProtoPNet.")
    vectors, class_weights = state["prototype_vectors"].float(), state["last_layer.weight"].float()
    if vectors.ndim != 4 or vectors.shape[2:] != (1, 1) or class_weights.shape[1:] != vectors.shape[:1]:
        raise DaplError(
            f"{path}: prototype_vectors are {tuple(vectors.shape)} and last_layer.weight {tuple(class_weights.shape)}; "
            "expected P×D×1×1 and classes × P."
        )
    features = _backbone(architecture, _below(state, "features."), path)
    addon = _addon(_below(state, "add_on_layers."), path)
    return OriginalProtoPNet(features, addon, vectors.flatten(1), class_weights).eval().requires_grad_(False)


def _below(state: StateDict, prefix: str) -> StateDict:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _backbone(architecture: str, state: StateDict, path: Path) -> nn.Module:
    """torchvision's network without its classifier; the tensors have the names that torchvision gives them."""
    if architecture not in ARCHITECTURES:
        raise DaplError(
            f"architecture: '{architecture}' is not one of ProtoPNet's{nearest(architecture, ARCHITECTURES)}"
        )
    with torch.device("meta"):  # no random numbers are drawn: every tensor comes from the file
        network = torchvision.models.get_model(architecture, weights=None)
    whole = nn.Sequential()
    for name in _RESNET_LAYERS if architecture.startswith("resnet") else ("features",):
        whole.add_module(name, getattr(network, name))
    if architecture.startswith("densenet"):
        whole.add_module("final_relu", nn.ReLU())
    return _filled(whole, state, f"{path}: features of {architecture}")


def _addon(state: StateDict, path: Path) -> nn.Module:
    """1×1 convolutions with ReLU between them and a sigmoid at the end: ProtoPNet's regular and bottleneck add-ons."""
    layers = nn.Sequential()
    numbers = sorted({int(name.split(".")[0]) for name in state})
    for number in numbers:
        weight = state[f"{number}.weight"]
        layers.add_module(str(number), nn.Conv2d(weight.shape[1], weight.shape[0], 1))
        layers.add_module(str(number + 1), nn.Sigmoid() if number == numbers[-1] else nn.ReLU())
    return _filled(layers, state, f"{path}: add_on_layers")


def _filled(module: nn.Module, state: StateDict, what: str) -> nn.Module:
    own = module.state_dict()
    state = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    wrong = [f"{name} is missing" for name in own if name not in state and not name.endswith("num_batches_tracked")]
    wrong += [f"{name} is not part of it" for name in state if name not in own]
    wrong += [
        f"{name} is {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
        for name, tensor in state.items()
        if name in own and tensor.shape != own[name].shape
    ]
    if wrong:
        raise DaplError(f"{what} do not fit: {'; '.join(wrong[:3])}. Is it another architecture?")
    module = module.to_empty(device="cpu")
    module.load_state_dict(state, strict=False)
    return module
