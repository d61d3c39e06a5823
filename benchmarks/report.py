"""What `dapl report` costs beside the bare backbone pass over the images that it shows, and what a large one is like.

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.report       # CUB-20, 200 prototypes; toy birds without DAPL_CUB

The run is made here: real images, an ImageNet backbone, prototypes projected on training patches. Its evaluation is
there, as `dapl train` leaves it; the report then passes three test images per class and every source image through
the backbone, once, and draws, encodes and writes. The bare pass starts from the same decoded pixels.

How large the page of a run is, and when it can be used, in a real Chromium, from a folder and as one file:

    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.report --run RUN     # prints, and keeps build/report-page.json
    DAPL_CUB=…/CUB_200_2011 python -m benchmarks.report --large       # without a run: see below

The first is the report that `dapl report RUN` has written, which is made where there is none. The second is that of the
run that is made here, its classes repeated until there are 2,000 prototypes, each class with sheets of its own.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.timing import Ratio, ratio, show
from dapl.batches.run_data import RunData, Split
from dapl.common.files import write_json
from dapl.common.progress import Reporter
from dapl.config import CacheConfig, Config, CubData, ProjectStage, ToyBirdsData
from dapl.evaluation import evaluate
from dapl.processes.launch import make_processes
from dapl.report.collect import IMAGES, Report, collect
from dapl.report.images import source_rows, spread_images
from dapl.report.page import write_folder, write_single_file
from dapl.runs.loading import load_run
from dapl.runs.provenance import provenance
from dapl.training.trainer import train

LIMIT = 1.5
MEGABYTES, SECONDS = 30.0, 2.0
"""Of a page with 2,000 prototypes."""
KEPT = Path("build/report-page.json")


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


@dataclass(frozen=True)
class PageSize:
    """How large a page is, and how soon it can be used."""

    kind: str
    megabytes: float
    seconds: tuple[float, ...]
    """Until the script of the page is done and every control answers, each in a page of its own."""

    def is_within(self) -> bool:
        return self.megabytes <= MEGABYTES and statistics.median(self.seconds) <= SECONDS

    def __str__(self) -> str:
        size = f"{self.megabytes:6.1f} MB (limit {MEGABYTES:g})"
        return f"{self.kind:<10} {size}   {statistics.median(self.seconds):5.2f} s to interactive (limit {SECONDS:g})"


def page_sizes(report: Report, turns: int = 5) -> Iterator[PageSize]:
    """Of the folder and of the single file."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        written = {
            "folder": (write_folder(report, Path(folder) / "report"), Path(folder) / "report"),
            "one file": (write_single_file(report, Path(folder) / "one.html"), Path(folder) / "one.html"),
        }
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for kind, (page_file, place) in written.items():
            files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
            size = sum(file.stat().st_size for file in files) / 1e6
            seconds = []
            for _ in range(turns):
                page = browser.new_page()
                page.goto(page_file.as_uri(), wait_until="commit")
                while not (
                    ready := page.evaluate("performance.getEntriesByName('dapl-ready').map((m) => m.startTime)")
                ):
                    page.wait_for_timeout(50)  # the policy of the page allows no function that waits in it
                seconds.append(ready[0] / 1000)
                page.close()
            yield PageSize(kind, size, tuple(seconds))
        browser.close()


def _written(folder: Path) -> Report | None:
    """What `dapl report` wrote there."""
    if not (folder / "report.json").exists():
        return None
    images = {file.name: file.read_bytes() for file in (folder / "images").iterdir()}
    return Report(json.loads((folder / "report.json").read_text(encoding="utf-8")), images)


def show_run_page(run: str) -> bool:
    """Prints them for a finished run, and keeps them for the page of results; whether all are within the limits."""
    report = _written(Path(run) / "report") or collect(run, quiet=True)
    counts = {"prototypes": report.data["counts"]["prototypes"], "classes": len(report.data["classes"])}
    print(f"{counts['prototypes']:,} prototypes of {counts['classes']} classes")
    found = []
    for one in page_sizes(report):
        print(one, flush=True)
        found.append(one)
    command = "python -m benchmarks.report --run RUN"
    about = {"system": report.data["model"]["system"], "backbone": report.data["model"]["backbone"], **counts}
    write_json(KEPT, {**provenance([]), "command": command, **about, "pages": [asdict(one) for one in found]})
    return all(one.is_within() for one in found)


def show_large_pages(prototypes: int = 2000) -> bool:
    """Prints them; whether all are within the limits."""
    data = CubData(classes=10) if os.environ.get("DAPL_CUB") else ToyBirdsData()
    with TemporaryDirectory() as folder:
        config = Config(data=data, schedule=[ProjectStage()])
        report = collect(train(config, Path(folder) / "run", quiet=True).folder, quiet=True)
    many = repeated(report, -(-prototypes // len(report.data["prototypes"])))
    found = list(page_sizes(many))
    print(f"{len(many.data['prototypes']):,} prototypes", *found, sep="\n")
    return all(one.is_within() for one in found)


if __name__ == "__main__":
    if "--large" in sys.argv:
        sys.exit(not show_large_pages())
    if "--run" in sys.argv:
        sys.exit(not show_run_page(sys.argv[sys.argv.index("--run") + 1]))
    sys.exit(show(ratios())[0].value > LIMIT)
