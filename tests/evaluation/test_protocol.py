"""Options are refused before anything heavy is loaded."""

from __future__ import annotations

import pytest

from dapl.common.errors import DaplError
from dapl.evaluation.protocol import EvaluationProtocol


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
