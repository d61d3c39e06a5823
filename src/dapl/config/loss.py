"""Weights and options of the terms of the loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dapl.config.section import Section


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
    cluster_of: Literal["nearest", "all"] = Field(
        "nearest",
        description="The cluster term draws the nearest prototype of the picture's class to a patch (the paper's, "
        "ProtoPNet's), or all of them (ours).",
    )
    separation: float = Field(0.08, ge=0, description="Weight of the separation term, which is subtracted.")
    contrast: ContrastConfig = Field(default_factory=ContrastConfig)
    foreground: ForegroundConfig = Field(default_factory=ForegroundConfig)
    spatial: SpatialConfig = Field(default_factory=SpatialConfig)
