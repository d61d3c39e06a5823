"""The plots of an evaluation."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dapl.evaluation import Evaluation, EvaluationProtocol, evaluate, plots
from dapl.evaluation.files import PLOTS
from dapl.evaluation.plots import head_redundancy, origin_of, save
from dapl.runs.run import Run

RESULT: Any = SimpleNamespace(protocol={"data": "birds", "split": "test", "images": 12, "scope": "image"})


def test_a_figure_is_saved_as_matplotlib_itself_would(tmp_path: Path) -> None:
    overlap = np.random.default_rng(0).random((4, 4))
    overlap[np.eye(4, dtype=bool)] = np.nan
    ours, theirs = tmp_path / "ours.png", tmp_path / "theirs.png"
    save(head_redundancy(overlap, RESULT), ours)
    head_redundancy(overlap, RESULT).savefig(theirs, format="png", dpi=150)
    with Image.open(ours) as one, Image.open(theirs) as other:
        assert one.size == other.size
        assert round(one.info["dpi"][0]) == 150
        assert np.array_equal(np.asarray(one), np.asarray(other))
        assert len(one.convert("RGB").getcolors(one.width * one.height) or []) > 50, "and not an empty sheet"


@pytest.mark.parametrize("kind", ["nothing", "a folder", "a pipe", "a text", "a bomb", "a JPEG"])
def test_what_is_no_plot_was_drawn_from_nothing(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    if kind == "a folder":
        file.mkdir()
    elif kind == "a pipe":
        os.mkfifo(file)
    elif kind == "a text":
        file.write_text("drawn from")
    elif kind == "a bomb":
        size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
        header = b"IHDR" + size
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)))
    elif kind == "a JPEG":
        Image.new("RGB", (8, 8)).save(file, format="JPEG")
    assert origin_of(file) is None


def test_plots_are_drawn_anew_where_they_show_something_else(
    evaluated: tuple[Path, Evaluation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(evaluated[0], tmp_path / "run"))
    folder = Run(run).evaluation_folder
    drawn: list[str] = []

    def saving(figure: Any, file: Path, origin: str = "") -> None:
        drawn.append(file.name)
        save(figure, file, origin)

    monkeypatch.setattr(plots, "save", saving)
    before = {name: (folder / name).read_bytes() for name in PLOTS}
    evaluate(run, quiet=True)
    assert not drawn, "nothing has changed"

    (folder / "redundancy.png").unlink()
    cut = before["coverage_tau.png"][:-2000]
    (folder / "coverage_tau.png").write_bytes(cut)
    assert origin_of(folder / "coverage_tau.png") is None
    evaluate(run, quiet=True)
    assert len(drawn) == 2
    assert {name: (folder / name).read_bytes() for name in PLOTS} == before

    evaluate(run, EvaluationProtocol(tau=0.4), quiet=True)
    assert len(drawn) == 2 + len(PLOTS), "another protocol has plots of its own"
    assert {name: (folder / name).read_bytes() for name in PLOTS} == before
