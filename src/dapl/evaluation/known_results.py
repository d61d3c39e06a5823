"""What is known of a run: one full result, and beside it those of other protocols. Less never takes the place of more.

A result is what `Evaluation.to_json` gives. Two results have the same protocol when everything that decides their
numbers is the same; the numbers of both are then kept together.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from dapl.evaluation.protocol import EvaluationProtocol
from dapl.metrics.registry import chosen

OTHERS = "others"
"""Where metrics.json keeps the results of other protocols."""
Result = dict[str, Any]
Place = Literal["full", "added", "beside"]
"""What became of a new result: it is the one that is shown, it was added to that, or it stands beside it."""

_DECIDING = (*(field.name for field in fields(EvaluationProtocol)), "split", "data", "image_size", "fit", "images")
_OPEN = (None, "auto")
"""Values that leave a choice to the data; which one it was is only known where a metric needed it."""


def add_result(before: Result, new: Result) -> tuple[Result, Place]:
    """What metrics.json says after an evaluation, and what became of the new result.

    >>> full = {"protocol": {"split": "test", "metrics": sorted(chosen(None))}, "numbers": {"accuracy": 0.9}}
    >>> less = {"protocol": {"split": "validation", "metrics": ["accuracy"]}, "numbers": {"accuracy": 0.8}}
    >>> known, place = add_result(full, less)
    >>> known["numbers"], place, len(known["others"])
    ({'accuracy': 0.9}, 'beside', 1)
    """
    known = [_alone(before), *before.get(OTHERS, ())] if before else []
    known = [one for one in known if _same_model(one["protocol"], new["protocol"])]
    same = next((number for number, one in enumerate(known) if same_protocol(one["protocol"], new["protocol"])), None)
    if same is None:
        known.append(new)
        same = len(known) - 1
        merged = False
    else:
        merged = not is_full(new)
        known[same] = _merged(known[same], new)
    first = max(range(len(known)), key=lambda number: (_rank(known[number]), -number))
    others = [one for number, one in enumerate(known) if number != first]
    place: Place = "beside" if first != same else "added" if merged else "full"
    return known[first] | {OTHERS: others}, place


def same_protocol(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether everything that decides numbers is the same.

    >>> same_protocol({"tau": 0.2, "part_mode": "auto"}, {"tau": 0.2, "part_mode": "exact"})
    True
    >>> same_protocol({"tau": 0.2}, {"tau": 0.5})
    False
    """
    pairs = ((one.get(name), other.get(name)) for name in _DECIDING)
    return all(a == b or a in _OPEN or b in _OPEN for a, b in pairs)


def changed_fields(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What decides the numbers of ``one`` and is otherwise in ``other``.

    >>> changed_fields({"tau": 0.5, "split": "test"}, {"tau": 0.2, "split": "test"})
    {'tau': 0.5}
    """
    pairs = ((name, one.get(name), other.get(name)) for name in _DECIDING)
    return {name: a for name, a, b in pairs if a != b and a not in _OPEN and b not in _OPEN}


def is_full(result: Result) -> bool:
    """Whether all metrics that need no pass of their own were asked for.

    >>> is_full({"protocol": {"metrics": ["accuracy"]}})
    False
    """
    return chosen(None) <= set(result["protocol"].get("metrics", ()))


def _rank(result: Result) -> tuple[bool, bool]:
    """What is shown first: the test split, and all of its numbers."""
    return result["protocol"].get("split") == "test", is_full(result)


def _same_model(one: dict[str, Any], new: dict[str, Any]) -> bool:
    """Numbers of other weights are of another model, and forgotten. Older files do not say."""
    return one.get("weights") is None or one["weights"] == new.get("weights")


def _alone(result: Result) -> Result:
    return {name: value for name, value in result.items() if name != OTHERS}


def _merged(before: Result, new: Result) -> Result:
    """The numbers of two results of one protocol; where both have one, the new one counts."""
    numbers = before["numbers"] | new["numbers"]
    said = {name: value for name, value in new["protocol"].items() if value not in _OPEN}
    metrics = sorted({*before["protocol"].get("metrics", ()), *new["protocol"].get("metrics", ())})
    missing = before.get("missing", {}) | new.get("missing", {})
    other = [one for one in before.get("warnings", ()) if one not in new.get("warnings", ()) and not is_full(new)]
    merged = before | {name: value for name, value in new.items() if value}
    return merged | {
        "protocol": before["protocol"] | said | {"metrics": metrics},
        "numbers": numbers,
        "missing": {name: reason for name, reason in missing.items() if name not in numbers},
        "warnings": [*other, *new.get("warnings", ())],
    }
