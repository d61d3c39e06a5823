"""What docs/own-data.md shows runs, in the order of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dapl.cli import main

pytest.importorskip("cv2", reason="pip install 'dapl[masks]'")
pytest.importorskip("pycocotools", reason="pip install 'dapl[coco]'")

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
QUICK = [
    "--model.backbone.name=test_efficientnet",
    "--model.backbone.weights=random",
    "--model.backbone.stages=[-2]",
    "--model.heads=2",
    "--model.head_dim=4",
    "--data.image_size=64",
    "--runtime.accelerator=cpu",
    "--runtime.workers=0",
    "--schedule=[{stage: warm_up, epochs: 1, batch_size: 8}, {stage: project}]",
]
"""What makes the trainings of the page small: not the weights and epochs that a reader would want to wait for."""
QUICK_PARTS = [
    *(word for word in QUICK if not word.startswith(("--schedule", "--model.backbone.stages"))),
    "--model.backbone.stages=[-2, -1]",
    "--model.crop_size=32",
    "--schedule.0.epochs=1",
    "--schedule.2.epochs=1",
]
"""The same for the config that is chosen for data with masks."""


def _quick(words: list[str]) -> list[str]:
    if words[0] != "train":
        return []
    return QUICK_PARTS if words[1] in ("birds", "birds.yaml") else QUICK


@pytest.mark.slow
def test_the_page_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    namespace: dict = {}
    commands = []
    files = dict(re.findall(r"\A# (\S+)\n(.*)", text, flags=re.DOTALL)[0] for kind, text in BLOCKS if kind == "yaml")
    assert set(files) == {"own.yaml", "pets.yaml", "shards.yaml"}
    for name, text in files.items():
        Path(name).write_text(text)
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), namespace)
        if kind == "bash":
            for line in text.splitlines():
                program, *words = shlex.split(line)
                assert program == "dapl"
                commands.append(words[0] if words[0] != "prepare" else "check")
                assert main([*words, *_quick(words)]) == 0, line
    assert commands == [
        *("train", "init", "train", "check", "train", "evaluate", "check", "train", "train"),
        *("masks", "masks"),
    ]
    said = capsys.readouterr().out
    assert "38 masks made, 10 images had one, 0 failed" in said
    assert 0 <= float(said.splitlines()[-1]) <= 1  # the Coverage that the last block prints
    assert namespace["result"].numbers["accuracy"].value >= 0
    assert json.loads(Path("checks/pets/check.json").read_text())["masks"] == 12


def test_the_table_of_keypoints_on_the_page(tmp_path: Path) -> None:
    from dapl.data.folder import read_folder

    (table,) = (text for kind, text in BLOCKS if kind == "csv")
    for name in ("train/finch/1.jpg", "train/finch/2.jpg", "train/robin/1.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((300, 400, 3), np.uint8)).save(tmp_path / name)
    (tmp_path / "keypoints.csv").write_text(table)
    listing = read_folder(tmp_path)
    assert listing.faults == []
    assert listing.parts == ["beak", "tail"]
    seen = {record.name: record.visible for record in listing if record.visible is not None}
    assert seen["train/finch/1.jpg"].tolist() == [True, True]
    assert seen["train/finch/2.jpg"].tolist() == [False, False]
