"""Explanations against interventions on drawn birds, after FunnyBirds (docs/interventions.md)."""

from dapl.evaluation.interventions.attributions import (
    ATTRIBUTIONS,
    Attribution,
    GradCam,
    IntegratedGradients,
    OwnEvidence,
    attribution_of,
)
from dapl.evaluation.interventions.result import Interventions
from dapl.evaluation.interventions.run import interventions, run_interventions
from dapl.evaluation.interventions.subjects import Oracle

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
