"""What docs/metrics.md shows runs, and gives the numbers that it works out by hand."""

from __future__ import annotations

import doctest
import re
from fractions import Fraction
from pathlib import Path

import dapl.common.operators  # noqa: F401  (before torchmetrics, which the page imports)

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_code_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    results = doctest.DocTestRunner().run(test, out=report.append)
    assert results.attempted > 20
    assert results.failed == 0, "".join(report)


def test_the_numbers_worked_by_hand() -> None:
    """The sums as the text has them, against the figures that the code on the page prints."""
    coverage = 2 * 1 * Fraction(2, 3) / (1 + Fraction(2, 3))
    redundancy, imbalance = Fraction(2, 6), Fraction(2 * (2 + 1 + 1), 2 * 3**2 * 1)
    assert float(coverage) == 0.8
    assert imbalance == Fraction(4, 9)
    assert 1 - (redundancy + imbalance) / 2 == Fraction(11, 18)
    text = PAGE.read_text(encoding="utf-8")
    printed = (1, Fraction(2, 3), coverage, redundancy, imbalance, Fraction(11, 18))
    for value in printed[1:]:
        assert f"tensor({float(value):.4f})" in text
