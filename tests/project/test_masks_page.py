"""The table of mask makers on docs/own-data.md is the one that its script makes from what was measured."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_what_was_measured() -> None:
    rendered = runpy.run_path(str(DOCS / "render_masks.py"))["rendered"]()
    assert rendered in (DOCS / "own-data.md").read_text(encoding="utf-8")
    assert rendered.count("\n| ") >= 6
