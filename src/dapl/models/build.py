"""Assemble a system from its parts. The only place where models and configuration meet."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from dapl.common.errors import DaplError
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

    ``pretrained=False`` neither reads nor draws weights, for a model that is about to be filled from a checkpoint.

    >>> from dapl import load_config
    >>> config = load_config(None, {"model.backbone.name": "test_efficientnet", "model.heads": 2})
    >>> len(build_model(config.model, classes=3, pretrained=False).prototypes)
    6
    """
    _check_memory(config, classes)
    with torch.random.fork_rng(devices=[]), nullcontext() if pretrained else without_weights():
        torch.manual_seed(seed)
        return find_builder(config.system, SYSTEMS, SYSTEM_GROUP, "model.system")(config, classes)


def _check_memory(config: ModelConfig, classes: int) -> None:
    """Refuse what cannot be held, before anything is allocated: the system would end the process without a word."""
    per_class = getattr(config, "heads", None) or getattr(config, "prototypes_per_class", None)
    width = getattr(config, "head_dim", None) or getattr(config, "width", None)
    if not isinstance(per_class, int) or not isinstance(width, int):
        return
    prototypes = classes * per_class
    everything = prototypes * (width + (classes if config.system.startswith("protop") else 1))
    needed, memory = 4 * _COPIES * everything, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise DaplError(
            f"model: {prototypes:,} prototypes of {classes:,} classes take {needed / 1e9:,.0f} GB to train, and this "
            f"machine has {memory / 1e9:,.0f}; ask for fewer or narrower ones."
        )


_COPIES = 4
"""A weight is in memory four times: itself, its gradient and Adam's two moments."""


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
