"""Tiny runs on drawn birds, and `dapl serve` on them in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra dapl[serve]")

import httpx
import numpy as np
from PIL import Image

import dapl
from dapl.config import parse_config
from dapl.models.build import SYSTEMS
from dapl.training.trainer import train

SIZE = 64
WITH_PROTOTYPES = sorted(set(SYSTEMS) - {"blackbox"})


def tiny(system: str, cache: Path) -> dict[str, Any]:
    """3 classes with 2 prototypes each."""
    sizes = {"dapl": {"heads": 2, "head_dim": 4}, "blackbox": {}}.get(system, {"prototypes_per_class": 2, "width": 8})
    backbone = {"name": "test_efficientnet", "stages": [-2], "weights": "random"}
    schedule: list[dict[str, Any]] = [{"stage": "warm_up", "epochs": 3, "batch_size": 9}]
    if system == "blackbox":
        schedule[0]["learning_rates"] = {"classifier": 1e-2}
    else:
        schedule += [{"stage": "project"}]
    if system not in ("pixpnet", "blackbox"):
        schedule += [{"stage": "last_layer", "epochs": 3}]
    return {
        "data": {
            "name": "toybirds",
            "classes": 3,
            "images_per_class": 6,
            "test_images_per_class": 4,
            "image_size": SIZE,
        },
        "model": {"system": system, "backbone": backbone, **sizes},
        "schedule": schedule,
        "cache": {"folder": str(cache)},
        "runtime": {"accelerator": "cpu", "workers": 0},
    }


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``trained(system)``: the folder of a run, made once; leave it as it is."""
    made: dict[str, Path] = {}

    def run_of(system: str) -> Path:
        if system not in made:
            folder = tmp_path_factory.mktemp(f"serve-{system}")
            made[system] = train(parse_config(tiny(system, folder / "cache")), folder / "run", quiet=True).folder
        return made[system]

    return run_of


@pytest.fixture
def run(trained: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the run of DAPL, of one's own."""
    shutil.copytree(trained("dapl"), tmp_path / "run")
    return tmp_path / "run"


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen
    run: Path

    def client(self) -> httpx.Client:
        """It checks of each answer that nothing of this machine is in it."""
        return httpx.Client(base_url=self.url, timeout=60, event_hooks={"response": [self._no_path]})

    def memory(self) -> float:
        """MB in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def _no_path(self, response: httpx.Response) -> None:
        response.read()
        text = response.text + str(response.headers)
        for path in (self.run.parent, Path(dapl.__file__ or "").parent, Path.home(), Path(sys.prefix), Path.cwd()):
            assert len(str(path)) < 3 or str(path) not in text


@contextlib.contextmanager
def serving(run: Path, *arguments: str) -> Iterator[Server]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}  # memory is measured
    environment = plain | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-m", "dapl", "serve", str(run), "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http://" in line, f"the server did not start: {line!r}"
            yield Server("http://" + line.split("http://")[1].split("/")[0], process, run)
            assert process.poll() is None, "the server died"
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(scope="session")
def server(trained: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared by tests that leave no marks behind."""
    folder = tmp_path_factory.mktemp("served") / "run"
    shutil.copytree(trained("dapl"), folder)
    with serving(folder) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as connected:
        yield connected


def image(seed: int = 0, size: tuple[int, int] = (90, 70)) -> Image.Image:
    """Blurred noise: no two seeds look alike."""
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()
