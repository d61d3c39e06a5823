"""`dapl serve` on the tiny runs, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra dapl[serve]")

import httpx
import numpy as np
import uvicorn
from PIL import Image

import dapl
from dapl.models.build import SYSTEMS
from dapl.runs.loading import load_run
from dapl.serve.app import build_app
from dapl.serve.connections import server_config

SIZE = 64
WITH_PROTOTYPES = sorted(set(SYSTEMS) - {"blackbox"})


@dataclass(frozen=True)
class Server:
    url: str
    run: Path
    process: subprocess.Popen | None = None
    token: str | None = None

    def client(self) -> httpx.Client:
        """It checks of each answer that nothing of this machine is in it."""
        return httpx.Client(base_url=self.url, timeout=60, event_hooks={"response": [self._no_path]})

    def memory(self) -> float:
        """MB in use."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def _no_path(self, response: httpx.Response) -> None:
        response.read()
        text = response.text + str(response.headers)
        for path in (self.run.parent, Path(dapl.__file__ or "").parent, Path.home(), Path(sys.prefix), Path.cwd()):
            assert len(str(path)) < 3 or str(path) not in text


@contextlib.contextmanager
def serving(*runs: Path, **options: Any) -> Iterator[Server]:
    """The server in a thread of this process, which is there at once. ``options`` of `build_app`."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(build_app(*map(load_run, runs), **options)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{listening.getsockname()[1]}", runs[0])
        assert thread.is_alive(), "the server died"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listening.close()


@contextlib.contextmanager
def serving_process(run: Path, *options: str) -> Iterator[Server]:
    """`dapl serve` in a process of its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}  # memory is measured
    environment = plain | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-m", "dapl", "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http://" in line, f"the server did not start: {line!r}"
            address, _, token = line.split("http://")[1].split()[0].partition("/?token=")
            yield Server("http://" + address.rstrip("/"), run, process, token or None)
            assert process.poll() is None, "the server died"
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(scope="session")
def server(dapl_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared by tests that leave no marks behind."""
    folder = tmp_path_factory.mktemp("served") / "run"
    shutil.copytree(dapl_run, folder)
    with serving_process(folder) as running:
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
