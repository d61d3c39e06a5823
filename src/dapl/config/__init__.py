"""Typed configuration: one YAML file a run, one place for defaults, dotted overrides. Imports no torch."""

from dapl.config.data import (
    CocoData,
    CubData,
    DataConfig,
    DataSection,
    FaceForensicsData,
    FolderData,
    GivenData,
    ToyBirdsData,
)
from dapl.config.fields import describe_fields
from dapl.config.loss import ContrastConfig, ForegroundConfig, LossConfig, SpatialConfig
from dapl.config.model import (
    BackboneConfig,
    BlackBoxModel,
    DaplModel,
    ModelConfig,
    PixPNetModel,
    ProtoPNetModel,
    ProtoPShareModel,
)
from dapl.config.reading import dump_config, load_config, parse_config, read_yaml
from dapl.config.schedule import (
    FitStage,
    JointStage,
    LastLayerStage,
    MergeStage,
    ProjectStage,
    PruneStage,
    PurePruneStage,
    Stage,
    WarmUpStage,
)
from dapl.config.section import Section
from dapl.config.sections import PARTS, CacheConfig, Config, RuntimeConfig

__all__ = [
    "PARTS",
    "BackboneConfig",
    "BlackBoxModel",
    "CacheConfig",
    "CocoData",
    "Config",
    "ContrastConfig",
    "CubData",
    "DaplModel",
    "DataConfig",
    "DataSection",
    "FaceForensicsData",
    "FitStage",
    "FolderData",
    "ForegroundConfig",
    "GivenData",
    "JointStage",
    "LastLayerStage",
    "LossConfig",
    "MergeStage",
    "ModelConfig",
    "PixPNetModel",
    "ProjectStage",
    "ProtoPNetModel",
    "ProtoPShareModel",
    "PruneStage",
    "PurePruneStage",
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
