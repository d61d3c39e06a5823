"""Assemble a system from its parts. The only place where models and configuration meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dapl.common.plugins import SYSTEM_GROUP, find_builder
from dapl.config import BlackBoxModel, DaplModel, ModelConfig, PixPNetModel, ProtoPNetModel
from dapl.models.backbone import Backbone, create_backbone
from dapl.models.blackbox import BlackBox
from dapl.models.contract import PrototypeModel
from dapl.models.dapl import Dapl
from dapl.models.pixpnet import PixPNet
from dapl.models.protopnet import ProtoPNet

Builder = Callable[[Any, int], PrototypeModel]
SYSTEMS: dict[str, Builder] = {}


def register(system: str) -> Callable[[Builder], Builder]:
    """Make a system known by the name that ``model.system`` gives; the contract tests then run over it."""

    def add(builder: Builder) -> Builder:
        SYSTEMS[system] = builder
        return builder

    return add


def build_model(config: ModelConfig, classes: int, seed: int = 0, pretrained: bool = True) -> PrototypeModel:
    """A system with fresh heads; the global random state is left as it was.

    ``pretrained=False`` skips the backbone's weights, for a model that is about to be filled from a checkpoint.
    """
    if not pretrained:
        backbone = config.backbone.model_copy(update={"weights": "random"})
        config = config.model_copy(update={"backbone": backbone})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return find_builder(config.system, SYSTEMS, SYSTEM_GROUP, "model.system")(config, classes)


@register("dapl")
def _build_dapl(config: DaplModel, classes: int) -> Dapl:
    return Dapl(_backbone(config), classes, config.heads, config.head_dim, config.epsilon, config.addon_init)


@register("protopnet")
@register("protopshare")
def _build_protopnet(config: ProtoPNetModel, classes: int) -> ProtoPNet:
    return ProtoPNet(
        _backbone(config),
        classes,
        config.prototypes_per_class,
        config.width,
        config.epsilon,
        config.other_class_weight,
        config.addon_init,
    )


@register("pixpnet")
def _build_pixpnet(config: PixPNetModel, classes: int) -> PixPNet:
    return PixPNet(
        _backbone(config), classes, config.prototypes_per_class, config.width, config.epsilon, config.addon_init
    )


@register("blackbox")
def _build_blackbox(config: BlackBoxModel, classes: int) -> BlackBox:
    return BlackBox(_backbone(config), classes)


def _backbone(config: ModelConfig) -> Backbone:
    return create_backbone(**config.backbone.model_dump())
