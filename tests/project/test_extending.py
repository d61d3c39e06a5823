"""docs/extending.md, followed to the letter in a copy of the source: a metric, a loss term, a stage and a web route."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dapl.config import dump_config, load_config

from ..conftest import TINY_RUN, TINY_SYSTEMS

ROOT = Path(__file__).parents[2]
BEHIND = {
    "metrics/registry.py": "METRICS = (\n",
    "evaluation/measures.py": "MEASURES: dict[str, Measure] = {\n",
    "training/stages.py": 'of the terms whose weight is not 0."""\n',
    "config/training.py": "class LossConfig(Section):\n",
}
BEFORE = {
    "training/trainer.py": "            elif isinstance(stage, ProjectStage):",
    "config/training.py": "GradientStage = ",
}
"""Where a block of the page goes; a class before, a field behind, and whatever is not named here at the end."""
NAMES = {
    "config/training.py": ("    | DiscriminateStage\n", "    | DiscriminateStage\n    | RoundStage\n"),
    "config/__init__.py": ("    PruneStage,\n", "    PruneStage,\n    RoundStage,\n"),
    "training/rounding.py": ("", "import torch\n\nfrom dapl.models.contract import PrototypeModel\n\n\n"),
    "training/trainer.py": (
        "from dapl.training.stages import",
        "from dapl.config import RoundStage\nfrom dapl.training.rounding import round_prototypes\n"
        "from dapl.training.stages import",
    ),
}
"""What the page says in words, and what a writer adds without being told: imports."""
TRY = """
import doctest, sys
import dapl
from fastapi.testclient import TestClient
from dapl.metrics.functional import regions
from dapl.runs.loading import load_run
from dapl.serve.app import build_app
from dapl.training import losses

assert doctest.testmod(regions).failed == doctest.testmod(losses).failed == 0
run = dapl.train(sys.argv[1], "run", quiet=True)
lines = run.logged()
assert all(line["train"]["sparse"] > 0 for line in lines if line.get("name") == "warm_up" and "train" in line), lines
assert 0 < lines[-1]["largest_change"] < 0.006, lines[-1]
number = dapl.evaluate(run, metrics="covered_share", quiet=True).numbers["covered_share"]
assert 0 < number.low <= number.value <= number.high < 1, number
with TestClient(build_app(load_run(run)), base_url="http://127.0.0.1") as client:
    assert client.get("/api/heads/1").json() == {"prototypes": [1, 4, 7]}
    assert client.get("/api/heads/3").json()["detail"] == "There is no head 3; the model has 3, counted from 0."
    assert "/api/heads/{head}" in client.get("/openapi.json").json()["paths"]
print("all of it works")
"""


def put(source: Path, file: str, block: str) -> None:
    """A block of the page into its file, indented as the line that follows."""
    path = source / "dapl" / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    is_definition = block.startswith(("def ", "class ", "@"))
    if block.startswith("Metric("):  # an entry of a tuple; with its comma the formatter would make a tuple of it
        block = block.rstrip("\n") + ",\n"
    if file in BEHIND and not is_definition:
        at = text.index(BEHIND[file]) + len(BEHIND[file])
    else:
        at = text.index(BEFORE[file]) if file in BEFORE else len(text)
    line = text[at:].partition("\n")[0]
    lines = textwrap.indent(block, line[: len(line) - len(line.lstrip())])
    apart = "\n\n" if is_definition else ""
    path.write_text(f"{text[:at]}{apart}{lines}{apart}{text[at:]}", encoding="utf-8")


@pytest.mark.slow
def test_the_examples_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra dapl[serve]")
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").partition("## A metric")[2]
    blocks = re.findall(r"^```python\n# src/dapl/(\S+)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 11
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file, block in blocks:
        put(tmp_path / "src", file, block)
    for file, (old, new) in NAMES.items():
        path = tmp_path / "src" / "dapl" / file
        before = path.read_text(encoding="utf-8")
        assert old in before, f"{file} has changed: {old!r} is not in it"
        path.write_text(before.replace(old, new, 1), encoding="utf-8")
    fields = {**TINY_RUN, "model.system": "dapl", **TINY_SYSTEMS["dapl"], "cache.folder": str(tmp_path / "cache")}
    text = dump_config(load_config(None, fields)).replace("loss:\n", "loss:\n  sparse: 0.5\n")
    text = text.replace("cache:\n", "- stage: round\n  digits: 2\ncache:\n")
    (tmp_path / "tiny.yaml").write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [sys.executable, "-c", TRY, "tiny.yaml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all of it works\n", done.stderr[-3000:]
