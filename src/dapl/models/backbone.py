"""The convolutional features f(x): any timm model, one stage of it or several fused."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.common.operators import timm
from dapl.models.weights import StateDict, blank_network, hub_or_cache, offline_message, resolve_weights


class Backbone(nn.Module):
    """Images in, one feature map out; normalisation included, so nothing outside needs to know mean and deviation.

    Stages are counted as timm counts them (−1 is the last). With several, each map is upsampled bilinearly to the
    finest one and the channels are concatenated. A stage whose values are larger then drowns the others (of
    EfficientNet-Lite0's last two, the earlier one's are 2.5 times as large); with ``balance`` each is scaled to the
    root mean square of the deepest one, image by image.

    Shapes: images B×3×H0×W0 (uint8, or float in [0, 1]) → features B×D0×H×W.

    >>> Backbone("test_efficientnet", [-2, -1])(torch.rand(1, 3, 64, 64)).shape
    torch.Size([1, 112, 4, 4])
    """

    network: Any
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        stages: Sequence[int] = (-1,),
        *,
        state_dict: StateDict | None = None,
        from_hub: bool = False,
        balance: bool = False,
        freeze_statistics: bool = True,
    ) -> None:
        super().__init__()
        self.name = name
        self.balance = balance
        self.freeze_statistics = freeze_statistics
        self.network = _without_unused(_create_network(name, stages, state_dict, from_hub))
        info = self.network.feature_info
        self.channels: int = sum(info.channels())
        self.reduction: int = min(info.reduction())
        cfg = self.network.pretrained_cfg
        cfg.pop("state_dict", None)  # else the weights are kept, and copied with the model, once more
        self.register_buffer("mean", torch.tensor(cfg["mean"]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(cfg["std"]).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype) / 255
        images = ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        maps = self.network(images)
        if getattr(self.network, "output_fmt", None) == "NHWC":  # as the Swin family has it
            maps = [m.permute(0, 3, 1, 2) for m in maps]
        if len(maps) == 1:
            return maps[0]
        finest = max((m.shape[-2:] for m in maps), key=lambda size: size[0] * size[1])
        maps = [_upsampled(m, finest) for m in maps]
        if self.balance:
            maps = [*(m * (_size_of(maps[-1]) / _size_of(m)) for m in maps[:-1]), maps[-1]]
        return torch.cat(maps, dim=1)

    def train(self, mode: bool = True) -> Backbone:
        """As usual, except that a frozen backbone stays as it is, its batch-norm statistics included.

        With ``freeze_statistics`` these keep their ImageNet values also where the rest learns: small batches of few
        classes ruin them.
        """
        mode = mode and any(parameter.requires_grad for parameter in self.parameters())
        super().train(mode)
        if mode and self.freeze_statistics:
            for module in self.network.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


def _size_of(maps: Tensor) -> Tensor:
    """Root mean square of each image's values, B×1×1×1."""
    return maps.square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(torch.finfo(maps.dtype).tiny)


def _upsampled(maps: Tensor, size: torch.Size) -> Tensor:
    if maps.shape[-2:] == size:
        return maps
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)


def _check_name(name: str) -> None:
    if not timm.is_model(name.split(".")[0]):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; `timm.list_models()` has the names."
        raise DaplError(f"model.backbone.name: timm has no model '{name}'{hint}")


def _create_network(name: str, stages: Sequence[int], state_dict: StateDict | None, from_hub: bool) -> nn.Module:
    _check_name(name)
    count = len(blank_network(name, features_only=True).feature_info)
    indices = [stage + count if stage < 0 else stage for stage in stages]
    if not indices or len(set(indices)) < len(indices) or not all(0 <= i < count for i in indices):
        raise DaplError(
            f"model.backbone.stages: {list(stages)} does not name different stages of {name}, which has {count}: "
            f"0 … {count - 1}, or −{count} … −1 counted from the end."
        )
    overlay: dict[str, Any] = {} if state_dict is None else {"pretrained_cfg_overlay": {"state_dict": state_dict}}
    pretrained = from_hub or state_dict is not None
    log = logging.getLogger("timm.models")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of the unused classifier of every checkpoint
    try:
        with hub_or_cache() if from_hub else nullcontext():
            return timm.create_model(
                name, pretrained=pretrained, features_only=True, out_indices=sorted(indices), **overlay
            )
    except Exception as error:
        # The hub client raises a different exception for each way a network can fail: all mean "not from there".
        if from_hub:
            raise DaplError(offline_message(name, error)) from error
        raise
    finally:
        log.setLevel(level)


def _without_unused(network: Any) -> nn.Module:
    """timm cuts most families behind the last stage asked for, but not the EfficientNet ones.

    Their blocks behind it would be computed for nothing, and several processes would wait for their gradient.
    """
    stages = getattr(network, "_stage_out_idx", None)  # block i gives stage i + 1, the stem stage 0
    if stages and isinstance(getattr(network, "blocks", None), nn.Sequential):
        network.blocks = network.blocks[: max(stages)]
    return network


def create_backbone(
    name: str,
    stages: Sequence[int] = (-1,),
    weights: str = "auto",
    balance: bool = False,
    freeze_statistics: bool = True,
) -> Backbone:
    """Build a `Backbone`; ``weights`` is ``auto``, ``hub``, ``package``, ``random``, or a file or folder.

    >>> create_backbone("test_efficientnet", weights="random").channels
    64
    """
    _check_name(name)
    state_dict, from_hub = resolve_weights(name, weights)
    try:
        return Backbone(
            name,
            stages,
            state_dict=state_dict,
            from_hub=from_hub,
            balance=balance,
            freeze_statistics=freeze_statistics,
        )
    except RuntimeError as error:
        if state_dict is None:
            raise
        reason = str(error).splitlines()[-1].strip()
        raise DaplError(f"{weights}: these are the weights of another model than {name} ({reason})") from error
