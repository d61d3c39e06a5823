"""What docs/export.md shows is run as it stands, in order, in a folder of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from dapl.cli import main
from dapl.export.export import CHECKED, images_of_test
from dapl.export.folder import NAMES
from dapl.runs.loading import load_run

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_code_on_the_page(
    evaluated: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(evaluated("dapl"), tmp_path / "runs" / "birds")
    loaded = load_run(evaluated("dapl"))
    pixels = images_of_test(loaded.config, 1)[0]
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "bird.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shown = []
    for language, text in BLOCKS:
        if language == "bash":
            assert text.startswith("dapl ")
            assert main(text.split()[1:]) == 0
        else:
            exec(text, {})
        shown.append(capsys.readouterr().out)
    assert [language for language, _ in BLOCKS] == ["bash", "python", "python", "python"]
    out = tmp_path / "runs" / "birds" / "export"
    assert sorted(path.name for path in out.iterdir()) == sorted(NAMES)
    assert all(name in shown[0] for name in NAMES)
    assert "ONNX Runtime against PyTorch, largest difference: logits" in shown[0]
    assert "exported to  runs/birds/export" in shown[0]
    assert "`model.onnx`" in (out / "README.md").read_text()
    assert shown[1].strip() in loaded.classes
    assert (tmp_path / "why.html").stat().st_size > 5000
    assert 0 < float(shown[2]) <= 1
    assert (tmp_path / "copy-of-birds" / "model.safetensors").is_file()
    assert shown[3].startswith(shown[1].strip())  # ONNX Runtime says the same


def test_the_page_names_every_file() -> None:
    table = PAGE.split("## In Python")[0]
    assert [name for name in NAMES if f"`{name}" not in table] == []
    assert f"on {CHECKED} images" in PAGE
