"""The plots of an evaluation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from dapl.evaluation.plots import head_redundancy, save

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
