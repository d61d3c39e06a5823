"""Imports torchvision; to be imported before torchvision, timm and torchmetrics. It mends two things.

torchvision must load beside a torch build that its compiled operators do not fit. Its Python layer registers fake
implementations for ``torchvision::nms`` and ``torchvision::qnms`` at import. Where the compiled library did not load
(a CPU build of torch beside a CUDA wheel of torchvision), the two schemas do not exist and the import fails with
``operator torchvision::nms does not exist``. Declaring the schemas is enough: transforms and classification models
call neither operator. What is missing is known only after torchvision has loaded what it can, so that comes first.

It must load quickly, and timm too: both import torch's compiler for one function, which takes longer than the two of
them together and which is called only where something is compiled; timm imports wandb, where that is installed, for a
function that nobody here calls, and the whole client of the hub for three functions that are called only where weights
come from there. Here these imports wait for the first use; timm is taken from here (``from dapl.common.operators import
timm``), and loaded when the first module asks for it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch

try:
    from torch._compile import _disable_dynamo
except ImportError:  # a torch that keeps it elsewhere: its compiler is then loaded at once, as without this module
    _disable_dynamo = None  # type: ignore[assignment]

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None  # keeps the schemas registered for the life of the process


def _torchvision_has_loaded_operators() -> bool:
    """Let torchvision load its compiled operators as it always does, without the rest of it; whether it had its say.

    Which file holds them is torchvision's own business (``_C.so`` up to 0.28, ``_C_stable.so`` since). An operator that
    is declared here first, and then found in that file, would end the process; so where a torchvision does not load
    them in its module ``extension``, nothing may be declared.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.submodule_search_locations is None:
        return False  # the import itself will say that torchvision is missing
    package = ModuleType("torchvision")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["torchvision"] = package
    try:
        importlib.import_module("torchvision.extension")
    except Exception:  # its own import, below, says what is wrong with this torchvision
        return False
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    return True


def ensure_operators() -> bool:
    """Declare the missing schemas; returns whether anything had to be declared."""
    global _library
    if "torchvision" in sys.modules or _library is not None or not _torchvision_has_loaded_operators():
        return False
    missing = [operator for operator in ("nms", "qnms") if not hasattr(torch.ops.torchvision, operator)]
    if not missing:
        return False
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in missing:
        _library.define(operator + _SCHEMA)
    return True


_COMPILER = ("torch._dynamo", "torch._dynamo.utils")


class _Postponed(ModuleType):
    """Stands for a module that is imported when something of it is wanted."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            for module in _COMPILER if self.__name__ in _COMPILER else (self.__name__,):
                del sys.modules[module]
        return getattr(importlib.import_module(self.__name__), name)


def _disabled(function: Any = None, recursive: bool = True, **_: Any) -> Any:
    """``torch.compiler.disable`` without the compiler: until that is loaded, nothing is compiled."""
    if function is None:
        return partial(_disabled, recursive=recursive)
    disabled = _disable_dynamo(function, recursive)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return (disabled if _COMPILER[0] in sys.modules else function)(*arguments, **named)

    return call


@contextmanager
def _postponed_compiler() -> Iterator[None]:
    if _disable_dynamo is None or any(module in sys.modules for module in _COMPILER):
        yield
        return
    package, utils = (_Postponed(module) for module in _COMPILER)
    vars(package)["disable"] = _disabled  # these two are what torchvision and timm take
    vars(utils)["is_compile_supported"] = lambda device: utils.__getattr__("is_compile_supported")(device)
    sys.modules |= {module.__name__: module for module in (package, utils)}
    try:
        yield
    finally:
        for module in (package, utils):
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


@contextmanager
def _postponed_wandb() -> Iterator[None]:
    if "wandb" in sys.modules or importlib.util.find_spec("wandb") is None:
        yield
        return
    sys.modules["wandb"] = package = _Postponed("wandb")
    try:
        yield
    finally:
        if sys.modules.get("wandb") is package:
            del sys.modules["wandb"]


_OF_HUB = ("HfApi", "hf_hub_download", "model_info")
"""What timm takes of huggingface_hub, which loads the modules behind a name when the name is first asked for."""


@contextmanager
def _postponed_hub() -> Iterator[None]:
    if importlib.util.find_spec("huggingface_hub") is None:
        yield
        return
    names = vars(importlib.import_module("huggingface_hub"))
    stand_ins = {name: partial(_call_of_hub, name) for name in _OF_HUB if name not in names}
    names.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if names.get(name) is stand_in:
                del names[name]


def _call_of_hub(name: str, *arguments: Any, **named: Any) -> Any:
    return getattr(importlib.import_module("huggingface_hub"), name)(*arguments, **named)


ensure_operators()
with _postponed_compiler():
    import torchvision.transforms.v2  # noqa: F401  (with tv_tensors, which takes it too)


def __getattr__(name: str) -> Any:
    if name != "timm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _postponed_compiler(), _postponed_wandb(), _postponed_hub():
        return importlib.import_module("timm")
