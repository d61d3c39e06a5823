"""Every registered metric keeps what its entry promises, wherever a metric is named."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys

import pytest

import dapl.metrics
from dapl.evaluation import audit
from dapl.evaluation.measures import MEASURES
from dapl.experiments.comparison import shown_columns
from dapl.experiments.sweep_space import KNOWN, parse_objectives
from dapl.metrics import classes, functional
from dapl.metrics.registry import HEADLINES, METRICS, NAMES, NUMBERS, chosen, given_by, missing_needs, number
from dapl.report.facts import number_rows

NEEDS = ("maps", "logits", "model", "parts", "points", "masks")


def test_names_are_told_apart_and_each_is_measured() -> None:
    assert len(set(NAMES)) == len(METRICS)
    assert len(NUMBERS) == sum(len(metric.numbers) for metric in METRICS)
    assert MEASURES.keys() == set(NAMES)
    assert set(HEADLINES) <= NUMBERS.keys()


def test_metrics_are_chosen_by_name() -> None:
    assert chosen(" Coverage, background-bias") == {"coverage", "background_bias"}
    assert chosen(["accuracy"]) == {"accuracy"}
    assert chosen("all") == set(NAMES)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_keeps_its_promises(metric) -> None:
    if metric.numbers:
        assert metric.numbers[0].name == metric.name
        assert chosen(metric.name) == {metric.name}
    assert set(metric.needs) <= set(NEEDS)
    for need in metric.needs:
        others = [other for other in NEEDS if other != need]
        assert missing_needs([metric.name], others)[metric.name], "users read why it could not be measured"
    assert missing_needs([metric.name], NEEDS) == {}
    if metric.function:
        function = getattr(functional, metric.function)
        assert ">>>" in inspect.getdoc(function), "an example that runs"
    assert (metric.name in chosen(None)) == (not metric.cost)


@pytest.mark.parametrize("entry", NUMBERS.values(), ids=lambda entry: entry.name)
def test_a_number_is_known_wherever_numbers_are_named(entry) -> None:
    assert number(entry.name) is entry
    low, high = entry.bounds
    assert low < high
    if entry.class_name:
        metric_class = getattr(classes, entry.class_name)
        assert metric_class is getattr(dapl.metrics, entry.class_name)
        assert metric_class.higher_is_better is {"higher": True, "lower": False, None: None}[entry.better]
        assert metric_class.plot_lower_bound == (low if math.isfinite(low) else None)
        assert metric_class.plot_upper_bound == (high if math.isfinite(high) else None)
    # sweep
    assert entry.name in KNOWN
    (objective,) = parse_objectives([f"{entry.name}:min" if entry.better is None else entry.name])
    assert objective.maximise == (entry.better == "higher")
    # compare: shown where it was asked for, `all` included
    for asked in ("all", given_by(entry.name).name):
        assert entry.name in [column.name for column in shown_columns([{entry.name: 0.5}], asked)]
    # report
    (row,) = number_rows({"numbers": {entry.name: {"value": 0.5}}})
    assert row["better"] == entry.better
    assert row["text"] == entry.heading


@pytest.mark.parametrize("name", sorted({metric.function for metric in METRICS if metric.function}))
def test_a_function_is_found_in_its_module(name: str) -> None:
    """So that one that is added need not be named in the package too: a metric is added in three files."""
    assert functional.__getattr__(name) is getattr(functional, name)


def test_no_other_name_is_found() -> None:
    for name in ("covrage", "check_maps", "torch"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            functional.__getattr__(name)


def test_neither_much_nor_little_of_the_object_is_better_anywhere() -> None:
    assert number("object_overlap").better is None
    assert dapl.metrics.ObjectOverlap.higher_is_better is None
    assert number_rows({"numbers": {"object_overlap": {"value": 0.5}}})[0]["better"] is None


def test_what_compare_shows_without_being_asked_stays_short() -> None:
    names = [column.name for column in shown_columns([dict.fromkeys(NUMBERS, 0.5)])]
    assert {"accuracy", "coverage", "diversity"} <= set(names)
    assert "ece" not in names


def test_all_that_costs_nothing_is_measured_or_missing_with_a_reason() -> None:
    """On a foreign model, the least that a metric can be given; `dapl evaluate` is held to it by tests/evaluation."""
    import torch

    from dapl.data.toybirds import ToyBirds

    class Centre:
        membership = torch.eye(2).bool()

        def maps(self, images, labels):
            maps = torch.zeros(len(images), 1, 4, 4)
            maps[..., 1, 1] = 1
            return maps

    birds = ToyBirds(classes=2, images_per_class=2, size=64, split="test")
    result = audit(Centre(), birds, size=64, metrics="all", quiet=True)
    for metric in METRICS:
        names = [entry.name for entry in metric.numbers]
        assert metric.name in result.missing or all(name in result.numbers for name in names), metric.name


def test_registry_and_options_need_no_torch() -> None:
    code = "import sys, dapl.cli, dapl.metrics.registry, dapl.evaluation.protocol; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
