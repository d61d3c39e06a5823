"""Assemble a system from its parts. The only place where models and configuration meet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from dapl.common.plugins import SYSTEM_GROUP, find_builder
from dapl.config import ModelConfig
from dapl.models.backbone import create_backbone
from dapl.models.blackbox import BlackBox
from dapl.models.contract import PrototypeModel
from dapl.models.dapl import Dapl
from dapl.models.parts import Parts
from dapl.models.pixpnet import PixPNet
from dapl.models.protopnet import ProtoPNet
from dapl.models.weights import without_weights

Builder = Callable[[Any, int], PrototypeModel]
SYSTEMS: dict[str, Builder] = {}


def register(system: str) -> Callable[[Builder], Builder]:
    """Make a system known by the name that ``model.system`` gives; the contract tests then run over it.

    >>> @register("mine")                                 # doctest: +SKIP
    ... def build(config, classes):
    ...     return Mine(classes, config.width)
    """

    def add(builder: Builder) -> Builder:
        SYSTEMS[system] = builder
        return builder

    return add


def build_model(config: ModelConfig, classes: int, seed: int = 0, pretrained: bool = True) -> PrototypeModel:
    """A system with fresh heads; the global random state is left as it was.

    ``pretrained=False`` reads none of the backbone's weights, for a model that is about to be filled from a checkpoint.

    >>> from dapl import load_config
    >>> config = load_config(None, {"model.backbone.name": "test_efficientnet", "model.heads": 2})
    >>> len(build_model(config.model, classes=3, pretrained=False).prototypes)
    6
    """
    with torch.random.fork_rng(devices=[]), nullcontext() if pretrained else without_weights():
        torch.manual_seed(seed)
        return find_builder(config.system, SYSTEMS, SYSTEM_GROUP, "model.system")(config, classes)


def _builder(model: Callable[..., PrototypeModel]) -> Builder:
    """For a model whose arguments have the names of the fields of its section; ``patch`` has one value only."""

    def build(config: Any, classes: int) -> PrototypeModel:
        fields = config.model_dump(exclude={"system", "backbone", "patch"})
        return model(create_backbone(**config.backbone.model_dump()), classes, **fields)

    return build


for _system, _model in (("dapl", Dapl), ("parts", Parts), ("pixpnet", PixPNet), ("blackbox", BlackBox)):
    register(_system)(_builder(_model))
for _system in ("protopnet", "protopshare"):
    register(_system)(_builder(ProtoPNet))
