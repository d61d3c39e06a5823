"""Options are refused before anything heavy is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dapl.common.errors import DaplError
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.metrics.registry import METRICS, NAMES, chosen


def test_defaults_are_those_of_the_design():
    protocol = EvaluationProtocol()
    assert (protocol.percentile, protocol.tau, protocol.scope, protocol.radius_of) == (95.0, 0.2, "image", "box")
    assert protocol.resamples == 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau must lie strictly between 0 and 1, but is 0"),
        ({"tau": 1.5}, "tau must lie strictly between 0 and 1, but is 1.5"),
        ({"tau": float("nan")}, "tau must lie"),
        ({"percentile": 100}, "percentile must lie strictly between 0 and 100"),
        ({"part_mode": "discs"}, "did you mean 'disc'"),
        ({"radius_of": "bx"}, "did you mean 'box'"),
        ({"scope": "images"}, "did you mean 'image'"),
        ({"radius": -1}, "radius must be above 0"),
        ({"resamples": 0}, "resamples must be 1 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(options: dict, message: str):
    with pytest.raises(DaplError, match=message):
        EvaluationProtocol(**options)


def test_metrics_are_chosen_by_name():
    assert chosen(" Coverage, background-bias") == {"coverage", "background_bias"}
    assert chosen(["accuracy"]) == {"accuracy"}
    assert chosen("all") == set(NAMES)
    assert chosen(None) == {metric.name for metric in METRICS if not metric.cost}


def test_an_unknown_metric_is_refused_with_the_nearest():
    with pytest.raises(DaplError, match="'covrage' is not known; did you mean 'coverage'"):
        chosen("covrage")


def test_options_need_no_torch():
    code = "import sys, dapl.cli, dapl.evaluation.protocol, dapl.metrics.registry; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
