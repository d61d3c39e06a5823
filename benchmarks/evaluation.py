"""What metrics and the rows of chance cost beside the bare model pass over the same images.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.evaluation       # CUB-20 test images; toy birds without DAPL_CUB
    python -m benchmarks.evaluation --images 128 --write build/metrics-cost.json      # fewer images, kept as JSON

Both passes start from decoded pixels, backbone included, and take turns on the same 64 images; the bare one runs before
and after the other, and the shorter of the two counts. Compared are the seconds that this process had of a processor,
with one thread, so that a machine that others use changes little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.timing import Ratio, show, threads
from dapl.batches.run_data import RunData
from dapl.batches.sources import company, in_order, run_model
from dapl.common.files import write_json
from dapl.common.progress import Reporter
from dapl.config import CacheConfig, Config, CubData, ToyBirdsData
from dapl.data.sample import Subset
from dapl.evaluation import EvaluationProtocol
from dapl.evaluation.chance import PROTOTYPES, measure_chance, reachable
from dapl.evaluation.evaluator import summarise
from dapl.evaluation.files import write_files
from dapl.evaluation.ground_truth import SplitGroundTruth
from dapl.evaluation.measurements import Measurements
from dapl.evaluation.passes import measure_split
from dapl.metrics.registry import METRICS, chosen
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.processes.launch import make_processes
from dapl.runs.provenance import provenance

LIMIT, LIMIT_ALL, BATCH, FEW = 1.5, 3.0, 64, 16
"""FEW images are enough to see what a metric costs that takes passes of its own."""


def ratios(images: int | None = None) -> Iterator[Ratio]:
    """``images``: only the first so many."""
    with threads(1):
        yield from _ratios(images)


def _ratios(images: int | None) -> Iterator[Ratio]:
    data = CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData()
    # Without cached features the backbone runs in both passes.
    config = Config(data=data, cache=CacheConfig(features=False))
    run_data = RunData(config, make_processes(config), Reporter(quiet=True))
    model = build_model(config.model, len(run_data.dataset("test").classes)).eval().requires_grad_(False)
    few = "Coverage, Diversity and background"
    yield _passes(model, run_data, images, NAMES, few, f"≤ 1.25, limit {LIMIT}")
    everything = "all metrics without passes of their own"
    yield _passes(model, run_data, images, chosen(None), everything, f"≤ 1.25, limit {LIMIT_ALL}")
    yield _chance(model, run_data)
    for metric in METRICS:
        if metric.cost and metric.name != "purity":  # which reads all training images, as a pass over these does
            yield _passes(model, run_data, FEW, frozenset({metric.name}), metric.name, f"its own: {metric.cost}", FEW)
    yield _summary(model, run_data)


def seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def _passes(
    model: PrototypeModel,
    run_data: RunData,
    images: int | None,
    names: frozenset[str],
    what: str,
    target: str,
    batch: int = BATCH,
) -> Ratio:
    splits, test = run_data.splits, run_data.splits.test
    count = min(images or len(test), len(test))
    SplitGroundTruth(run_data, "test", EvaluationProtocol())  # decodes what is not decoded yet
    bare, measuring = [], []
    for number, indices in enumerate([torch.arange(min(batch, count)), *in_order(count, batch)]):
        run_data.splits = replace(splits, test=Subset(test, indices.tolist()))
        before = seconds(lambda: _bare(model, run_data))  # also reads the pixels of these images, which are new to it
        with_metrics = seconds(lambda: _measure(model, run_data, names))
        if number:  # the first is for warming up
            bare.append(min(before, seconds(lambda: _bare(model, run_data))))
            measuring.append(with_metrics)
    run_data.splits = splits
    values = [with_metrics / without for with_metrics, without in zip(measuring, bare, strict=True)]
    what = f"{what}, {count} {run_data.config.data.name} test images"
    spread = (min(values), max(values))
    return Ratio(what, "bare model pass", statistics.median(values), spread, target)


@torch.no_grad()
def _bare(model: PrototypeModel, run_data: RunData) -> None:
    """As many images at a time as an evaluation takes: larger batches are slower per image on a CPU."""
    source = run_data.source("test", model)
    size = company(run_data.config.runtime.evaluation_batch, run_data.processes.device)
    for batch in source.batches(in_order(len(source), size)):
        run_model(model, batch)


NAMES = frozenset({"accuracy", "coverage", "diversity", "background_bias", "region_background_share"})


def _measure(model: PrototypeModel, run_data: RunData, names: frozenset[str] = NAMES) -> Measurements:
    test, protocol = run_data.splits.test, EvaluationProtocol()
    rows = measure_split(model, SplitGroundTruth(run_data, "test", protocol), names, Reporter(quiet=True))
    labels, kept = torch.tensor(list(test.labels)), model.prototypes.by_class()[1]
    return Measurements(names, protocol, test.classes, test.parts, labels, rows, rows, kept)


def _chance(model: PrototypeModel, run_data: RunData) -> Ratio:
    splits = run_data.splits
    run_data.splits = replace(splits, test=Subset(splits.test, list(range(BATCH))))
    truth, names = SplitGroundTruth(run_data, "test", EvaluationProtocol()), reachable(splits.test)
    values = []
    for _ in range(3):
        measuring = seconds(lambda: measure_chance(truth, names, PROTOTYPES))
        values.append(measuring / seconds(lambda: _bare(model, run_data)))
    run_data.splits = splits
    what = f"rows of chance with all their metrics, {PROTOTYPES} prototypes per class, once per data set"
    return Ratio(what, "bare model pass", statistics.median(values), (min(values), max(values)), "")


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, help="only the first so many test images")
    parser.add_argument("--write", type=Path, help="keep the table as JSON, for docs/render_results.py")
    arguments = parser.parse_args()
    found = show(ratios(arguments.images))
    if arguments.write is not None:
        some = f" --images {arguments.images}" if arguments.images else ""
        table = [asdict(ratio) for ratio in found]
        write_json(
            arguments.write, {**provenance([]), "command": f"python -m benchmarks.evaluation{some}", "ratios": table}
        )
    return int(found[0].value > LIMIT or found[1].value > LIMIT_ALL)


if __name__ == "__main__":
    sys.exit(main())
