"""What the metrics that need no pass of their own cost beside the bare model pass over the same images.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.evaluation       # CUB-20 test images; toy birds without DAPL_CUB

Both passes start from decoded pixels, backbone included, and take turns on the same 64 images, so that a machine that
others use slows both.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.timing import Ratio, seconds, show
from dapl.batches.run_data import RunData
from dapl.batches.sources import in_order, run_model
from dapl.common.progress import Reporter
from dapl.config import CacheConfig, Config, CubData, ToyBirdsData
from dapl.data.sample import Subset
from dapl.evaluation import EvaluationProtocol
from dapl.evaluation.evaluator import summarise
from dapl.evaluation.files import write_files
from dapl.evaluation.ground_truth import SplitGroundTruth
from dapl.evaluation.measures import Measurements
from dapl.evaluation.passes import measure_split
from dapl.metrics.registry import chosen
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.processes.launch import make_processes

LIMIT, LIMIT_ALL, BATCH = 1.5, 3.0, 64


def ratios(images: int | None = None) -> Iterator[Ratio]:
    """``images``: only the first so many."""
    data = CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData()
    # Without cached features the backbone runs in both passes.
    config = Config(data=data, cache=CacheConfig(features=False))
    run_data = RunData(config, make_processes(config), Reporter(quiet=True))
    model = build_model(config.model, len(run_data.dataset("test").classes)).eval().requires_grad_(False)
    few = "Coverage, Diversity and background"
    yield _passes(model, run_data, images, NAMES, few, f"≤ 1.25, limit {LIMIT}")
    yield _passes(
        model, run_data, images, chosen(None), "all metrics without passes of their own", f"limit {LIMIT_ALL}"
    )
    yield _summary(model, run_data)


def _passes(
    model: PrototypeModel, run_data: RunData, images: int | None, names: frozenset[str], what: str, target: str
) -> Ratio:
    splits, test = run_data.splits, run_data.splits.test
    count = min(images or len(test), len(test))
    SplitGroundTruth(run_data, "test", EvaluationProtocol())  # decodes what is not decoded yet
    bare, measuring = [], []
    for number, indices in enumerate([torch.arange(min(BATCH, count)), *in_order(count, BATCH)]):
        run_data.splits = replace(splits, test=Subset(test, indices.tolist()))
        pair = seconds(lambda: _bare(model, run_data)), seconds(lambda: _measure(model, run_data, names))
        if number:  # the first is for warming up
            bare.append(pair[0])
            measuring.append(pair[1])
    run_data.splits = splits
    values = [with_metrics / without for with_metrics, without in zip(measuring, bare, strict=True)]
    what = f"{what}, {count} {run_data.config.data.name} test images"
    spread = (min(values), max(values))
    return Ratio(what, "bare model pass", statistics.median(values), spread, target)


@torch.no_grad()
def _bare(model: PrototypeModel, run_data: RunData) -> None:
    source = run_data.source("test", model)
    for batch in source.batches(in_order(len(source), BATCH)):
        run_model(model, batch)


NAMES = frozenset({"accuracy", "coverage", "diversity", "background_bias", "region_background_share"})


def _measure(model: PrototypeModel, run_data: RunData, names: frozenset[str] = NAMES) -> Measurements:
    test, protocol = run_data.splits.test, EvaluationProtocol()
    rows = measure_split(model, SplitGroundTruth(run_data, "test", protocol), names, Reporter(quiet=True))
    labels, kept = torch.tensor(list(test.labels)), model.prototypes.by_class()[1]
    return Measurements(names, protocol, test.classes, test.parts, labels, rows, rows, kept)


def _summary(model: PrototypeModel, run_data: RunData) -> Ratio:
    """From rows to files: 1,000 resamples, tables and plots."""
    run_data.splits = replace(run_data.splits, test=Subset(run_data.splits.test, list(range(BATCH))))
    measured = _measure(model, run_data)
    facts = {"data": run_data.config.data.name, "split": "test", "images": BATCH, "part_mode": "disc", "radius": None}

    def write() -> None:
        with TemporaryDirectory() as folder:
            write_files(Path(folder) / "metrics.json", Path(folder), summarise(measured, facts, {}, {}), measured)

    write()
    value = seconds(write) / seconds(lambda: _bare(model, run_data))
    what = "intervals, tables and plots, however many images"
    return Ratio(what, f"bare model pass over {BATCH} images", value, (value, value), "")


if __name__ == "__main__":
    found = show(ratios())
    sys.exit(found[0].value > LIMIT or found[1].value > LIMIT_ALL)
