"""Explanations against interventions on drawn birds, after FunnyBirds (docs/interventions.md)."""

from dapl.evaluation.interventions.result import Interventions
from dapl.evaluation.interventions.run import interventions, run_interventions
from dapl.evaluation.interventions.subjects import (
    ATTRIBUTIONS,
    Attribution,
    GradCam,
    IntegratedGradients,
    Oracle,
    OwnEvidence,
    attribution_of,
)

__all__ = [
    "ATTRIBUTIONS",
    "Attribution",
    "GradCam",
    "IntegratedGradients",
    "Interventions",
    "Oracle",
    "OwnEvidence",
    "attribution_of",
    "interventions",
    "run_interventions",
]
