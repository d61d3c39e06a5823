"""The systems: each a `PrototypeModel` that is assembled from parts by `build_model`.

>>> from dapl import models
>>> models.Dapl.__mro__[1] is models.PrototypeModel
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dapl.models.backbone import Backbone, create_backbone
    from dapl.models.blackbox import BlackBox
    from dapl.models.build import build_model, register
    from dapl.models.contract import Embedding, Output, PrototypeModel
    from dapl.models.dapl import Dapl
    from dapl.models.parts import Parts
    from dapl.models.pixpnet import PixPNet
    from dapl.models.protopnet import ProtoPNet

__all__ = [
    "Backbone",
    "BlackBox",
    "Dapl",
    "Embedding",
    "Output",
    "Parts",
    "PixPNet",
    "ProtoPNet",
    "PrototypeModel",
    "build_model",
    "create_backbone",
    "register",
]

_MODULES = {
    "build_model": "build",
    "create_backbone": "backbone",
    "register": "build",
    "Embedding": "contract",
    "Output": "contract",
    "PrototypeModel": "contract",
}


def __getattr__(name: str) -> Any:
    """Loaded when first asked for: timm takes a second, which a module that wants weights alone need not wait for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dapl.models.{_MODULES.get(name, name.lower())}"), name)
