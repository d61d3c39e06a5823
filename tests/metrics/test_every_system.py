"""The metrics that look at an explanation as a whole or show the model other images, on a tiny run of every system."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dapl.batches.run_data import RunData
from dapl.common.progress import Reporter
from dapl.config import Config
from dapl.evaluation import EvaluationProtocol, evaluate, table
from dapl.evaluation.ground_truth import SplitGroundTruth
from dapl.evaluation.passes import measure_split
from dapl.metrics.registry import chosen, metric, number
from dapl.models.build import SYSTEMS
from dapl.processes.launch import make_processes
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


def in_batches_of(config: Config, size: int) -> Config:
    """No features are kept, so that the backbone too sees the images in other batches."""
    runtime = config.runtime.model_copy(update={"evaluation_batch": size})
    return config.model_copy(update={"runtime": runtime, "cache": config.cache.model_copy(update={"features": False})})


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"blackbox"}))
def test_what_is_counted_has_the_same_bits_whatever_the_batches(system: str, trained: Callable[[str], Path]) -> None:
    """Overlaps with parts, IoUs, islands, peaks, shares: all that regions and maps decide, and the logits' loss."""
    loaded, found, quiet = load_run(trained(system)), [], Reporter(quiet=True)
    for size in (1, 2, 7):
        config = in_batches_of(loaded.config, size)
        run_data = RunData.of_model(config, loaded.model, loaded.classes, "test", make_processes(config), quiet)
        truth = SplitGroundTruth(run_data, "test", EvaluationProtocol())
        found.append(measure_split(loaded.model, truth, chosen(None), quiet).columns)
    assert {"overlap", "ious", "bias", "region_share"} <= found[0].keys()
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        differ = [
            name for name, column in found[0].items() if not torch.equal(column.nan_to_num(), other[name].nan_to_num())
        ]
        assert not differ


def test_an_attack_is_the_same_whatever_the_batches(trained: Callable[[str], Path]) -> None:
    """To the last bit: the sign of a gradient near 0 decides where a pixel goes."""
    found = []
    for size in (4, 3):
        config = in_batches_of(load_run(trained("pixpnet")).config, size)
        names = "spatial_misalignment"
        found.append(evaluate(trained("pixpnet"), PROTOCOL, metrics=names, config=config, quiet=True, files=False))
    assert found[0].numbers == found[1].numbers


def test_a_black_box_has_nothing_to_attack(trained: Callable[[str], Path]) -> None:
    result = evaluate(trained("blackbox"), PROTOCOL, metrics=NAMES, quiet=True, files=False)
    assert result.missing == dict.fromkeys(NAMES, "the model has no prototypes")
