"""From a run to files that somebody else can use: `export_run`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapl.batches.run_data import RunData
from dapl.common.errors import DaplError
from dapl.common.files import replacing_folder
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.images import read_image
from dapl.data.sample import Dataset
from dapl.data.transforms import fit
from dapl.evaluation.protocol import one_of
from dapl.explain.draw import encoded, to_pil
from dapl.explain.patches import RunPatches
from dapl.explain.sheet import prototype_sheet
from dapl.export.folder import ONNX, ExportConfig, ExportData, check_replaceable, take_images
from dapl.export.hub import ExportedModel
from dapl.export.onnx_file import check_packages, write_onnx
from dapl.models.contract import PrototypeModel
from dapl.models.weights import WEIGHT_NAMES
from dapl.processes.interface import SingleProcess
from dapl.runs.loading import LoadedRun, load_run

FORMATS = ("onnx", "hub")
CHECKED = 16
"""Test images on which ONNX Runtime is compared with PyTorch."""


@dataclass(frozen=True)
class ExportResult:
    """What `export_run` made."""

    folder: Path
    differences: dict[str, float]
    """Largest difference of each output between ONNX Runtime and PyTorch; empty without ONNX."""
    without_images: int
    """Prototypes whose training image was not at hand."""


def export_run(
    run: Path | str,
    out: Path | str | None = None,
    formats: Sequence[str] = FORMATS,
    config: Config | None = None,
    quiet: bool = False,
) -> ExportResult:
    """Write the best model of a run to ``out`` (RUN/export), all formats into one folder, whole or not at all.

    ``config`` replaces the run's own where only data, caches or runtime differ.

    >>> export_run("runs/birds", formats=["hub"]).folder  # doctest: +SKIP
    PosixPath('runs/birds/export')
    """
    for name in formats:
        one_of("formats", name, FORMATS)
    run = Path(run)
    out = Path(out) if out is not None else run / "export"
    check_replaceable(out)
    if "onnx" in formats:
        check_packages()
    loaded, reporter = load_run(run, config=config), Reporter(quiet)
    differences: dict[str, float] = {}
    missing = 0
    with replacing_folder(out, check_replaceable) as stage:
        if "onnx" in formats:
            reporter.line("ONNX: writing, and comparing with PyTorch on images of the test split")
            differences = write_onnx(stage / ONNX, loaded.model, images_of_test(loaded.config), _facts(loaded))
        if "hub" in formats:
            reporter.line("hub: weights, prototypes and model card")
            exported = exported_model(loaded)
            missing = sum(record.kept and record.index not in exported.images for record in exported.records)
            exported.write(stage, with_onnx="onnx" in formats)
    return ExportResult(out, differences, missing)


def exported_model(loaded: LoadedRun) -> ExportedModel:
    """A loaded run as what travels: without the data, with an image of each prototype."""
    images = {}
    if len(loaded.model.prototypes):
        cropped = _sees_crops(loaded.model, loaded.config.data.image_size)
        images = take_images(loaded.records, RunPatches(loaded.config), cropped)
    wall, metrics = _wall(loaded) if images else None, loaded.run.evaluation() or None
    looks = loaded.run.looks()
    return ExportedModel(loaded.model, export_config(loaded), list(loaded.records), images, metrics, wall, looks)


def export_config(loaded: LoadedRun) -> ExportConfig:
    backbone, data = loaded.config.model.backbone, loaded.config.data
    weights = backbone.weights if backbone.weights in WEIGHT_NAMES else "random"  # no path of this machine goes out
    backbone = backbone.model_copy(update={"weights": weights, "weights_folder": None})
    return ExportConfig(
        version=importlib.metadata.version("dapl"),
        model=loaded.config.model.model_copy(update={"backbone": backbone}),
        classes=loaded.classes,
        data=ExportData(name=data.name, image_size=data.image_size, fit=data.fit),
        mean=_channel_values(loaded.model.backbone.mean),
        std=_channel_values(loaded.model.backbone.std),
    )


def images_of_test(config: Config, count: int = CHECKED) -> Tensor:
    """uint8 n×3×S×S: images spread evenly over the test split, as the model sees them."""
    dataset: Dataset = build_splits(config.data).test
    rows = torch.linspace(0, len(dataset) - 1, min(count, len(dataset))).round().long().tolist()
    size, how = config.data.image_size, config.data.fit
    return torch.stack([fit(dataset[row], size, how).image.as_subclass(Tensor) for row in rows])


def _facts(loaded: LoadedRun) -> dict[str, Any]:
    """Metadata of the ONNX file."""
    config = export_config(loaded)
    return {
        "system": config.model.system,
        "classes": config.classes,
        "image_size": config.data.image_size,
        "fit": config.data.fit,
        "pixels": "RGB in [0, 1]",
        "data": config.data.name,
        "version": config.version,
    }


def _channel_values(values: Any) -> list[float]:
    return [round(value, 9) for value in torch.as_tensor(values).flatten().double().tolist()]


def _sees_crops(model: PrototypeModel, size: int) -> bool:
    """Whether its heads see crops of an image, and no pixel more."""
    with torch.no_grad():
        return model.embed(model.extractor(torch.zeros(1, 3, size, size))).squares is not None


def _wall(loaded: LoadedRun) -> bytes:
    """The run's contact sheet, which training drew, or a fresh one; written anew so that it is a PNG and no more."""
    try:
        sheet = to_pil(read_image(loaded.run.sheet_file))
    except DaplError:
        sheet = prototype_sheet(loaded, RunData(loaded.config, SingleProcess(), Reporter(quiet=True)))
    return encoded(sheet, "PNG", optimize=True)
