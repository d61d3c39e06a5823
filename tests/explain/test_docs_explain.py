"""What docs/explain.md shows runs, and its worked row adds up."""

from __future__ import annotations

import doctest
import re
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


def test_the_code_on_the_page(dapl_run: Path, bird: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(dapl_run, tmp_path / "runs" / "demo")
    shutil.copy(bird, tmp_path / "bird.png")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert results.attempted > 8
    assert results.failed == 0, "".join(report)


def test_the_numbers_worked_by_hand() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    terms, total = re.search(r"((?:[\d.]+ \+ )+[\d.]+) = ([\d.]+), the logit", text).groups()  # type: ignore[union-attr]
    assert sum(map(float, terms.split(" + "))) == pytest.approx(float(total), abs=5e-4)
    score, weight, product = re.search(r"([\d.]+) × ([\d.]+) = ([\d.]+)\.", text).groups()  # type: ignore[union-attr]
    assert float(score) * float(weight) == pytest.approx(float(product), abs=1e-3)
