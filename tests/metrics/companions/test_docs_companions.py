"""What docs/companions.md shows runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import dapl.common.operators  # noqa: F401  (before torchmetrics, which the page imports)

PAGE = Path(__file__).parents[3] / "docs" / "companions.md"


def test_the_code_on_the_page() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    results = doctest.DocTestRunner().run(test, out=report.append)
    assert results.attempted > 15
    assert results.failed == 0, "".join(report)
