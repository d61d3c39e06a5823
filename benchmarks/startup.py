"""What a command costs from its start to its result on a tiny run, beside the import of the libraries alone.

    python -m benchmarks.startup

Both in seconds of CPU time of a new process. The run has two classes of toy birds at 64 pixels, so that there is next
to nothing to compute: what is left is imports, the model and what is written. Without the operators of
`dapl.common.operators`, torchvision may not be importable at all, so they belong to the libraries.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from torch import Tensor

from benchmarks.timing import Ratio, show
from dapl.config import Config, load_config
from dapl.data.build import build_splits
from dapl.training.trainer import train

LIBRARIES = "import torch, dapl.common.operators, torchvision, timm"
GOALS = {"explain": 0.9, "evaluate": 1.2, "report": 1.0}
"""At most this multiple of the libraries, which load torch's compiler, as they do by themselves; we do without it."""


def tiny_config(folder: Path) -> Config:
    """A run that trains in seconds."""
    values = {
        "data.name": "toybirds",
        "data.classes": 2,
        "data.images_per_class": 4,
        "data.test_images_per_class": 2,
        "data.image_size": 64,
        "model.backbone.weights": "random",
        "model.heads": 2,
        "model.head_dim": 4,
        "schedule": [{"stage": "warm_up", "epochs": 1, "batch_size": 8}, {"stage": "project"}],
        "cache.folder": str(folder / "cache"),
    }
    return load_config(None, values)


def cpu_seconds(*command: str) -> float:
    """CPU time of a new Python process, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ratios(turns: int = 3) -> Iterator[Ratio]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        config = tiny_config(folder)
        run, image = train(config, folder / "run", quiet=True).folder, folder / "bird.png"
        pixels = build_splits(config.data).test[0].image.as_subclass(Tensor).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(image)
        commands = {
            "explain": ("explain", str(run), str(image), "--out", str(folder / "explained")),
            "evaluate": ("evaluate", str(run)),
            "report": ("report", str(run)),
        }
        cpu_seconds("-c", LIBRARIES)  # the files are in memory for all that follow
        values: dict[str, list[float]] = {command: [] for command in commands}
        for _ in range(turns):
            libraries = cpu_seconds("-c", LIBRARIES)
            for command, arguments in commands.items():
                values[command].append(cpu_seconds("-m", "dapl", *arguments) / libraries)
        for command, found in values.items():
            median, spread = statistics.median(found), (min(found), max(found))
            yield Ratio(f"dapl {command}", "library imports", median, spread, f"≤ {GOALS[command]}")


if __name__ == "__main__":
    show(ratios())
