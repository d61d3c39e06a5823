"""`evaluate`: measure a finished run, write its numbers, tables and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dapl.batches.run_data import RunData, Split
from dapl.common.errors import DaplError
from dapl.common.files import check_writable
from dapl.common.progress import Reporter
from dapl.common.reading import file_digest
from dapl.config import Config
from dapl.data.build import InMemorySplits, hand_over
from dapl.data.sample import Splits
from dapl.evaluation.chance import chance_of, prototypes_per_class, reachable
from dapl.evaluation.files import write_files
from dapl.evaluation.ground_truth import SplitGroundTruth, control_of, part_facts
from dapl.evaluation.measurements import Measurements, warnings_of
from dapl.evaluation.measures import coverage_curves, numbers
from dapl.evaluation.passes import measure_sources, measure_split, purity_of_prototypes, read_off
from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, one_of
from dapl.evaluation.result import Evaluation
from dapl.evaluation.split_sums import keep_sums
from dapl.metrics.registry import NAMES, chosen, data_gives, metric, missing_needs
from dapl.models.weight_sources import notice
from dapl.processes.interface import Processes
from dapl.processes.launch import launch
from dapl.runs.loading import LoadedRun, load_run
from dapl.runs.provenance import versions
from dapl.runs.run import open_run

NOTHING_FOUND = "no image gave a finite value: no visible part, no prototype that is kept, or no activation"
NEGATIVE = "the maps hold negative values, of which no share can be taken; let `maps` give similarities from 0 up"


def evaluate(
    folder: Path | str,
    protocol: EvaluationProtocol | None = None,
    split: Split = "test",
    metrics: Sequence[str] | str | None = None,
    config: Config | None = None,
    quiet: bool = False,
    splits: Splits | None = None,
    files: bool = True,
    chance: bool = True,
) -> Evaluation:
    """Numbers of a run's best model on a split; with ``files`` also written to metrics.json and metrics/ in the run.

    ``metrics`` names some of `dapl.metrics.registry.NAMES`; None takes all that need no pass of their own.
    Without ``protocol`` it is the default one, with τ as the data set has it (0.5 for faces).
    ``chance`` also measures what trivial maps get on the same images (`dapl.evaluation.chance`).
    ``config`` replaces the run's own where only data, caches or runtime differ. ``splits``: the data of a run that was
    trained on data handed over in Python.

    >>> evaluate("runs/cub", metrics="coverage,diversity")["coverage"]  # doctest: +SKIP
    0.589
    """
    one_of("split", split, SPLITS)
    names = chosen(metrics)
    run, config = open_run(folder, config)
    if files:
        check_writable(run.folder)
    in_memory = hand_over(config.data, splits)
    options = (protocol or EvaluationProtocol(tau=config.data.tau)).to_json()
    # To and from processes go plain values only: Fabric refuses frozen dataclasses.
    found = launch(config, _evaluate_process, run.folder, options, split, names, quiet, in_memory, files, chance)
    return Evaluation.from_plain(found)


def _evaluate_process(
    processes: Processes,
    config: Config,
    folder: Path,
    options: dict,
    split: Split,
    names: frozenset[str],
    quiet: bool,
    in_memory: InMemorySplits | None,
    files: bool,
    with_chance: bool,
) -> dict[str, Any]:
    protocol = EvaluationProtocol(**options)
    loaded = load_run(folder, config=config)
    reporter = Reporter(quiet or processes.global_rank > 0)
    splits = None if in_memory is None else in_memory.splits()
    run_data = RunData.of_model(config, loaded.model, loaded.classes, split, processes, reporter, splits)
    dataset = run_data.dataset(split)
    has = {"logits", "model"} | data_gives(dataset.parts, dataset.has_masks)
    if len(loaded.model.prototypes):
        has.add("maps")
    missing = missing_needs(names, has)
    # What a metric keeps may be had where the metric itself cannot: heads overlap, whatever the parts are.
    kept = names if "maps" in has else names - missing.keys()
    measured, mode = _measure(loaded, run_data, split, protocol, kept, names - missing.keys(), reporter)
    facts = part_facts(protocol, mode) | _locality(loaded, protocol, dataset.has_masks, names - missing.keys())
    facts |= {
        "image_size": config.data.image_size,
        "fit": config.data.fit,
        "data": config.data.name,
        "split": split,
        "images": len(measured.labels),
        "checkpoint": str(loaded.run.best.relative_to(folder)),
        "weights": file_digest(loaded.run.best),
        "metrics": sorted(names),
        "versions": versions(),
    }
    if (said := notice(config.model.backbone.weights, config.data.name)) is not None:
        facts["notice"] = said
    counts = prototype_counts(loaded) if "prototypes" in measured.names else {}
    result = summarise(measured, facts, missing, counts)
    if with_chance and "maps" in has and names & reachable(dataset):
        number = prototypes_per_class(measured.kept)
        result = replace(result, chance=chance_of(run_data, split, protocol, number, names))
    if files and processes.global_rank == 0:
        with loaded.run.locked_for_results():
            before: dict[str, Any] = {}
            with suppress(DaplError):  # what is broken is written anew
                before = loaded.run.evaluation()
            place = write_files(loaded.run.evaluation_file, loaded.run.evaluation_folder, result, measured, before)
            if place == "full":
                keep_sums(loaded, run_data, split, protocol, measured.images)
    return asdict(result)


def _measure(
    loaded: LoadedRun,
    run_data: RunData,
    split: Split,
    protocol: EvaluationProtocol,
    names: frozenset[str],
    possible: frozenset[str],
    reporter: Reporter,
) -> tuple[Measurements, str | None]:
    """``possible``: those of the named metrics that the data allows. Returns the rows and the mode of the parts."""
    model, mode, sources = loaded.model, None, None
    scoped = {name for name in names if metric(name).scoped}
    if protocol.scope == "projection":
        truth = SplitGroundTruth(run_data, "train", protocol, needs_parts(scoped & possible))
        if scoped:
            sources, mode = measure_sources(model, loaded.records, truth, scoped, reporter), truth.mode
        names -= scoped
    truth = SplitGroundTruth(run_data, split, protocol, needs_parts(names & possible))
    images = measure_split(model, truth, names, reporter)
    once = read_off(model) if "sparsity" in possible else {}
    if "purity" in possible:
        training = SplitGroundTruth(run_data, "train", protocol)
        once["purity"] = purity_of_prototypes(model, training, reporter)
    dataset = run_data.dataset(split)
    measured = Measurements(
        names=possible,
        protocol=protocol,
        classes=loaded.classes,
        parts=dataset.parts if possible & {"coverage", "diversity"} else (),
        part_names=dataset.parts,
        labels=torch.tensor(list(dataset.labels)),
        images=images,
        scoped=images if sources is None else sources,
        kept=model.prototypes.by_class()[1].cpu(),
        once=once,
    )
    return measured, truth.mode if sources is None else mode


def _locality(loaded: LoadedRun, protocol: EvaluationProtocol, masks: bool, names: frozenset[str]) -> dict[str, Any]:
    """What the reader of a number about regions must know: what they are compared with, and how much a cell sees."""
    facts: dict[str, Any] = {}
    if "faithfulness" in names:
        facts["control"] = control_of(protocol, masks)
    if names & {"faithfulness", "spatial_misalignment"}:
        with suppress(DaplError):  # a backbone whose fields cannot be found has none that could be said
            facts["field_share"] = loaded.model.field_share(loaded.config.data.image_size)
    return facts


def needs_parts(names: frozenset[str] | set[str]) -> bool:
    return any({"parts", "points"} & set(metric(name).needs) for name in names)


def summarise(
    measured: Measurements,
    facts: dict[str, Any],
    missing: dict[str, str],
    prototypes: dict[str, Any],
) -> Evaluation:
    """Numbers, curves and reasons from what the passes left behind."""
    found = numbers(measured)
    empty = [name for name in measured.names if name in found and math.isnan(found[name].value)]
    for name in empty:
        rows = measured.scoped if metric(name).scoped else measured.images
        negative = name in ("background_bias", "oirr") and bool(rows["negative"].any())
        missing = missing | {name: NEGATIVE if negative else NOTHING_FOUND}
        if negative:
            del found[name]
    with_parts = bool(measured.parts) and "overlap" in measured.scoped
    return Evaluation(
        protocol=measured.protocol.to_json() | facts,
        numbers=found,
        prototypes=prototypes,
        missing={name: missing[name] for name in NAMES if name in missing},
        curves=coverage_curves(measured) if with_parts and "coverage" in measured.names else {},
        skipped=int((~measured.scoped["visible"].any(1)).sum()) if with_parts else 0,
        warnings=warnings_of(measured, found),
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
