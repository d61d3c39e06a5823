"""Makes the images of README and docs: python docs/make_images.py [DEMO [OTHER]], or `make pictures`.

DEMO is what `dapl demo` makes, OTHER a run of configs/toybirds/dapl.yaml, to be compared with it; what is not named is
trained first, in a folder that is removed in the end. Pages are photographed in Chromium, as a reader sees them.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

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


def main(demo: Path | None = None, other: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if demo is None:
            demo = Path(folder) / "demo"
            dapl(["demo", "--out", str(demo)])
        if other is None:
            other = Path(folder) / "dapl"
            dapl(["train", str(DOCS.parent / "configs" / "toybirds" / "dapl.yaml"), "--out", str(other)])
        draw_birds()
        draw_sheet(demo)
        photograph_pages(demo, other, Path(folder))


def draw_birds() -> None:
    """What toy birds look like, and their parts."""
    birds = ToyBirds(classes=10, images_per_class=4)
    chosen = [birds[label * 4 + number] for number in range(2) for label in range(10)]
    contact_sheet(chosen, columns=10).save(IMAGES / "toybirds.jpg", quality=85)
    contact_sheet(chosen[:10], columns=10, annotations=True).save(IMAGES / "toybirds-parts.jpg", quality=85)


def draw_sheet(demo: Path) -> None:
    """The sheet of prototypes that training leaves in a run, of four classes."""
    loaded = load_run(demo)
    run_data = RunData(loaded.config, SingleProcess(), Reporter(quiet=True))
    prototype_sheet(loaded, run_data, classes=4, tile=112).save(IMAGES / "prototypes.jpg", quality=85)


def photograph_pages(demo: Path, other: Path, folder: Path) -> None:
    """The explanation, the report, the live page and two runs side by side."""
    dapl(["explain", str(demo), EXAMPLE, "--top", "4", "--out", str(folder / "explained")])
    dapl(["report", str(demo), "--out", str(folder / "report")])
    page = next((folder / "explained").glob("*.html"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        photograph(browser, page.as_uri(), "explanation.jpg", 1010)
        photograph(browser, (folder / "report" / "index.html").as_uri(), "report.jpg", 1500)
        with serving(demo) as address:
            photograph(browser, address, "serve.jpg", 900, ready="body[data-ready]")
        with serving(demo, other) as address:
            photograph(browser, address, "compare.jpg", 1180, ready="body[data-ready]")
        browser.close()


def photograph(browser: Browser, address: str, name: str, height: int, ready: str = "body") -> None:
    """The top of a page as a JPEG."""
    context = browser.new_context(viewport={"width": WIDTH, "height": height})
    context.set_default_timeout(300_000)  # machines differ
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(ready, state="attached")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)  # tiles are painted when they come near the screen
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shot.save(IMAGES / name, quality=82, optimize=True)
    context.close()


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
    main(*map(Path, sys.argv[1:3]))
