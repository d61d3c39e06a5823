"""The metrics that look at an explanation as a whole or show the model other images, on a tiny run of every system."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from dapl.evaluation import EvaluationProtocol, evaluate, table
from dapl.metrics.registry import metric, number
from dapl.models.build import SYSTEMS
from dapl.runs.loading import load_run

NAMES = ("distinctiveness", "comprehensiveness", "faithfulness", "spatial_misalignment")
PROTOCOL = EvaluationProtocol(attack_images=4, attack_steps=2, resamples=20)


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"blackbox"}))
def test_every_system_is_measured(system: str, trained: Callable[[str], Path]) -> None:
    result = evaluate(trained(system), PROTOCOL, metrics=NAMES, quiet=True, files=False)
    pairs = load_run(trained(system)).model.prototypes.by_class()[1].sum(1).max() > 1  # pruning may have left none
    assert set(result.missing) == (set() if pairs else {"distinctiveness"})
    for name in set(NAMES) - set(result.missing):
        for entry in metric(name).numbers:
            low, high = number(entry.name).bounds
            assert math.isfinite(result[entry.name]), entry.name
            assert low - 1e-6 <= result[entry.name] <= high + 1e-6, entry.name
    assert result["activation_change"] > 0  # the attack did lower the similarity
    text = table(result)
    assert "spatial misalignment: 4 images, one prototype each" in text
    assert "spatial_misalignment took some steps of gradient" in text
    assert "faithfulness against the control object" in text
    share = result.protocol.get("field_share")
    if system == "parts":
        assert share is None  # a head sees a crop, of another size in every image
    else:
        assert 0 < share <= 1


def test_an_attack_is_the_same_whatever_the_batches(trained: Callable[[str], Path]) -> None:
    found = []
    for batch in (4, 3):
        config = load_run(trained("pixpnet")).config
        config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"evaluation_batch": batch})})
        names = "spatial_misalignment"
        found.append(evaluate(trained("pixpnet"), PROTOCOL, metrics=names, config=config, quiet=True, files=False))
    # Rounding differs between batches, and the sign of a gradient near 0 with it, by which a pixel moves: not the mean.
    assert found[0]["activation_change"] == pytest.approx(found[1]["activation_change"], abs=1e-3)
    assert found[0]["attacked_share"] == found[1]["attacked_share"]


def test_a_black_box_has_nothing_to_attack(trained: Callable[[str], Path]) -> None:
    result = evaluate(trained("blackbox"), PROTOCOL, metrics=NAMES, quiet=True, files=False)
    assert result.missing == dict.fromkeys(NAMES, "the model has no prototypes")
