"""What `dapl report` costs beside the bare backbone pass over the images that it shows.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.report       # CUB-20, 200 prototypes; toy birds without DAPL_CUB

The run is made here: real images, an ImageNet backbone, prototypes projected on training patches. Its evaluation is
there, as `dapl train` leaves it; the report then passes three test images per class and every source image through
the backbone, once, and draws, encodes and writes. The bare pass starts from the same decoded pixels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.timing import Ratio, ratio, show
from dapl.batches.run_data import RunData, Split
from dapl.common.progress import Reporter
from dapl.config import CacheConfig, Config, CubData, ProjectStage, ToyBirdsData
from dapl.evaluation import evaluate
from dapl.processes.launch import make_processes
from dapl.report.collect import IMAGES, Report, collect
from dapl.report.images import source_rows, spread_images
from dapl.report.page import write_folder
from dapl.runs.loading import load_run
from dapl.training.trainer import train

LIMIT = 1.5


def ratios(turns: int = 3) -> Iterator[Ratio]:
    data = CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData()
    with TemporaryDirectory() as folder:
        # Features are not cached, so that nothing but the images shown is what it takes.
        config = Config(data=data, schedule=[ProjectStage()], cache=CacheConfig(features=False))
        run = train(config, Path(folder) / "run", quiet=True).folder
        evaluate(run, quiet=True)
        collect(run, quiet=True)  # leaves the sums over the split in the run
        yield _report(run, config, turns)


def _report(run: Path, config: Config, turns: int) -> Ratio:
    model = load_run(run).model
    run_data = RunData(config, make_processes(config), Reporter(quiet=True))
    batches = [batch for split, rows in _needed(run, run_data).items() for batch in _batches(run_data, split, rows)]
    count = sum(map(len, batches))

    @torch.no_grad()
    def bare() -> None:
        for batch in batches:
            model.backbone(batch)

    def report() -> Report:
        made = collect(run, quiet=True)
        write_folder(made, run / "report")
        return made

    what = f"report of {len(model.prototypes)} {config.data.name} prototypes"  # type: ignore[attr-defined]
    return ratio(what, f"bare backbone pass over its {count} images", f"≤ {LIMIT}", report, bare, turns)


def _needed(run: Path, run_data: RunData) -> dict[Split, list[int]]:
    """The images that no report can do without."""
    test = run_data.dataset("test")
    chosen = [index for rows in spread_images(test.labels, len(test.classes), IMAGES) for index in rows]
    return {"test": chosen, "train": list(source_rows(load_run(run).records, run_data.dataset("train").names))}


def _batches(run_data: RunData, split: Split, rows: list[int]) -> list[torch.Tensor]:
    order = list(torch.tensor(rows).split(run_data.config.runtime.evaluation_batch))
    return [batch.images for batch in run_data.images(split).batches(order) if batch.images is not None]


if __name__ == "__main__":
    sys.exit(show(ratios())[0].value > LIMIT)
