"""Which way is better, and what has to be measured for it."""

from __future__ import annotations

import pytest

from dapl.common.errors import DaplError
from dapl.experiments.sweep_space import KNOWN, SweepObjective, metrics_for, numbers_for, parse_objectives
from dapl.metrics.registry import chosen


def test_directions() -> None:
    found = parse_objectives(["accuracy,Redundancy", "background-bias", "coverage:min"])
    assert [(o.name, o.maximise) for o in found] == [
        ("accuracy", True),
        ("redundancy", False),
        ("background_bias", False),
        ("coverage", False),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["acuracy"], "'acuracy' is not known; did you mean 'accuracy'"),
        (["coverage:up"], "the direction is min or max"),
        (["coverage", "coverage:min"], "given twice"),
        (["object_overlap"], "neither more nor less"),
        (["prototypes"], "not known"),
    ],
)
def test_bad_objectives(words: list[str], said: str) -> None:
    with pytest.raises(DaplError) as error:
        parse_objectives(words)
    assert said in str(error.value)


@pytest.mark.parametrize("name", KNOWN)
def test_every_objective_is_measured_and_shown(name: str) -> None:
    objective = SweepObjective(name, True)
    assert {"accuracy", "coverage", "diversity", "background_bias"} <= chosen(metrics_for([objective]))
    assert name in numbers_for([objective])


def test_metrics_that_take_passes_of_their_own_are_left_out_unless_asked_for() -> None:
    assert "faithfulness" not in metrics_for(parse_objectives(["accuracy"]))
    assert "faithfulness" in metrics_for(parse_objectives(["faithfulness"]))
