"""docs/faces.md: its commands are understood, and run on small videos; its tables name what the code has."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from dapl.cli import _parser, main
from dapl.data.faceforensics_files import ManifestLine
from dapl.masks.faces import PARTS
from dapl.runs.run import Run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faces.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]


@pytest.mark.parametrize("command", [line for line in COMMANDS if " prepare " in line])
def test_every_option_of_a_command_is_known(command: str) -> None:
    known, rest = _parser().parse_known_args(shlex.split(command)[1:])
    assert known.command == "prepare faceforensics"
    assert rest == []


def test_the_defaults_are_those_of_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    known, _ = _parser().parse_known_args(["prepare", "faceforensics", "videos", "out"])
    rows = dict(re.findall(r"^\| `--([\w-]+)` \| (.+?) \|", PAGE, flags=re.MULTILINE))
    for name in ("compression", "frames", "size", "margin", "refine", "workers"):
        assert rows[name].strip("`") == str(getattr(known, name))
    with pytest.raises(SystemExit):
        main(["prepare", "faceforensics", "--help"])
    options = re.findall(r"^ +--([\w-]+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert set(rows) == set(options) - {"quiet"}


def test_the_manifests_fields_are_told() -> None:
    table = PAGE[PAGE.index("| field | what |") : PAGE.index("## Decisions")]
    cells = re.findall(r"^\| (`.+?) \|", table, flags=re.MULTILINE)
    told = {name for cell in cells for name in re.findall(r"\w+", cell)}
    assert told == {field.name for field in fields(ManifestLine)}


def test_the_ten_parts_are_told() -> None:
    text = " ".join(PAGE.split())
    assert len(PARTS) == 10
    for name in ("eye", "brow", "cheek"):
        assert f"left and right {name}" in text
    for name in PARTS[4:6] + PARTS[8:]:
        assert name in text


def test_the_papers_number_of_frames() -> None:
    """296,238 of 3,600 videos and 57,900 of 700."""
    shares = np.array([296_238 / 3_600, 57_900 / 700])
    assert (np.ceil(shares) == 83).all()
    assert "82 to 83 per video" in PAGE


def test_the_first_command_and_the_python(
    face_videos: Path, face_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPL_FACE_MODEL", str(face_model))
    (tmp_path / "FaceForensics++").symlink_to(face_videos, target_is_directory=True)
    words = shlex.split(next(line for line in COMMANDS if " prepare " in line))[1:]
    words[words.index("--workers") + 1] = "1"
    assert main([*words, "--frames", "1", "--size", "64"]) == 0
    capsys.readouterr()
    [code] = [text for language, text in BLOCKS if language == "python"]
    exec(code, {})
    assert "'left eye'" in capsys.readouterr().out


def test_heads_that_are_parts_on_faces(
    prepared_faces: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [command] = [line for line in COMMANDS if "faceforensics-parts" in line]
    words = shlex.split(command)[1:]
    words[words.index("faces")] = str(prepared_faces[0])
    monkeypatch.chdir(ROOT)
    small = ["--data.image_size", "96", "--schedule.0.epochs", "1", "--model.backbone.weights", "random"]
    assert main([*words, *small, "--out", str(tmp_path / "run")]) == 0
    assert Run(tmp_path / "run").evaluation()["protocol"]["tau"] == 0.5  # as the data set has it
