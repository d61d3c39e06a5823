"""A model that says nothing is told from one that does, in one sentence."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dapl.cli import main
from dapl.evaluation import Evaluation, evaluate, table
from dapl.evaluation.measurements import chance_probability
from dapl.metrics.naming import background_share, background_warning, lies_on_background
from dapl.runs.run import Run


def change(folder: Path, name: str, to: float) -> None:
    """Set all weights whose name has this in it, in the checkpoint that is evaluated."""
    file = Run.open(folder).best
    with safe_open(file, framework="pt") as opened:
        facts, weights = opened.metadata(), {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    found = [key for key in weights if name in key and weights[key].is_floating_point()]
    assert found
    save_file(weights | {key: torch.full_like(weights[key], to) for key in found}, file, facts)


@pytest.mark.parametrize(("right", "images", "share"), [(0, 5, 0.2), (1, 5, 0.2), (4, 9, 1 / 3), (9, 9, 0.5)])
def test_the_binomial_test_against_its_sum(right: int, images: int, share: float) -> None:
    p = Fraction(share)
    wanted = sum(math.comb(images, k) * p**k * (1 - p) ** (images - k) for k in range(right, images + 1))
    assert chance_probability(right, images, share) == pytest.approx(float(wanted), rel=1e-9)


def test_constant_maps_and_answers_by_chance(run: Path) -> None:
    """All patches are alike to the prototypes: every map is constant, and so is every answer."""
    change(run, "attention", 0.0)
    result = evaluate(run, metrics="accuracy,coverage,diversity,region_background_share,consistency", quiet=True)
    flat, chance = result.warnings
    assert flat.startswith("100% of the maps are constant")
    assert "is that of chance: always naming the most frequent class has 33.3%" in chance
    assert (result["coverage"], result["diversity"], result["consistency"]) == (0, 0.5, 0)
    assert math.isnan(result["region_background_share"])
    text = table(result)
    assert max(map(len, text.splitlines())) <= 80
    (warning,) = [paragraph for paragraph in text.split("\n\n") if paragraph.startswith("warning:")]
    assert " ".join(warning.split()) == f"warning: {flat}; {chance}. Do not draw conclusions from the other numbers."
    assert json.loads(Run.open(run).evaluation_file.read_text())["warnings"] == result.warnings


def test_weights_that_are_not_finite(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(run, "attention", math.nan)
    before = sorted(path.name for path in run.iterdir())
    for words in (["evaluate", str(run)], ["export", str(run), "--format", "hub"], ["report", str(run)]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "best.safetensors: attention" in said
        assert "has values that are not finite" in said
    assert sorted(path.name for path in run.iterdir()) == before


def test_reasons_on_background(evaluated: tuple[Path, Evaluation]) -> None:
    """A model that has learned nothing looks anywhere, mostly at background, and this is said where it is read."""
    folder, result = evaluated
    share = result["region_background_share"]
    assert lies_on_background(share)
    said = background_warning(share)
    assert said is not None
    assert said in result.warnings
    assert said.startswith(f"{share:.0%} of what the reasons rest on lies off the object")
    assert said in " ".join(table(result).split())
    assert said in json.loads(Run.open(folder).evaluation_file.read_text())["warnings"]


def test_the_rule_for_background() -> None:
    assert [lies_on_background(share) for share in (0.5, 0.51, math.nan, None)] == [False, True, False, False]
    assert background_share([0.9, 0.1], weights=[-3.0, 1.0]) == pytest.approx(0.7)
    assert background_share([0.9, math.nan, 0.1]) == pytest.approx(0.5)
    assert background_share([None, math.nan]) is None
    assert background_warning(0.5) is None
