"""Makes the images of the README: python docs/make_images.py RUN, where RUN is what `dapl demo` made."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning_fabric import Fabric

from dapl.batches.run_data import RunData
from dapl.common.progress import Reporter
from dapl.data.toybirds import ToyBirds
from dapl.explain.draw import contact_sheet
from dapl.explain.sheet import prototype_sheet
from dapl.runs.loading import load_run

IMAGES = Path(__file__).parent / "images"


def main(run: Path) -> None:
    birds = ToyBirds(classes=10, images_per_class=4)
    chosen = [birds[label * 4 + number] for number in range(2) for label in range(10)]
    contact_sheet(chosen, columns=10).save(IMAGES / "toybirds.jpg", quality=85)
    contact_sheet(chosen[:10], columns=10, annotations=True).save(IMAGES / "toybirds-parts.jpg", quality=85)
    loaded = load_run(run)
    run_data = RunData(loaded.config, Fabric(accelerator="cpu"), Reporter(quiet=True))
    prototype_sheet(loaded, run_data, classes=4, tile=112).save(IMAGES / "prototypes.jpg", quality=85)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
