"""Measure a finished run on one split: one pass over the pictures, numbers out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from dapl import losses
from dapl.config import Config
from dapl.errors import DaplError
from dapl.files import write_json
from dapl.load import LoadedRun, load_run
from dapl.metrics.functional import activation_regions, background_bias, region_background_share
from dapl.progress import Reporter
from dapl.training.features import digest
from dapl.training.lanes import Lanes, Split
from dapl.training.launch import launch
from dapl.training.sources import grid_masks, in_order, run_model
from dapl.training.stages import deal, everywhere


def evaluate(folder: Path, split: Split = "test", config: Config | None = None, quiet: bool = False) -> dict[str, Any]:
    """Numbers of a run's best model on a split; also written to evaluation.json in the run."""
    loaded = load_run(folder, config=config)
    return launch(loaded.config, _evaluate_process, folder, split, quiet)


def _evaluate_process(fabric: Fabric, config: Config, folder: Path, split: Split, quiet: bool) -> dict[str, Any]:
    loaded = load_run(folder, config=config)
    reporter = Reporter(quiet or fabric.global_rank > 0)
    lanes = Lanes(config, fabric, reporter)
    _check_classes(loaded, lanes, split)
    loaded.model.to(fabric.device)
    lanes.shared_backbone = digest(loaded.model.backbone)
    logits, bias, region = _measure(loaded, lanes, split, fabric, reporter)
    labels = torch.tensor(list(lanes.dataset(split).labels))
    result = {
        "split": split,
        "pictures": len(labels),
        "checkpoint": "best",
        **classification(logits, labels),
        **_prototype_numbers(loaded),
        "background_bias": _mean(bias),
        "region_background_share": _mean(region),
    }
    if fabric.global_rank == 0:
        write_json(loaded.run.evaluation_file, result)
    return result


@torch.no_grad()
def _measure(
    loaded: LoadedRun, lanes: Lanes, split: Split, fabric: Fabric, reporter: Reporter
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits n×C, and of the prototypes of each picture's class (n×M) the background share of map and region.

    nan where the prototype was pruned or there are no masks.
    """
    model = loaded.model
    source = lanes.source(split, model)
    count, mine = len(source), model.prototypes_of(torch.zeros(1, dtype=torch.long, device=fabric.device)).shape[1]
    logits = torch.zeros(count, model.classes)
    bias, region = torch.zeros(count, mine), torch.zeros(count, mine)
    order = in_order(count, loaded.config.runtime.evaluation_batch)
    with reporter.track(f"evaluating {split}", count) as advance:
        for batch in source.batches(deal(order, fabric)):
            rows = batch.indices
            masks = lanes.pixel_masks(split, rows)
            with fabric.autocast():
                output = run_model(model, batch.to(fabric.device))
            logits[rows] = output.logits.float().cpu()
            if masks is None:
                bias[rows], region[rows] = torch.nan, torch.nan
            else:
                named = model.prototypes_of(batch.labels.to(fabric.device))
                maps, masks = model.maps(output.embedding.float(), named), masks.to(fabric.device)
                kept = model.prototypes.kept[named]
                regions = activation_regions(maps, (masks.shape[-2], masks.shape[-1]))
                bias[rows] = background_bias(maps, grid_masks(masks, maps.shape[-2:]), kept).cpu()
                region[rows] = region_background_share(regions, masks.bool(), kept).cpu()
            advance(len(batch))
    return everywhere(logits, fabric), everywhere(bias, fabric), everywhere(region, fabric)


def classification(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, balanced accuracy (mean over the classes that occur) and cross-entropy. logits n×C."""
    right = (logits.argmax(1) == labels).double()
    classes = labels.unique()
    recalls = torch.stack([right[labels == label].mean() for label in classes])
    return {
        "accuracy": right.mean().item(),
        "balanced_accuracy": recalls.mean().item(),
        "cross_entropy": losses.cross_entropy(logits, labels).item(),
    }


def _prototype_numbers(loaded: LoadedRun) -> dict[str, Any]:
    records = loaded.records
    shares = [r.foreground_share for r in records if r.kept and r.foreground_share is not None]
    return {
        "prototypes": len(records),
        "prototypes_kept": sum(r.kept for r in records),
        "prototypes_projected": sum(r.image is not None for r in records),
        "prototypes_ungrounded": sum(r.grounded is False for r in records),
        "patch_foreground_share": sum(shares) / len(shares) if shares else None,
    }


def _mean(values: Tensor) -> float | None:
    mean = values.nanmean().item()
    return None if mean != mean else mean


def _check_classes(loaded: LoadedRun, lanes: Lanes, split: Split) -> None:
    found = list(lanes.dataset(split).classes)
    if found != loaded.classes:
        raise DaplError(
            f"data: the {split} split has {len(found)} classes that are not the {len(loaded.classes)} of the run, "
            "or in another order; evaluate on data with the same classes."
        )


def table(result: dict[str, Any]) -> str:
    """The numbers as aligned lines for a terminal."""
    rows = [(name.replace("_", " "), _shown(name, value)) for name, value in result.items() if value is not None]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2%}" if "accuracy" in name else f"{value:.4f}"
    return str(value)
