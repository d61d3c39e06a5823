"""What docs/serve.md says of addresses and limits is so."""

from __future__ import annotations

import re
from pathlib import Path

from dapl.data.images import MAX_PIXELS
from dapl.serve.app import bare_app
from dapl.serve.inspector import REMEMBERED
from dapl.serve.requests import FORMATS, MAX_BYTES, PLACES

TEXT = " ".join((Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8").split())


def test_every_address_is_listed() -> None:
    listed = {
        (method, path)
        for methods, path in re.findall(r"\| ([A-Z, ]+) \| `(/api/[^`]+)` \|", TEXT)
        for method in methods.split(", ")
    }
    paths = bare_app().openapi()["paths"]
    assert listed == {(method.upper(), path) for path, methods in paths.items() for method in methods}


def test_the_limits() -> None:
    assert f"at most {MAX_BYTES // 2**20} MB" in TEXT
    assert f"{MAX_PIXELS // 10**6} megapixels" in TEXT
    assert f"{PLACES} may wait" in TEXT
    assert f"the last {REMEMBERED} images" in TEXT
    for name in FORMATS:
        assert name.lower() in TEXT.lower()
