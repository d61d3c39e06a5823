"""What `dapl report` costs beside the bare backbone pass over the pictures that it shows.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.report       # CUB-20, 200 prototypes; toy birds without DAPL_CUB

The run is made here: real pictures, an ImageNet backbone, prototypes projected on training patches. Its evaluation is
there, as `dapl train` leaves it; the report then passes three test pictures a class and every source picture through
the backbone, once, and draws, encodes and writes. The bare pass starts from the same decoded pixels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.timing import HEADER, Ratio, ratio
from dapl.config import CacheConfig, Config, CubData, ProjectStage, ToyBirdsData
from dapl.evaluation import evaluate
from dapl.loading import load_run
from dapl.progress import Reporter
from dapl.report.collect import PICTURES, Report, collect
from dapl.report.glances import source_rows, spread_pictures
from dapl.report.page import write_folder
from dapl.training.lanes import Lanes, Split
from dapl.training.launch import make_fabric
from dapl.training.trainer import train

LIMIT = 1.5


def ratios(turns: int = 3) -> Iterator[Ratio]:
    data = CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData()
    with TemporaryDirectory() as folder:
        # Features are not cached, so that nothing but the pictures shown is what it takes.
        config = Config(data=data, schedule=[ProjectStage()], cache=CacheConfig(features=False))
        run = train(config, Path(folder) / "run", quiet=True).folder
        evaluate(run, quiet=True)
        collect(run, quiet=True)  # leaves the sums over the split in the run
        yield _report(run, config, turns)


def _report(run: Path, config: Config, turns: int) -> Ratio:
    model = load_run(run).model
    lanes = Lanes(config, make_fabric(config), Reporter(quiet=True))
    batches = [batch for split, rows in _needed(run, lanes).items() for batch in _batches(lanes, split, rows)]
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
    return ratio(what, f"bare backbone pass over its {count} pictures", f"≤ {LIMIT}", report, bare, turns)


def _needed(run: Path, lanes: Lanes) -> dict[Split, list[int]]:
    """The pictures that no report can do without."""
    test = lanes.dataset("test")
    chosen = [index for rows in spread_pictures(test.labels, len(test.classes), PICTURES) for index in rows]
    return {"test": chosen, "train": list(source_rows(load_run(run).records, lanes.dataset("train").names))}


def _batches(lanes: Lanes, split: Split, rows: list[int]) -> list[torch.Tensor]:
    order = list(torch.tensor(rows).split(lanes.config.runtime.evaluation_batch))
    return [batch.images for batch in lanes.pictures(split).batches(order) if batch.images is not None]


if __name__ == "__main__":
    print(HEADER)
    found = list(ratios())
    for found_ratio in found:
        print(found_ratio.row(), flush=True)
    sys.exit(found[0].value > LIMIT)
