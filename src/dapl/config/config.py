"""What a config may say: every field with its type, default and description. Imports no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from dapl.common.errors import nearest
from dapl.config.data import DataConfig, ToyBirdsData
from dapl.config.model import OWN_MODELS, DaplModel, ModelConfig
from dapl.config.section import LARGEST_SEED, Section
from dapl.config.training import FitStage, JointStage, LastLayerStage, LossConfig, ProjectStage, Stage, WarmUpStage

PARTS = ("backbone", "addon", "attention", "locator", "scout", "layers", "prototypes", "classifier")
"""A system has some of them; a learning rate for one that it lacks says nothing, so that schedules can be shared."""


_UNSUITABLE = {
    ("pixpnet", "last_layer"): "the logits of PixPNet are plain sums, so it has no last layer",
    **{("blackbox", stage): "a black box has no prototypes" for stage in ("project", "prune", "prune_impure")},
}
"""(system, stage) that do not go together, and why."""


class CacheConfig(Section):
    folder: str = Field("~/.cache/dapl", description="Where caches live; they are shared by runs and safe to delete.")
    pixels: bool = Field(True, description="Keep decoded, resized images.")
    features: bool = Field(True, description="Keep backbone features for stages that freeze the backbone.")
    feature_type: Literal["float32", "float16"] = Field(
        "float32", description="How features are kept; float16 takes half the room and rounds them to 11 bits."
    )
    limit_gb: float = Field(
        8.0, gt=0, le=1e6, description="Features larger than this are computed anew each epoch instead."
    )
    total_gb: float = Field(
        32.0,
        gt=0,
        le=1e6,
        description="Room of all caches in the folder together: the least recently used go first; images that would "
        "not fit as pixels are kept as JPEG, or not at all.",
    )
    scores_gb: float = Field(
        4.0,
        gt=0,
        le=1e6,
        description="Scores of all training images larger than this are computed anew, batch by batch, in the epochs "
        "of the last layer, instead of being kept in memory.",
    )
    _named: str | None = PrivateAttr(None)

    def take_named(self) -> str | None:
        """The folder that the config names, where another is used instead; given once, so that it is said once."""
        named, self._named = self._named, None
        return named

    def moved_to(self, folder: str) -> CacheConfig:
        """The same caches, in another folder than the config names."""
        moved = self.model_copy(update={"folder": folder})
        moved._named = self.folder
        return moved


class RuntimeConfig(Section):
    accelerator: str = Field("auto", description="auto, cpu, cuda, mps: as Lightning Fabric names them.")
    devices: int = Field(1, ge=1, le=256, description="Processes (devices) on each machine.")
    nodes: int = Field(
        1, ge=1, le=10_000, description="Machines; start one process group per machine, e.g. with torchrun or SLURM."
    )
    precision: str = Field("32-true", description="32-true, bf16-mixed or 16-mixed, as Lightning Fabric names them.")
    workers: int | None = Field(
        None, ge=0, le=256, description="Data loading processes; null picks by what has to be loaded."
    )
    checkpoint_steps: int | None = Field(
        None, ge=1, le=10**9, description="Also checkpoint every so many steps within an epoch."
    )
    logger: Literal["tensorboard", "wandb", "mlflow", "csv", "none"] = Field(
        "tensorboard",
        description="Where curves, numbers and the sheet of prototypes also go; tensorboard where it is installed. "
        "metrics.jsonl is always written.",
    )
    evaluation_batch: int = Field(
        64,
        ge=1,
        le=65_536,
        description="Images per step where nothing is learned; an evaluation on a CPU takes eight (docs/metrics.md).",
    )


class Config(Section):
    """All that decides what a run does."""

    seed: int = Field(
        0, ge=0, le=LARGEST_SEED, description="Seed of initial weights, order of images, augmentation and negatives."
    )
    start: str | None = Field(
        None, description="Run whose model this one starts from, of the same shape; {seed} stands for the seed."
    )
    data: DataConfig = Field(default_factory=ToyBirdsData)
    model: ModelConfig = Field(default_factory=DaplModel)
    loss: LossConfig = Field(default_factory=LossConfig)
    schedule: list[Stage] = Field(
        default_factory=lambda: list[Stage]((WarmUpStage(), JointStage(epochs=10), ProjectStage(), LastLayerStage())),
        min_length=1,
        max_length=1000,
        description="Stages in order.",
    )
    cache: CacheConfig = Field(default_factory=CacheConfig)
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)

    @field_validator("model", mode="before")
    @classmethod
    def _dapl_unless_said(cls, model: Any) -> Any:
        return {"system": "dapl", **model} if isinstance(model, dict) else model

    @model_validator(mode="after")
    def _stages_suit_the_model(self) -> Config:
        for number, stage in enumerate(self.schedule):
            if why := _UNSUITABLE.get((self.model.system, stage.stage)):
                raise ValueError(f"schedule.{number}: {why}; leave out the stage {stage.stage}.")
            if stage.stage == "merge" and self.model.system not in ("protopnet", "protopshare"):
                raise ValueError(f"schedule.{number}: merge is for protopshare; {self.model.system} cannot share them.")
            if stage.stage in ("locate", "discriminate") and self.model.system != "parts":
                raise ValueError(f"schedule.{number}: {stage.stage} is for parts, not for {self.model.system}.")
            if stage.stage == "weigh_heads" and self.model.system not in ("dapl", "parts"):
                raise ValueError(f"schedule.{number}: weigh_heads is for dapl and parts, not for {self.model.system}.")
            if isinstance(stage, FitStage):
                for part in (*stage.learning_rates, *stage.weight_decay):
                    if part not in PARTS and isinstance(self.model, OWN_MODELS):  # a plug-in has parts of its own
                        raise ValueError(f"schedule.{number}: no model has a part '{part}'{nearest(part, PARTS)}")
                if not stage.learning_rates:
                    raise ValueError(f"schedule.{number}: no part has a learning rate, so nothing would be learned.")
        return self
