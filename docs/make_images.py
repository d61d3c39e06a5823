"""Makes the images of README and docs: python docs/make_images.py [WHAT …] [--demo RUN] [--other RUN].

WHAT is any of birds, sheet, explanation, report, serve and compare; by default, and with `make pictures`, all of them.
--demo is what `dapl demo` makes, --other a run of DAPL on the same images, to be compared with it; what is needed and
not named is trained first, in a folder that is removed in the end. Pages are photographed in Chromium, as a reader
sees them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

from PIL import Image
from playwright.sync_api import sync_playwright

from dapl.batches.run_data import RunData
from dapl.cli import main as dapl
from dapl.common.progress import Reporter
from dapl.data.toybirds import ToyBirds
from dapl.explain.draw import contact_sheet
from dapl.explain.sheet import prototype_sheet
from dapl.processes.interface import SingleProcess
from dapl.runs.loading import load_run

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
EXAMPLE = "test/002/0003"
"""The image that is explained."""
WIDTH = 1280
DAPL = """
data: {name: toybirds}
model: {system: dapl}
schedule: [{stage: warm_up, epochs: 30, batch_size: 64, decay: cosine}, {stage: project}, {stage: last_layer}]
"""
"""The run that the demo is compared with: the same images and backbone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", metavar="WHAT", help=", ".join(STEPS))
    parser.add_argument("--demo", type=Path, metavar="RUN", help="a run of `dapl demo`")
    parser.add_argument("--other", type=Path, metavar="RUN", help="a run of DAPL on the same images")
    arguments = parser.parse_args()
    wanted = arguments.what or list(STEPS)
    if unknown := [what for what in wanted if what not in STEPS]:
        parser.error(f"there is no image '{unknown[0]}'; there are {', '.join(STEPS)}")
    with tempfile.TemporaryDirectory() as folder:
        demo, other = arguments.demo, arguments.other
        if demo is None and wanted != ["birds"]:
            demo = Path(folder) / "demo"
            run_dapl(["demo", "--out", str(demo)])
        if other is None and "compare" in wanted:
            other = Path(folder) / "dapl"
            config = Path(folder) / "dapl.yaml"
            config.write_text(DAPL, encoding="utf-8")
            run_dapl(["train", str(config), "--out", str(other)])
        for what in wanted:
            print(f"images: {what}", flush=True)
            STEPS[what](demo, other, Path(folder))


def run_dapl(words: list[str]) -> None:
    """A command; what it says where it fails is enough."""
    if dapl(words) != 0:
        sys.exit(1)


def draw_birds(*_: Path | None) -> None:
    """What toy birds look like, and their parts."""
    birds = ToyBirds(classes=10, images_per_class=4)
    chosen = [birds[label * 4 + number] for number in range(2) for label in range(10)]
    contact_sheet(chosen, columns=10).save(IMAGES / "toybirds.jpg", quality=85)
    contact_sheet(chosen[:10], columns=10, annotations=True).save(IMAGES / "toybirds-parts.jpg", quality=85)


def draw_sheet(demo: Path, *_: Path | None) -> None:
    """The sheet of prototypes that training leaves in a run, of four classes."""
    loaded = load_run(demo)
    run_data = RunData(loaded.config, SingleProcess(), Reporter(quiet=True))
    prototype_sheet(loaded, run_data, classes=4, tile=112).save(IMAGES / "prototypes.jpg", quality=85)


def explanation(demo: Path, _: Path | None, folder: Path) -> None:
    run_dapl(["explain", str(demo), EXAMPLE, "--top", "4", "--out", str(folder / "explained")])
    photograph(next((folder / "explained").glob("*.html")).as_uri(), "explanation.jpg", 1010)


def report(demo: Path, _: Path | None, folder: Path) -> None:
    run_dapl(["report", str(demo), "--out", str(folder / "report")])
    photograph((folder / "report" / "index.html").as_uri(), "report.jpg", 1500)


def served(demo: Path, *_: Path | None) -> None:
    with serving(demo) as address:
        photograph(address, "serve.jpg", 900, ready="body[data-ready]")


def compared(demo: Path, other: Path, _: Path) -> None:
    with serving(demo, other) as address:
        photograph(address, "compare.jpg", 1180, ready="body[data-ready]")


STEPS: dict[str, Callable[..., None]] = {
    "birds": draw_birds,
    "sheet": draw_sheet,
    "explanation": explanation,
    "report": report,
    "serve": served,
    "compare": compared,
}
"""By what it shows; each takes the two runs and a folder to work in."""


def photograph(address: str, name: str, height: int, ready: str = "body") -> None:
    """The top of a page as a JPEG."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": WIDTH, "height": height}, color_scheme="light")
        context.set_default_timeout(300_000)  # machines differ
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector(ready, state="attached")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(500)  # tiles are painted when they come near the screen
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        shot.save(IMAGES / name, quality=82, optimize=True)
        browser.close()


@contextlib.contextmanager
def serving(*runs: Path) -> Iterator[str]:
    """The address of `dapl serve`."""
    command = [sys.executable, "-m", "dapl", "serve", *map(str, runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield "http://" + process.stdout.readline().split("http://")[1].split(" ")[0]
        process.terminate()


def _chromium() -> str:
    found = which("chromium") or which("chromium-browser") or which("google-chrome")
    if found is None:
        sys.exit("no chromium on this machine to open pages with; apt-get install chromium")
    return found


if __name__ == "__main__":
    main()
