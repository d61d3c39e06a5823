"""A command starts quickly: it says so at once, and loads nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from dapl.config import Config, dump_config

NOT_NEEDED = ("lightning_fabric", "torchmetrics", "transformers", "torch._dynamo")
COMMANDS = """
import sys
from dapl.cli import main

class Terminal:
    def __init__(self, stream):
        self.stream = stream
    def isatty(self):
        return True
    def write(self, text):
        self.stream.write(f"[{'torch' in sys.modules}]{text}" if text.startswith("dapl ") else text)
    def __getattr__(self, name):
        return getattr(self.stream, name)

sys.stderr = Terminal(sys.stderr)
codes = [main(command.split()) for command in sys.argv[1:]]
print(codes, [name for name in NOT_NEEDED if name in sys.modules])
"""


def test_making_and_reading_a_run(configured: Callable[..., Config], tmp_path: Path) -> None:
    run, image, config = tmp_path / "run", tmp_path / "bird.png", tmp_path / "tiny.yaml"
    schedule = [{"stage": "warm_up", "epochs": 1}, {"stage": "project"}, {"stage": "last_layer", "epochs": 1}]
    config.write_text(dump_config(configured({"schedule": schedule})))
    Image.new("RGB", (64, 64), "red").save(image)
    code = f"NOT_NEEDED = {NOT_NEEDED}{COMMANDS}"
    commands = [
        f"train {config} --out {run}",
        f"explain {run} {image} --out {tmp_path / 'why'}",
        f"evaluate {run}",
        f"report {run}",
        f"export {run} --format hub",
    ]
    found = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
    assert found.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0] []", found.stderr
    assert found.stderr.startswith("[False]dapl train: loading …\n")  # before torch is imported
    assert "dapl report: loading …" in found.stderr
