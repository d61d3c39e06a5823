"""What Coverage, Diversity and background bias cost beside the bare model pass over the same pictures.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.evaluation       # CUB-20 test pictures; toy birds without DAPL_CUB

Both passes start from decoded pixels, backbone included, and take turns on the same 64 pictures, so that a machine that
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

from benchmarks.timing import HEADER, Ratio, seconds
from dapl.config import CacheConfig, Config, CubData, ToyBirdsData
from dapl.data.sample import Subset
from dapl.evaluation import Protocol
from dapl.evaluation.files import write_files
from dapl.evaluation.one_pass import Wanted, measure_split
from dapl.evaluation.scenes import SplitScenes
from dapl.evaluation.selection import chosen
from dapl.evaluation.summary import Measured
from dapl.evaluation.whole_run import summarise
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.progress import Reporter
from dapl.training.lanes import Lanes
from dapl.training.launch import make_fabric
from dapl.training.sources import in_order, run_model

LIMIT, BATCH = 1.5, 64


def ratios(pictures: int | None = None) -> Iterator[Ratio]:
    """``pictures``: only the first so many."""
    data = CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData()
    # Without cached features the backbone runs in both passes.
    config = Config(data=data, cache=CacheConfig(features=False))
    lanes = Lanes(config, make_fabric(config), Reporter(quiet=True))
    model = build_model(config.model, len(lanes.dataset("test").classes)).eval().requires_grad_(False)
    yield _passes(model, lanes, pictures)
    yield _summary(model, lanes)


def _passes(model: PrototypeModel, lanes: Lanes, pictures: int | None) -> Ratio:
    splits, test = lanes.splits, lanes.splits.test
    count = min(pictures or len(test), len(test))
    SplitScenes(lanes, "test", Protocol(), with_parts=True)  # decodes what is not decoded yet
    bare, measuring = [], []
    for number, indices in enumerate([torch.arange(min(BATCH, count)), *in_order(count, BATCH)]):
        lanes.splits = replace(splits, test=Subset(test, indices.tolist()))
        pair = seconds(lambda: _bare(model, lanes)), seconds(lambda: _measure(model, lanes))
        if number:  # the first is for warming up
            bare.append(pair[0])
            measuring.append(pair[1])
    lanes.splits = splits
    values = [with_metrics / without for with_metrics, without in zip(measuring, bare, strict=True)]
    what = f"Coverage, Diversity and background of {count} {lanes.config.data.name} test pictures"
    spread = (min(values), max(values))
    return Ratio(what, "bare model pass", statistics.median(values), spread, "≤ 1.25, limit 1.5")


@torch.no_grad()
def _bare(model: PrototypeModel, lanes: Lanes) -> None:
    source = lanes.source("test", model)
    for batch in source.batches(in_order(len(source), BATCH)):
        run_model(model, batch)


def _measure(model: PrototypeModel, lanes: Lanes) -> Measured:
    test, protocol = lanes.splits.test, Protocol()
    scenes = SplitScenes(lanes, "test", protocol, with_parts=True)
    rows = measure_split(model, lanes, "test", scenes, Wanted(), Reporter(quiet=True))
    labels = torch.tensor(list(test.labels))
    return Measured(rows.answers, rows.looks, labels, test.classes, test.parts, protocol, chosen(None))


def _summary(model: PrototypeModel, lanes: Lanes) -> Ratio:
    """From rows to files: 1,000 resamples, tables and plots."""
    lanes.splits = replace(lanes.splits, test=Subset(lanes.splits.test, list(range(BATCH))))
    measured = _measure(model, lanes)
    facts = {"data": lanes.config.data.name, "split": "test", "pictures": BATCH, "part_mode": "disc", "radius": None}

    def write() -> None:
        with TemporaryDirectory() as folder:
            write_files(Path(folder) / "metrics.json", Path(folder), summarise(measured, facts, {}, {}), measured)

    write()
    value = seconds(write) / seconds(lambda: _bare(model, lanes))
    what = "intervals, tables and plots, however many pictures"
    return Ratio(what, f"bare model pass over {BATCH} pictures", value, (value, value), "")


if __name__ == "__main__":
    print(HEADER)
    found = []
    for found_ratio in ratios():
        found.append(found_ratio)
        print(found_ratio.row(), flush=True)
    sys.exit(found[0].value > LIMIT)
