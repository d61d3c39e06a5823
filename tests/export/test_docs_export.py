"""What docs/export.md shows is run as it stands, in order, by real processes, in a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from dapl.export.export import CHECKED, images_of_test
from dapl.export.layout import NAMES
from dapl.runs.loading import load_run

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_code_on_the_page(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(run_of("dapl"), tmp_path / "runs" / "birds")
    loaded = load_run(run_of("dapl"))
    pixels = images_of_test(loaded.config, 1)[0]
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "bird.png")
    shown = []
    for language, text in BLOCKS:
        command = text.split() if language == "bash" else [sys.executable, "-c", text]
        path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        shown.append(done.stdout)
    assert [language for language, _ in BLOCKS] == ["bash", "python", "python", "python"]
    assert "ONNX Runtime against PyTorch" in shown[0]
    assert shown[1].strip() in loaded.classes
    assert (tmp_path / "why.html").stat().st_size > 5000
    assert 0 < float(shown[2]) <= 1
    assert (tmp_path / "copy-of-birds" / "model.safetensors").is_file()
    assert shown[3].startswith(shown[1].strip())  # ONNX Runtime says the same


def test_the_page_names_every_file() -> None:
    table = PAGE.split("## In Python")[0]
    assert [name for name in NAMES if f"`{name}" not in table] == []
    assert f"on {CHECKED} images" in PAGE
