"""What `dapl report` costs beside the bare backbone pass over the images that it shows, and what a large one is like.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.report       # CUB-20, 200 prototypes; toy birds without DAPL_CUB

The run is made here: real images, an ImageNet backbone, prototypes projected on training patches. Its evaluation is
there, as `dapl train` leaves it; the report then passes three test images per class and every source image through
the backbone, once, and draws, encodes and writes. The bare pass starts from the same decoded pixels.

With ``--large``, the same report with its classes repeated until there are 2,000 prototypes, each class with sheets of
its own: how large the page is, and when it can be used, in a real Chromium, from a folder and as one file.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.timing import Ratio, ratio, show
from dapl.batches.run_data import RunData, Split
from dapl.common.progress import Reporter
from dapl.config import CacheConfig, Config, CubData, ProjectStage, ToyBirdsData
from dapl.evaluation import evaluate
from dapl.processes.launch import make_processes
from dapl.report.collect import IMAGES, Report, collect
from dapl.report.images import source_rows, spread_images
from dapl.report.page import write_folder, write_single_file
from dapl.runs.loading import load_run
from dapl.training.trainer import train

LIMIT = 1.5
MEGABYTES, SECONDS = 30.0, 2.0
"""Of a page with 2,000 prototypes."""


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


def repeated(report: Report, times: int) -> Report:
    """The same report with ``times`` as many classes, each with sheets of its own."""
    data, images = copy.deepcopy(report.data), {"overview.jpg": report.images["overview.jpg"]}
    count = len(data["classes"])
    classes: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for turn in range(times):
        for label, one in enumerate(copy.deepcopy(report.data["classes"])):
            one["name"] = f"{one['name']} {turn}"
            for kind in ("photos", "heat"):
                old = one[kind]["file"]
                one[kind]["file"] = f"{turn * count + label:03d}-{old.split('-')[1]}"
                images[one[kind]["file"]] = report.images[old]
            classes.append(one)
        for entry in copy.deepcopy(report.data["prototypes"]):
            entry["class"] += turn * count
            entry["classes"] = [label + turn * count for label in entry["classes"]]
            entry["prototype"] += turn * len(report.data["prototypes"])
            entries.append(entry)
    data |= {"classes": classes, "prototypes": entries, "groups": []}
    data |= {"offenders": {name: [] for name in data["offenders"]}}
    data["counts"] = {"prototypes": len(entries), "kept": len(entries)}
    return Report(data, images)


def large_pages(report: Report, prototypes: int = 2000) -> Iterator[tuple[str, float, float]]:
    """What it is, MB, and seconds until it can be used; the best of three times, as a browser starts cold."""
    from playwright.sync_api import sync_playwright

    many = repeated(report, -(-prototypes // len(report.data["prototypes"])))
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        written = {
            "folder": (write_folder(many, Path(folder) / "report"), Path(folder) / "report"),
            "one file": (write_single_file(many, Path(folder) / "one.html"), Path(folder) / "one.html"),
        }
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for kind, (page_file, place) in written.items():
            files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
            size = sum(file.stat().st_size for file in files) / 1e6
            seconds = []
            for _ in range(3):
                page = browser.new_page()
                page.goto(page_file.as_uri(), wait_until="commit")
                page.wait_for_function("performance.getEntriesByName('dapl-ready').length")
                seconds.append(page.evaluate("performance.getEntriesByName('dapl-ready')[0].startTime") / 1000)
                page.close()
            yield f"{len(many.data['prototypes']):,} prototypes, {kind}", size, min(seconds)
        browser.close()


def show_large_pages() -> bool:
    """Prints them; whether all are within the limits."""
    data = CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData()
    with TemporaryDirectory() as folder:
        config = Config(data=data, schedule=[ProjectStage()])
        run = train(config, Path(folder) / "run", quiet=True).folder
        found = list(large_pages(collect(run, quiet=True)))
    for what, size, seconds in found:
        print(f"{what:<32} {size:6.1f} MB (limit {MEGABYTES:g})   {seconds:5.2f} s to interactive (limit {SECONDS:g})")
    return all(size <= MEGABYTES and seconds <= SECONDS for _, size, seconds in found)


if __name__ == "__main__":
    if "--large" in sys.argv:
        sys.exit(not show_large_pages())
    sys.exit(show(ratios())[0].value > LIMIT)
