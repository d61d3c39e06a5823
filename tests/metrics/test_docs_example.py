"""What the pages metrics, companions, audit and interventions show runs, and gives the numbers worked out by hand."""

from __future__ import annotations

import doctest
import re
from fractions import Fraction
from pathlib import Path

import dapl.common.operators  # noqa: F401  (before torchmetrics, which the pages import)

# isort: split
import pytest
import torch
from tests.evaluation.test_audit import protopnet_state

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "blocks"), [("metrics.md", 9), ("companions.md", 3), ("audit.md", 2), ("interventions.md", 2)]
)
def test_the_code_on_the_page(page: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "audit.md":
        torch.save(protopnet_state("resnet18"), tmp_path / "ppnet.pth")
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == blocks
    test = doctest.DocTestParser().get_doctest("\n".join(found), {}, page, str(DOCS / page), 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert results.attempted > 5
    assert results.failed == 0, "".join(report)


def test_the_numbers_worked_by_hand() -> None:
    """The sums as the text has them, against the figures that the code on the page prints."""
    coverage = 2 * 1 * Fraction(2, 3) / (1 + Fraction(2, 3))
    redundancy, imbalance = Fraction(2, 6), Fraction(2 * (2 + 1 + 1), 2 * 3**2 * 1)
    assert float(coverage) == 0.8
    assert imbalance == Fraction(4, 9)
    assert 1 - (redundancy + imbalance) / 2 == Fraction(11, 18)
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    printed = (1, Fraction(2, 3), coverage, redundancy, imbalance, Fraction(11, 18))
    for value in printed[1:]:
        assert f"tensor({float(value):.4f})" in text
