"""Statistics as functions of sums, and their intervals."""

from __future__ import annotations

import math

import pytest
import torch

from dapl import metrics
from dapl.evaluation import EvaluationProtocol
from dapl.evaluation.measurements import Measurements, Rows
from dapl.evaluation.measures import numbers
from dapl.evaluation.statistics import (
    balanced_accuracy,
    calibration_error,
    mean,
    resample_weights,
    values,
    with_intervals,
)
from dapl.metrics import functional
from dapl.metrics.registry import NUMBERS, given_by


def uniform(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def width(number) -> float:
    return number.high - number.low


def test_interval_holds_the_mean_and_is_that_of_the_normal_law():
    sample = uniform(2000)
    number = with_intervals([mean(m=sample)], 1000, seed=0)["m"]
    assert number.value == pytest.approx(sample.double().mean().item())
    assert number.low < number.value < number.high
    assert width(number) == pytest.approx(2 * 1.96 * sample.std().item() / math.sqrt(2000), rel=0.1)


def test_interval_shrinks_with_the_root_of_the_number_of_rows():
    small, large = (with_intervals([mean(m=uniform(n))], 1000, seed=0)["m"] for n in (100, 1600))
    assert width(small) / width(large) == pytest.approx(4, rel=0.2)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    statistic = [mean(m=uniform(50))]
    first, again, other = (with_intervals(statistic, 200, seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_intervals_do_not_depend_on_how_the_resamples_are_chunked(monkeypatch: pytest.MonkeyPatch):
    whole = torch.cat(list(resample_weights(10, 30, seed=1)))
    monkeypatch.setattr("dapl.evaluation.statistics._WEIGHTS_AT_ONCE", 70)
    parts = list(resample_weights(10, 30, seed=1))
    assert len(parts) == 5
    assert torch.equal(torch.cat(parts), whole)
    assert (whole.sum(1) == 10).all()


def test_rows_without_a_value_are_left_out():
    sample = torch.tensor([0.2, torch.nan, 0.4])
    number = with_intervals([mean(m=sample)], 200, seed=0)["m"]
    assert number.value == pytest.approx(0.3)
    assert 0.2 - 1e-6 <= number.low <= number.high <= 0.4 + 1e-6


def test_nothing_to_measure_gives_nan_not_an_error():
    number = with_intervals([mean(m=torch.full((4,), torch.nan))], 10, seed=0)["m"]
    assert math.isnan(number.value)


def test_balanced_accuracy_is_the_mean_over_the_classes_that_occur():
    right, labels = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 2])
    assert values([balanced_accuracy(right, labels, 4)], torch.ones(1, 4).double())["balanced_accuracy"].item() == 0.5


def test_calibration_error_by_hand():
    # bins of 0.1: 0.95 and 0.92 share one, of which one is right; 0.55 is right
    statistic = calibration_error(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0.95, 0.92, 0.55]), bins=10)
    expected = (2 * abs(0.5 - 0.935) + abs(1 - 0.55)) / 3
    assert values([statistic], torch.ones(1, 3).double())["ece"].item() == pytest.approx(expected)


def test_interval_of_the_calibration_error_holds_it_though_resamples_are_biased():
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(300, generator=generator)
    right = (torch.rand(300, generator=generator) < confidence).float()
    number = with_intervals([calibration_error(right, confidence, 15)], 500, seed=0)["ece"]
    assert number.low <= number.value <= number.high


def random_case(rows: int = 40, prototypes: int = 5, parts: int = 6, side: int = 9):
    generator = torch.Generator().manual_seed(5)
    regions = torch.rand(rows, prototypes, side, side, generator=generator) > 0.7
    masks = torch.rand(rows, parts, side, side, generator=generator) > 0.7
    visible = torch.rand(rows, parts, generator=generator) > 0.4
    visible[3] = False
    kept = torch.rand(rows, prototypes, generator=generator) > 0.2
    kept[7] = False
    return regions, functional.overlap(regions, masks), visible, kept


@pytest.mark.parametrize("scope", ["image", "dataset"])
def test_function_class_and_evaluation_give_one_number(scope: str):
    """Counts once, number once: the three ways to Coverage and Diversity run the same formula."""
    regions, overlap, visible, kept = random_case()
    assigned = functional.assign(overlap, 0.32, visible, kept)
    rows = Rows(len(regions))
    rows.add(
        torch.arange(len(regions)),
        {"overlap": overlap, "visible": visible, "kept": kept, "ious": functional.iou(regions)},
    )
    protocol = EvaluationProtocol(tau=0.32, scope=scope, resamples=2)
    measured = Measurements(
        frozenset({"coverage", "diversity"}), protocol, ["a"], ["p"] * 6, torch.zeros(40).long(), rows, rows, kept[:1]
    )
    found = numbers(measured)
    options = {} if scope == "image" else {"num_parts": 6}
    for name in ("coverage", "precision", "recall", "diversity", "redundancy", "imbalance"):
        with_regions = given_by(name).name == "diversity"
        arguments = (regions, assigned, visible, kept) if with_regions else (assigned, visible, kept)
        metric = getattr(metrics, NUMBERS[name].class_name)(scope=scope, **(options if with_regions else {}))
        metric.update(*arguments)
        assert found[name].value == pytest.approx(metric.compute().item(), abs=1e-6), name
        if scope == "image":
            plain = (assigned, visible, kept) if name == "imbalance" else arguments
            expected = getattr(functional, name)(*plain).double().nanmean().item()
            assert found[name].value == pytest.approx(expected, abs=1e-6), name
