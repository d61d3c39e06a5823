"""How a model is trained: the weights of the terms of the loss, and the stages that a schedule is made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dapl.config.section import LARGEST_RATE, LARGEST_WEIGHT, MOST_EPOCHS, MOST_ROWS, Section

LearningRate = Annotated[float, Field(ge=0, le=LARGEST_RATE)]
Penalty = Annotated[float, Field(ge=0, le=LARGEST_WEIGHT)]


class ContrastConfig(Section):
    weight: float = Field(0.5, ge=0, le=LARGEST_WEIGHT, description="λ_contrast (the paper's best is 0.5).")
    margin: float = Field(1.0, gt=0, le=LARGEST_WEIGHT, description="m of equation 3 (decision 1).")
    negatives: int = Field(
        64, ge=1, le=1_000_000, description="Prototypes of other heads drawn for each head and batch (decision 1)."
    )
    positives: Literal["class", "all"] = Field(
        "class",
        description="Positives of a head: the prototype of the image's class, or all of P_h, the literal equation "
        "(decision 2).",
    )


class ForegroundConfig(Section):
    weight: float = Field(
        0.0, ge=0, le=LARGEST_WEIGHT, description="λ_fg; 0 trains without masks (the paper's DAPL), 10 is DAPL + FG."
    )
    threshold: float = Field(0.25, ge=0, le=1, description="τ_bg: background share that costs nothing.")
    over: Literal["all", "class"] = Field(
        "all", description="Mean over all prototypes (the paper's), or over those of the image's class."
    )


class SpatialConfig(Section):
    weight: float = Field(
        0.0, ge=0, le=LARGEST_WEIGHT, description="Weight of the overlap of the heads' maps (ours, not the paper's)."
    )
    sharpness: float = Field(4.0, gt=0, le=LARGEST_WEIGHT, description="q_h = softmax over places of sharpness·a_h.")


class LocateConfig(Section):
    """Weights of the terms that the stage `locate` of the system parts learns by (docs/parts.md)."""

    cross_entropy: float = Field(
        0.0, ge=0, le=LARGEST_WEIGHT, description="Heads look where classes differ; 0: the scout only watches."
    )
    commitment: float = Field(
        0.0, ge=0, le=LARGEST_WEIGHT, description="What a head sees lies near its centre of the image's class."
    )
    foreground: float = Field(
        6.0, ge=0, le=LARGEST_WEIGHT, description="Heads and the rest are the object, all else is background."
    )
    foreground_from: Literal["auto", "masks", "features"] = Field(
        "auto",
        description="What the object is: the masks of the data, or what stands out in the frozen features (their first "
        "principal components); auto: masks where the data has them.",
    )
    start_share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="The heads start from clusters of places that hold more of the object than this share; of thin "
        "parts, such as legs and tails, a place holds little.",
    )
    start_variation: float = Field(
        0.0,
        ge=0,
        le=LARGEST_WEIGHT,
        description="Places count in these clusters by how much features vary around them, to this power: more heads "
        "then start at eyes and throats, fewer on even flanks; 0: all places alike.",
    )
    concentration: float = Field(
        8.0,
        ge=0,
        le=LARGEST_WEIGHT,
        description="A head looks at one place: spatial variance of its map by the area of the object.",
    )
    balance: float = Field(
        0.1, ge=0, le=LARGEST_WEIGHT, description="The heads have equal shares of the object, over the batch."
    )
    balance_in_image: float = Field(0.1, ge=0, le=LARGEST_WEIGHT, description="The same in every image.")
    equivariance: float = Field(1.0, ge=0, le=LARGEST_WEIGHT, description="The mirrored image has the mirrored maps.")


class LossConfig(Section):
    cluster: float = Field(0.8, ge=0, le=LARGEST_WEIGHT, description="Weight of the cluster term.")
    cluster_of: Literal["nearest", "all"] = Field(
        "nearest",
        description="The cluster term draws the nearest prototype of the image's class to a patch (the paper's, "
        "ProtoPNet's), or all of them (ours).",
    )
    separation: float = Field(
        0.08, ge=0, le=LARGEST_WEIGHT, description="Weight of the separation term, which is subtracted."
    )
    contrast: ContrastConfig = Field(default_factory=ContrastConfig)
    foreground: ForegroundConfig = Field(default_factory=ForegroundConfig)
    spatial: SpatialConfig = Field(default_factory=SpatialConfig)
    locate: LocateConfig = Field(default_factory=LocateConfig)


class FitStage(Section):
    """Gradient descent on the parts that have a learning rate; the others are frozen."""

    epochs: int = Field(5, ge=1, le=MOST_EPOCHS, description="Passes over the training images.")
    batch_size: int = Field(80, ge=2, le=MOST_ROWS, description="Images per step, over all processes together.")
    weight_decay: dict[str, Penalty] = Field(
        {"backbone": 1e-3, "addon": 1e-3},
        description="L2 penalty of a part, as ProtoPNet has it; absent: none. On attention it would blur the heads.",
    )
    decay: Literal["constant", "step", "cosine"] = Field("constant", description="How learning rates fall.")
    decay_epochs: int = Field(5, ge=1, le=MOST_EPOCHS, description="`step`: epochs between two reductions.")
    decay_factor: float = Field(0.1, gt=0, le=1, description="`step`: factor of a reduction.")
    augment: Literal["none", "flip", "affine"] = Field(
        "none",
        description="Random change of the training images; `none` and `flip` keep to cached features where the "
        "backbone is frozen.",
    )


class LocateStage(FitStage):
    """Parts: the heads learn where to look, by classifiers of their own that are not used afterwards."""

    stage: Literal["locate"] = "locate"
    epochs: int = Field(12, ge=1, le=MOST_EPOCHS, description="Passes over the training images.")
    batch_size: int = Field(64, ge=2, le=MOST_ROWS, description="Images per step, over all processes together.")
    decay: Literal["constant", "step", "cosine"] = Field("cosine", description="How learning rates fall.")
    learning_rates: dict[str, LearningRate] = Field(
        {"locator": 3e-3, "scout": 3e-3}, description="Learning rate of each part that learns."
    )


class DiscriminateStage(Section):
    """Parts: the layers of the heads, by linear discriminant analysis of what each of them sees."""

    stage: Literal["discriminate"] = "discriminate"
    shrinkage: float = Field(
        0.3, gt=0, description="What is added to the variances within classes, as a share of their mean."
    )


class WarmUpStage(FitStage):
    """The backbone stays as it is."""

    stage: Literal["warm_up"] = "warm_up"
    pointers: bool = Field(
        False,
        description="Parts: each prototype stays the training region that it was projected on, and is embedded again "
        "at every step, so that nothing has to be projected afterwards.",
    )
    learning_rates: dict[str, LearningRate] = Field(
        {"addon": 3e-3, "attention": 3e-3, "prototypes": 3e-3}, description="Learning rate of each part that learns."
    )


class JointStage(FitStage):
    """Everything but the last layer learns."""

    stage: Literal["joint"] = "joint"
    decay: Literal["constant", "step", "cosine"] = Field("step", description="How learning rates fall.")
    learning_rates: dict[str, LearningRate] = Field(
        {"backbone": 1e-4, "addon": 3e-3, "attention": 3e-3, "prototypes": 3e-3},
        description="Learning rate of each part that learns.",
    )


class ProjectStage(Section):
    """Each prototype becomes the nearest training patch of its class."""

    stage: Literal["project"] = "project"
    nearest_to: Literal["prototype", "class_mean"] = Field(
        "prototype",
        description="What a patch has to be near: the prototype as it is, or (parts) the mean of what its head sees in "
        "the images of the class, so that prototypes can start as training crops.",
    )
    foreground_share: float | None = Field(
        0.5, ge=0, lt=1, description="τ_FG: only patches with a larger foreground share; null: any patch."
    )


class WeighHeadsStage(Section):
    """Heads count by how often each of them alone knows the class, on the validation images."""

    stage: Literal["weigh_heads"] = "weigh_heads"


class LastLayerStage(Section):
    """Only the class weights learn, on scores that are computed once."""

    stage: Literal["last_layer"] = "last_layer"
    epochs: int = Field(20, ge=1, le=MOST_EPOCHS, description="Passes over the cached scores.")
    batch_size: int = Field(80, ge=1, le=MOST_ROWS, description="Rows per step.")
    learning_rate: float = Field(1e-3, gt=0, le=LARGEST_RATE, description="Learning rate of the class weights.")
    l1: float = Field(1e-4, ge=0, le=LARGEST_WEIGHT, description="Weight of Σ|w|.")


class PruneStage(Section):
    """Prototypes that look at background are removed (decision 7)."""

    stage: Literal["prune"] = "prune"
    threshold: float = Field(0.3, ge=0, le=1, description="τ_bias: removed when the foreground share is below.")
    bias_of: Literal["region", "map"] = Field(
        "region", description="Foreground share of the activation region, or of the raw map (the literal B)."
    )
    percentile: float = Field(95.0, gt=0, lt=100, description="Percentile that bounds the region (decision 10).")


class PurePruneStage(Section):
    """ProtoPNet's pruning: prototypes whose nearest training patches are of other classes are removed."""

    stage: Literal["prune_impure"] = "prune_impure"
    nearest: int = Field(6, ge=1, le=100_000, description="k: nearest training patches looked at, one per image.")
    own: int = Field(3, ge=1, le=100_000, description="Removed when fewer of them are of its class.")

    @model_validator(mode="after")
    def _some_can_stay(self) -> PurePruneStage:
        if self.own > self.nearest:
            raise ValueError(f"own is {self.own} of {self.nearest} nearest, so that none could stay; lower it.")
        return self


class MergeStage(LastLayerStage):
    """ProtoPShare: prototypes that answer alike on the training images become one; then the last layer is tuned."""

    stage: Literal["merge"] = "merge"  # type: ignore[assignment]
    steps: int = Field(3, ge=1, le=10_000, description="Times that prototypes are merged and the last layer is tuned.")
    share: float = Field(
        0.1, gt=0, lt=1, description="Share of prototypes in a step whose nearest neighbour is near enough to merge."
    )
    epochs: int = Field(25, ge=1, le=MOST_EPOCHS, description="Passes over the cached scores after each step.")


GradientStage = LocateStage | WarmUpStage | JointStage
"""The stages that fit something by gradient descent."""
Stage = Annotated[
    GradientStage
    | DiscriminateStage
    | ProjectStage
    | WeighHeadsStage
    | LastLayerStage
    | PruneStage
    | PurePruneStage
    | MergeStage,
    Field(discriminator="stage"),
]
