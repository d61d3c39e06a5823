"""`evaluate`: measure a finished run, write its numbers, tables and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dapl.batches.features import digest
from dapl.batches.run_data import RunData, Split
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.data.build import InMemorySplits, hand_over
from dapl.data.sample import Splits
from dapl.evaluation.files import write_files
from dapl.evaluation.passes import Wanted, measure_sources, measure_split, purity_of_prototypes
from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, one_of
from dapl.evaluation.result import Evaluation
from dapl.evaluation.scenes import SplitScenes, part_radius
from dapl.evaluation.summary import Measured, coverage_curves, numbers
from dapl.metrics.functional import class_sizes, sparsity
from dapl.metrics.registry import COMPANIONS, NAMES, chosen, needing
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.processes.launch import launch
from dapl.runs.loading import LoadedRun, load_run
from dapl.runs.run import Run, versions

NO_PARTS = "the data has no part annotations (neither part masks nor keypoints) to say what a part is"
NO_MASKS = "the data has no foreground masks to tell the object from its background"
NO_PROTOTYPES = "the model has no prototypes"
NOTHING_FOUND = "no image gave a finite value: no visible part, no prototype that is kept, or no activation"


def evaluate(
    folder: Path | str,
    protocol: EvaluationProtocol | None = None,
    split: Split = "test",
    metrics: Sequence[str] | str | None = None,
    config: Config | None = None,
    quiet: bool = False,
    splits: Splits | None = None,
    files: bool = True,
) -> Evaluation:
    """Numbers of a run's best model on a split; with ``files`` also written to metrics.json and metrics/ in the run.

    ``metrics`` names some of `dapl.metrics.registry.NAMES`; None takes all that need no pass of their own.
    ``config`` replaces the run's own where only data, caches or runtime differ. ``splits``: the data of a run that was
    trained on data handed over in Python.
    """
    one_of("split", split, SPLITS)
    names, folder = chosen(metrics), Path(folder)
    config = config or Run.open(folder).config()
    given = hand_over(config.data, splits)
    options = (protocol or EvaluationProtocol()).to_json()
    # To and from processes go plain values only: Fabric refuses frozen dataclasses.
    found = launch(config, _evaluate_process, folder, options, split, names, quiet, given, files)
    return Evaluation.from_plain(found)


def _evaluate_process(
    processes: Processes,
    config: Config,
    folder: Path,
    options: dict,
    split: Split,
    names: frozenset[str],
    quiet: bool,
    given: InMemorySplits | None,
    files: bool,
) -> dict[str, Any]:
    protocol = EvaluationProtocol(**options)
    loaded = load_run(folder, config=config)
    reporter = Reporter(quiet or processes.global_rank > 0)
    run_data = RunData(config, processes, reporter, None if given is None else given.splits())
    _check_classes(loaded, run_data, split)
    loaded.model.to(processes.device)
    run_data.shared_backbone = digest(loaded.model.backbone)
    missing = what_is_missing(names, run_data.dataset(split).parts, run_data.dataset(split).has_masks)
    if not len(loaded.model.prototypes):
        missing |= dict.fromkeys(names.difference(needing(names, "logits")), NO_PROTOTYPES)
        names = names - missing.keys()
    measured, mode = _measure(loaded, run_data, split, protocol, names, names - missing.keys(), reporter)
    facts = {
        "part_mode": mode,
        "radius": None if mode is None else part_radius(protocol, mode),
        "image_size": config.data.image_size,
        "fit": config.data.fit,
        "data": config.data.name,
        "split": split,
        "images": len(measured.labels),
        "checkpoint": str(loaded.run.best.relative_to(folder)),
        "metrics": sorted(names),
        "versions": versions(),
    }
    result = summarise(measured, facts, missing, prototype_counts(loaded) if "prototypes" in names else {})
    if files and processes.global_rank == 0:
        write_files(loaded.run.evaluation_file, loaded.run.evaluation_folder, result, measured)
    return asdict(result)


def _measure(
    loaded: LoadedRun,
    run_data: RunData,
    split: Split,
    protocol: EvaluationProtocol,
    names: frozenset[str],
    possible: frozenset[str],
    reporter: Reporter,
) -> tuple[Measured, str | None]:
    """``possible``: those of the named metrics that the data allows. Returns the rows and the mode of the parts."""
    model, wanted, looks, mode = loaded.model, what_to_look_for(names, possible), None, None
    if protocol.scope == "projection":
        sources = SplitScenes(run_data, "train", protocol, wanted.parts)
        if wanted.maps:
            looks, mode = measure_sources(model, loaded.records, run_data, sources, wanted, reporter), sources.mode
        wanted = replace(wanted, parts=False, ious=False, bias=False, region_share=False)
    scenes = SplitScenes(run_data, split, protocol, wanted.points)
    rows = None
    if wanted.answers or wanted.maps or wanted.companions:
        rows = measure_split(model, run_data, split, scenes, wanted, reporter)
        if protocol.scope != "projection" and wanted.maps:
            looks, mode = rows.looks, scenes.mode
    purity = None
    if "purity" in possible:
        purity = purity_of_prototypes(model, run_data, SplitScenes(run_data, "train", protocol, True), reporter)
    dataset = run_data.dataset(split)
    measured = Measured(
        answers=None if rows is None else rows.answers,
        looks=looks,
        labels=torch.tensor(list(dataset.labels)),
        classes=loaded.classes,
        parts=dataset.parts if wanted_parts(possible) else (),
        protocol=protocol,
        names=possible,
        companions=None if rows is None else rows.companions,
        kept=model.prototypes.by_class()[1].cpu(),
        purity=purity,
        fixed=_read_off(model) if "sparsity" in possible else {},
    )
    return measured, mode


def _read_off(model: PrototypeModel) -> dict[str, float]:
    """Numbers of the model that no image decides."""
    prototypes = model.prototypes
    return {
        "sparsity": sparsity(prototypes.vectors, model.classes, prototypes.kept, prototypes.group_of).item(),
        "class_size": class_sizes(model.class_weights()).double().mean().item(),
    }


def what_is_missing(names: frozenset[str], parts: Sequence[str], has_masks: bool) -> dict[str, str]:
    """Metrics that the data does not allow, each with the reason."""
    missing = {} if parts else dict.fromkeys(needing(names, "parts"), NO_PARTS)
    return missing if has_masks else missing | dict.fromkeys(needing(names, "masks"), NO_MASKS)


def wanted_parts(possible: frozenset[str]) -> bool:
    return bool(possible & {"coverage", "diversity"})


def what_to_look_for(names: frozenset[str], possible: frozenset[str]) -> Wanted:
    """The heads' overlap (``ious``) needs no annotation, so it is looked for wherever Diversity was asked for."""
    return Wanted(
        answers=bool(needing(possible, "logits")),
        parts=wanted_parts(possible),
        ious="diversity" in names,
        bias="background_bias" in possible,
        region_share="region_background_share" in possible,
        companions=possible & COMPANIONS,
    )


def summarise(
    measured: Measured, facts: dict[str, Any], missing: dict[str, str], prototypes: dict[str, Any]
) -> Evaluation:
    looks, found = measured.looks, numbers(measured)
    empty = {name for name in measured.names if name in found and math.isnan(found[name].value)}
    missing = missing | dict.fromkeys(empty, NOTHING_FOUND)
    with_parts = bool(measured.parts) and looks is not None
    return Evaluation(
        protocol=measured.protocol.to_json() | facts,
        numbers=found,
        prototypes=prototypes,
        missing={name: missing[name] for name in NAMES if name in missing},
        curves=coverage_curves(measured) if with_parts and "coverage" in measured.names else {},
        skipped=int((~looks.visible.any(1)).sum()) if with_parts and looks is not None else 0,
    )


def prototype_counts(loaded: LoadedRun) -> dict[str, Any]:
    records = loaded.records
    shares = [r.foreground_share for r in records if r.kept and r.foreground_share is not None]
    return {
        "prototypes": len(records),
        "prototypes_kept": sum(r.kept for r in records),
        "prototypes_projected": sum(r.image is not None for r in records),
        "prototypes_ungrounded": sum(r.grounded is False for r in records),
        "patch_foreground_share": sum(shares) / len(shares) if shares else None,
    }


def _check_classes(loaded: LoadedRun, run_data: RunData, split: Split) -> None:
    found = list(run_data.dataset(split).classes)
    if found != loaded.classes:
        raise DaplError(
            f"data: the {split} split has {len(found)} classes that are not the {len(loaded.classes)} of the run, "
            "or in another order; evaluate on data with the same classes."
        )
