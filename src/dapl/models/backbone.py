"""The convolutional features f(x): any timm model, one stage of it or several, fused or each at its own resolution."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.common.operators import timm
from dapl.models.weights import (
    StateDict,
    blank_network,
    has_folded_norms,
    hub_or_cache,
    named_source,
    offline_message,
    resolve_weights,
)

Stage = int | Literal["head"]


class Backbone(nn.Module):
    """Images in, features out; normalisation included, so nothing outside needs to know mean and deviation.

    Stages are counted as timm counts them (−1 is the last); ``head`` is what stands before pooling, where that is more
    than the last stage: the last convolution of MobileNetV2 and the EfficientNets (1280 channels), the last
    normalisation of a vision transformer.

    With several stages, each map is upsampled bilinearly to the finest one and the channels are concatenated. A stage
    whose values are larger then drowns the others (of EfficientNet-Lite0's last two, the earlier one's are 2.5 times
    as large); with ``balance`` each is scaled to the root mean square of the deepest one, image by image. With
    ``fuse=False`` the maps are given as they are, a tuple, from the earliest stage to the deepest.

    Shapes: images B×3×H0×W0 (uint8, or float in [0, 1]) → features B×D0×H×W, or a tuple of B×Ds×Hs×Ws.

    >>> Backbone("test_efficientnet", [-2, -1])(torch.rand(1, 3, 64, 64)).shape
    torch.Size([1, 112, 4, 4])
    >>> [maps.shape[1:] for maps in Backbone("test_efficientnet", [-2, "head"], fuse=False)(torch.rand(1, 3, 64, 64))]
    [torch.Size([48, 4, 4]), torch.Size([256, 2, 2])]
    """

    network: Any
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        stages: Sequence[Stage] = (-1,),
        *,
        state_dict: StateDict | None = None,
        from_hub: bool = False,
        fuse: bool = True,
        balance: bool = False,
        freeze_statistics: bool = True,
        arguments: Mapping[str, Any] | None = None,
        normalisation: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        """``arguments`` go to timm, ``normalisation`` is mean and deviation where they are not timm's."""
        super().__init__()
        self.name = name
        self.fuse = fuse
        self.balance = balance
        self.freeze_statistics = freeze_statistics
        arguments = {**_size_arguments(name), **(arguments or {})}
        indices, self.gives_last = _stage_numbers(name, stages)
        network = _create_network(name, state_dict, from_hub, features_only=True, out_indices=indices, **arguments)
        self.network = _without_unused(network)
        self.head: HeadStage | None = None
        if "head" in stages:
            whole = _create_network(name, state_dict, from_hub, num_classes=0, **arguments)
            self.head = _head_of(name, whole, state_dict)
        self.patch = _patch_side(network)
        info = self.network.feature_info
        self.stage_channels: tuple[int, ...] = tuple(info.channels())
        """The channels of each map, from the earliest stage to the deepest."""
        if self.head is not None:
            self.stage_channels = (*self.stage_channels[: None if self.gives_last else -1], self.head.channels)
        self.channels: int = sum(self.stage_channels)
        self.reduction: int = min(info.reduction())
        cfg = self.network.pretrained_cfg
        cfg.pop("state_dict", None)  # else the weights are kept, and copied with the model, once more
        mean, std = normalisation or (cfg["mean"], cfg["std"])
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Any:
        return self._fused(self._maps(self._normalised(images)))

    def earliest(self, images: Tensor) -> Tensor:
        """The map of the earliest stage alone, B×Ds×Hs×Ws; EfficientNets and their like compute nothing behind it."""
        images = self._normalised(images)
        network = self.network
        if not isinstance(network, timm.models.efficientnet.EfficientNetFeatures) or min(network._stage_out_idx) < 1:
            return self._maps(images)[0]
        maps = network.bn1(network.conv_stem(images))
        for block in network.blocks[: min(network._stage_out_idx)]:
            maps = block(maps)
        return maps

    def _normalised(self, images: Tensor) -> Tensor:
        self._check_size(images.shape[-2], images.shape[-1])
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype) / 255
        return ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)

    def _maps(self, images: Tensor) -> list[Tensor]:
        """One map per stage, B×Ds×Hs×Ws."""
        try:
            maps = self.network(images)
        except (AssertionError, RuntimeError) as error:
            wanted = self.network.pretrained_cfg.get("fixed_input_size") and self.network.pretrained_cfg["input_size"]
            if not wanted or tuple(wanted[1:]) == tuple(images.shape[-2:]):
                raise
            height, width = images.shape[-2:]
            raise DaplError(
                f"data.image_size: {self.name} was made for images of {wanted[1]}×{wanted[2]} pixels and does not take "
                f"{height}×{width}; set it to {wanted[1]}, or take a backbone for any size."
            ) from error
        if getattr(self.network, "output_fmt", None) == "NHWC":  # as the Swin family has it
            maps = [m.permute(0, 3, 1, 2) for m in maps]
        if self.head is None:
            return maps
        return [*maps[: None if self.gives_last else -1], self.head(maps[-1])]

    def _fused(self, maps: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
        if not self.fuse:
            return tuple(maps)
        if len(maps) == 1:
            return maps[0]
        finest = max((m.shape[-2:] for m in maps), key=lambda size: size[0] * size[1])
        maps = [_upsampled(m, finest) for m in maps]
        if self.balance:
            maps = [*(m * (_size_of(maps[-1]) / _size_of(m)) for m in maps[:-1]), maps[-1]]
        return torch.cat(maps, dim=1)

    def _check_size(self, height: int, width: int) -> None:
        if self.patch and (height % self.patch or width % self.patch):
            near = max(1, round(min(height, width) / self.patch)) * self.patch
            raise DaplError(
                f"data.image_size: images of {height}×{width} pixels cannot be cut into the patches of {self.patch}×"
                f"{self.patch} that {self.name} looks at; give a multiple of {self.patch}, such as {near}."
            )

    def train(self, mode: bool = True) -> Backbone:
        """As usual, except that a frozen backbone stays as it is, its batch-norm statistics included.

        With ``freeze_statistics`` these keep their ImageNet values also where the rest learns: small batches of few
        classes ruin them.
        """
        mode = mode and any(parameter.requires_grad for parameter in self.parameters())
        super().train(mode)
        if mode and self.freeze_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


class HeadStage(nn.Module):
    """What a network does between its last stage and pooling. B×D×H×W → B×channels×H×W."""

    def __init__(self, layers: Sequence[nn.Module], channels: int, channels_last: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.channels = channels
        self.channels_last = channels_last

    def forward(self, maps: Tensor) -> Tensor:
        if self.channels_last:
            return self.layers(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.layers(maps)


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


def _stage_numbers(name: str, stages: Sequence[Stage]) -> tuple[list[int], bool]:
    """The stages that timm has to give, from 0 and in order, and whether the last of them was asked for by number.

    The stage ``head`` is made from the last one, which is then given whether it was asked for or not.
    """
    count = len(blank_network(name, features_only=True).feature_info)
    indices = [stage + count if stage < 0 else stage for stage in stages if stage != "head"]
    named = [*indices, *(stage for stage in stages if stage == "head")]
    if not named or len(set(named)) < len(named) or not all(0 <= index < count for index in indices):
        raise DaplError(
            f"model.backbone.stages: {list(stages)} does not name different stages of {name}, which has {count}: "
            f"0 … {count - 1}, or −{count} … −1 counted from the end."
        )
    last = count - 1
    return sorted({*indices, last} if "head" in stages else indices), last in indices


def _create_network(name: str, state_dict: StateDict | None, from_hub: bool, **arguments: Any) -> Any:
    if state_dict is not None:
        arguments["pretrained_cfg_overlay"] = {"state_dict": state_dict}
    pretrained = from_hub or state_dict is not None
    log = logging.getLogger("timm.models")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of the unused classifier of every checkpoint
    try:
        with hub_or_cache() if from_hub else nullcontext():
            return timm.create_model(name, pretrained=pretrained, **arguments)
    except Exception as error:
        # The hub client raises a different exception for each way a network can fail: all mean "not from there".
        if from_hub:
            raise DaplError(offline_message(name, error)) from error
        raise
    finally:
        log.setLevel(level)


def _size_arguments(name: str) -> dict[str, Any]:
    """Vision transformers take images of any multiple of their patch size where they are told so when they are made."""
    network = getattr(blank_network(name, features_only=True), "model", None)
    return {"dynamic_img_size": True} if hasattr(network, "dynamic_img_size") else {}


def _patch_side(network: Any) -> int | None:
    """Side of the patches that a vision transformer cuts images into; None for other networks."""
    transformer: Any = getattr(network, "model", None)
    return transformer.patch_embed.patch_size[0] if hasattr(transformer, "dynamic_img_size") else None


def _head_of(name: str, network: Any, state_dict: StateDict | None) -> HeadStage:
    """The layers between the last stage and pooling, taken out of the whole network."""
    if isinstance(network, timm.models.efficientnet.EfficientNet):
        names, channels, channels_last = ["conv_head", "bn2"], network.conv_head.out_channels, False
    elif hasattr(network, "dynamic_img_size") and not isinstance(network.norm, nn.Identity):
        names, channels, channels_last = ["norm"], network.embed_dim, True
    else:
        raise DaplError(f"model.backbone.stages: {name} has no layer of its own before pooling, so no head; use −1.")
    for layer in names:  # timm leaves what the weights lack at random values, without a word
        if state_dict is not None and f"{layer}.weight" not in state_dict:
            raise DaplError(
                f"model.backbone.stages: the weights lack {layer}.weight, which the stage head needs; use −1."
            )
    return HeadStage([getattr(network, layer) for layer in names], channels, channels_last)


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
    stages: Sequence[Stage] = (-1,),
    weights: str = "auto",
    balance: bool = False,
    freeze_statistics: bool = True,
    fuse: bool = True,
    weights_folder: str | None = None,
) -> Backbone:
    """Build a `Backbone`; ``weights`` is ``auto``, ``hub``, ``package``, ``random``, a named source, a file or folder.

    A named source (`dapl.models.weight_sources`) also decides how timm creates the network and how images are
    normalised.

    >>> create_backbone("test_efficientnet", weights="random").channels
    64
    """
    _check_name(name)
    source = named_source(name, weights)
    state_dict, from_hub = resolve_weights(name, weights, weights_folder)
    if not freeze_statistics and ((source and source.folded) or (state_dict and has_folded_norms(state_dict))):
        raise DaplError(
            f"model.backbone.freeze_statistics: the batch-norm of {weights} is folded into the convolutions, and "
            "normalising anew would undo what they have learned; set it to true, and the backbone can be trained."
        )
    try:
        return Backbone(
            name,
            stages,
            state_dict=state_dict,
            from_hub=from_hub,
            fuse=fuse,
            balance=balance,
            freeze_statistics=freeze_statistics,
            arguments=source.arguments if source else None,
            normalisation=(source.mean, source.std) if source else None,
        )
    except DaplError:
        raise
    except Exception as error:  # timm's loading of tensors that do not fit raises nearly anything
        if state_dict is None:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[-1].strip()
        raise DaplError(f"{weights}: these are the weights of another model than {name} ({reason})") from error
