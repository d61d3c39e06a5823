"""Every command that writes something, on a run and data of its own: what is killed, meets full disks and itself."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from faults.material import Material
from faults.running import Work

ELSEWHERE = {
    "demo": "is train, evaluate and report on drawn birds",
    "prepare faceforensics": "needs a model of faces: tests/prepare/test_faceforensics.py kills it and starts two",
    "fields": "only prints",
    "completion": "only prints",
}
"""Commands that the campaign leaves out, and why."""


def lay_out(material: Material, place: Path, caches: bool = True) -> None:
    """``place/run``, ``place/data`` and ``place/cache``, as every command of `commands` finds them."""
    shutil.copytree(material.run, place / "run", ignore=shutil.ignore_patterns("tensorboard"))
    shutil.copytree(material.folder, place / "data", ignore=shutil.ignore_patterns("masks"))
    if caches:
        shutil.copytree(material.cache, place / "cache")


def commands(material: Material) -> dict[str, Callable[[Path], list[str]]]:
    """By name, from a place that was laid out to the words of the command."""
    config, image = str(material.config), str(material.image)

    def at(place: Path, *words: str) -> list[str]:
        """With the names of what lies there in place of {run}, {data}, {out} and {cache}."""
        places = {name: str(place / name) for name in ("run", "data", "out", "cache")}
        return [word.format(**places) for word in words]

    cache = ("--cache.folder", "{cache}")
    words: dict[str, tuple[str, ...]] = {
        "train": ("train", config, "--out", "{out}", *cache),
        "train --resume": ("train", "--resume", "{run}"),
        "init": ("init", "{data}", "--out", "{out}.yaml"),
        "evaluate": ("evaluate", "{run}", "--metrics", "accuracy,coverage", *cache),
        "interventions": ("interventions", "{run}", "--images", "2"),
        "explain": ("explain", "{run}", image, "--format", "html,png,json", "--out", "{out}"),
        "report": ("report", "{run}", "--images", "1"),
        "export": ("export", "{run}", "--format", "hub"),
        "compare": ("compare", "{run}", "--out", "{out}", "--no-chance"),
        "sweep": ("sweep", config, "--grid", "model.heads=1,2", "--out", "{out}", *cache),
        "chance": ("chance", config, "--json", "{out}", "--quiet", "--prototypes", "2"),
        "masks": ("masks", "{data}", "--quiet", "--refine", "none"),
        "prepare check": ("prepare", "check", "{data}", "--quiet", "--out", "{out}"),
        "cache": ("cache", "--folder", "{cache}", "--clear"),
    }
    return {name: lambda place, some=some: at(place, *some) for name, some in words.items()}


def serving(place: Path, stop: bool) -> Work:
    """`dapl serve` while its page marks prototypes again and again; with ``stop``, once, and then it is told to end."""

    def work(folder: Path) -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        threading.Thread(target=_mark, args=(port, stop), daemon=True).start()
        return ["serve", str(place / "run"), "--port", str(port)]

    return work


def _mark(port: int, stop: bool) -> None:
    number = 0
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            body = json.dumps({"note": f"for the {number}th time"})
            connection.request("PUT", "/api/marks/0", body, {"Content-Type": "application/json"})
            if connection.getresponse().status != 200:
                os._exit(1)
            connection.close()
            number += 1
        except OSError:
            time.sleep(0.02)  # it does not listen yet
        if stop and number:
            os.kill(os.getpid(), signal.SIGTERM)
            return
