"""Typed configuration: one YAML file a run, one place for defaults, dotted overrides. Imports no torch."""

from dapl.config.data import CubData, DataConfig, DataSection, ToyBirdsData
from dapl.config.fields import describe_fields
from dapl.config.loss import ContrastConfig, ForegroundConfig, LossConfig, SpatialConfig
from dapl.config.model import BackboneConfig, DaplModel, ModelConfig
from dapl.config.reading import dump_config, load_config, parse_config, read_yaml
from dapl.config.schedule import FitStage, JointStage, LastLayerStage, ProjectStage, PruneStage, Stage, WarmUpStage
from dapl.config.section import Section
from dapl.config.sections import PARTS, CacheConfig, Config, RuntimeConfig

__all__ = [
    "PARTS",
    "BackboneConfig",
    "CacheConfig",
    "Config",
    "ContrastConfig",
    "CubData",
    "DaplModel",
    "DataConfig",
    "DataSection",
    "FitStage",
    "ForegroundConfig",
    "JointStage",
    "LastLayerStage",
    "LossConfig",
    "ModelConfig",
    "ProjectStage",
    "PruneStage",
    "RuntimeConfig",
    "Section",
    "SpatialConfig",
    "Stage",
    "ToyBirdsData",
    "WarmUpStage",
    "describe_fields",
    "dump_config",
    "load_config",
    "parse_config",
    "read_yaml",
]
