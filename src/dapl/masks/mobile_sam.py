"""MobileSAM (Zhang et al., 2023): SAM with a small image encoder, read from its published checkpoint.

The encoder is timm's TinyViT with a neck; prompt encoder and mask decoder are those of transformers' `SamModel`, which
takes the encoder's embeddings instead of pixels. The checkpoint has the names of the original code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dapl.common.operators  # noqa: F401  (before timm and transformers, which import torchvision)  # isort: skip
import torch
from timm import create_model
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from dapl.common.errors import DaplError, reason_of
from dapl.common.reading import open_regular

_ENCODER = (
    (r"^patch_embed\.seq\.0\.", "patch_embed.conv1."),
    (r"^patch_embed\.seq\.2\.", "patch_embed.conv2."),
    (r"\.c\.weight$", ".conv.weight"),
    (r"^layers\.(\d)\.blocks\.", r"stages.\1.blocks."),
)
_REST = (
    (r"^prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix$", "shared_image_embedding.positional_embedding"),
    (r"^prompt_encoder\.point_embeddings\.", "prompt_encoder.point_embed."),
    (r"\.mask_downscaling\.0\.", ".mask_embed.conv1."),
    (r"\.mask_downscaling\.1\.", ".mask_embed.layer_norm1."),
    (r"\.mask_downscaling\.3\.", ".mask_embed.conv2."),
    (r"\.mask_downscaling\.4\.", ".mask_embed.layer_norm2."),
    (r"\.mask_downscaling\.6\.", ".mask_embed.conv3."),
    (r"\.norm(\d|_final_attn)\.", r".layer_norm\1."),
    (r"\.output_upscaling\.0\.", ".upscale_conv1."),
    (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
    (r"\.output_upscaling\.3\.", ".upscale_conv2."),
    (r"(_mlps\.\d|iou_prediction_head)\.layers\.0\.", r"\1.proj_in."),
    (r"(_mlps\.\d|iou_prediction_head)\.layers\.2\.", r"\1.proj_out."),
    (r"(_mlps\.\d|iou_prediction_head)\.layers\.1\.", r"\1.layers.0."),
)
"""Names of the checkpoint, and what timm and transformers call the same; each rule in turn."""


class TinyVitEncoder(nn.Module):
    """B×3×1024×1024 → B×256×64×64: TinyViT-5M, its last stage as fine as the one before, and SAM's neck."""

    def __init__(self) -> None:
        super().__init__()
        trunk: Any = create_model("tiny_vit_5m_224", pretrained=False, num_classes=0)
        trunk.stages[3].downsample.conv2.conv.stride = (1, 1)
        self.trunk = trunk
        self.neck = nn.Sequential(
            nn.Conv2d(320, 256, 1, bias=False),
            LayerNorm2d(256),
            nn.Conv2d(256, 256, 3, padding=1, bias=False),
            LayerNorm2d(256),
        )

    def forward(self, images: Tensor) -> Tensor:
        trunk: Any = self.trunk
        return self.neck(trunk.stages(trunk.patch_embed(images)))


class MobileSam(nn.Module):
    """Called as transformers' `SamModel` is: pixels and prompts in, masks and their estimated IoU out."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import SamConfig, SamModel

        self.encoder = TinyVitEncoder()
        # transformers' own encoder is not used, and made as small as it can be.
        small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "global_attn_indexes": [0]}
        self.sam: Any = SamModel(SamConfig(vision_config={**small, "mlp_dim": 32}))

    @property
    def config(self) -> Any:
        return self.sam.config

    def forward(self, pixel_values: Tensor, **prompts: Any) -> Any:
        return self.sam(image_embeddings=self.encoder(pixel_values), **prompts)


def load_mobile_sam(file: Path) -> tuple[MobileSam, Any]:
    """The model of a checkpoint (``mobile_sam.pt``), and the processor of its inputs. No code in the file is run.

    >>> model, processor = load_mobile_sam(Path("mobile_sam.pt"))  # doctest: +SKIP
    """
    from transformers import SamImageProcessor, SamProcessor

    try:
        with open_regular(file, "give the file mobile_sam.pt") as stream:
            published = torch.load(stream, map_location="cpu", weights_only=True)
        model = MobileSam()
        with_prefix = {name: value for name, value in published.items() if name.startswith("image_encoder.")}
        own = {name.removeprefix("image_encoder."): value for name, value in with_prefix.items()}
        neck = {name.removeprefix("neck."): own.pop(name) for name in list(own) if name.startswith("neck.")}
        heads = ("norm_head.", "head.")  # of the classifier that the encoder was trained with first
        trunk = {_encoder_name(name): value for name, value in own.items() if not name.startswith(heads)}
        model.encoder.neck.load_state_dict(neck)
        left = model.encoder.trunk.load_state_dict(trunk, strict=False)
        rest = {_renamed(name, _REST): value for name, value in published.items() if name not in with_prefix}
        rest["prompt_encoder.shared_embedding.positional_embedding"] = rest[
            "shared_image_embedding.positional_embedding"
        ]
        also = model.sam.load_state_dict(rest, strict=False)
    except DaplError:
        raise
    except Exception as error:  # pickle, torch and zipfile each have their own
        raise DaplError(
            f"{file}: is no checkpoint of MobileSAM ({reason_of(error)}); give its mobile_sam.pt."
        ) from error
    absent = [name for name in left.missing_keys if not name.startswith("head.")]
    absent += [name for name in also.missing_keys if not name.startswith("vision_encoder.")]
    if absent or left.unexpected_keys or also.unexpected_keys:
        odd = [*absent, *left.unexpected_keys, *also.unexpected_keys][0]
        raise DaplError(f"{file}: is no checkpoint of MobileSAM ({odd} does not fit); give its mobile_sam.pt.")
    return model, SamProcessor(SamImageProcessor())


def _encoder_name(name: str) -> str:
    """A stage of timm begins with the merging of patches that ends a layer of the original code."""
    found = re.match(r"^layers\.(\d)\.downsample\.", name)
    if found:
        name = f"stages.{int(found[1]) + 1}.downsample.{name[found.end() :]}"
    return _renamed(name, _ENCODER)


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, text in rules:
        name = re.sub(pattern, text, name)
    return name
