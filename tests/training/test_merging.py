"""ProtoPShare's merging: the plan against a slow reference, and the stage in a run that starts from a ProtoPNet."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.config import Config, load_config
from dapl.models.build import build_model
from dapl.processes.interface import SingleProcess
from dapl.runs.checkpoint import fresh_records, load_checkpoint
from dapl.runs.loading import load_run
from dapl.runs.run import Run
from dapl.training import trainer
from dapl.training.pruning import merge, plan_merge
from dapl.training.state import RunState
from dapl.training.trainer import train

from ..conftest import TINY
from .conftest import PROTOPNET, Killed, assert_same_run, lines_of, responses_of, train_and_copy

# --- the plan -------------------------------------------------------------------------------------------------------


def slow_plan(responses: Tensor, kept: Tensor, share: float) -> list[tuple[int, list[int]]]:
    """By the published rule: nearest-neighbour distances, their k-th smallest is the threshold, greedy by number."""
    alive = [j for j in range(len(kept)) if kept[j]]

    def apart(p: int, q: int) -> float:
        return sum((a - b) ** 2 for a, b in zip(responses[:, p].tolist(), responses[:, q].tolist(), strict=True))

    nearest = sorted(min(apart(p, q) for q in alive if q != p) for p in alive)
    threshold = nearest[max(1, round(share * len(alive))) - 1]
    plan, gone = [], set()
    for p in alive:
        if p in gone:
            continue
        near = [q for q in alive if q != p and q not in gone and apart(p, q) <= threshold]
        if near:
            gone.update(near)
            plan.append((p, near))
    return plan


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_the_plan_is_that_of_the_slow_reference(seed: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    responses = torch.rand(6, 14, generator=generator)
    responses[:, 9] = responses[:, 2] + 0.01  # and some that are near on purpose
    responses[:, 11] = responses[:, 9] + 0.01
    kept = torch.rand(14, generator=generator) < 0.8
    kept[[2, 9, 11]] = True
    plan = plan_merge([responses], kept, share)
    assert plan == plan_merge(responses.split(1), kept, share)  # an image at a time
    assert plan == slow_plan(responses, kept, share)
    assert plan


@pytest.mark.parametrize("seed", range(3))
def test_several_steps_are_those_of_the_slow_reference(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    responses, kept = torch.rand(5, 16, generator=generator), torch.ones(16, dtype=torch.bool)
    left = []
    for _ in range(4):
        plan = plan_merge(responses.split(2), kept, 0.3)
        assert plan == slow_plan(responses, kept, 0.3)
        for _, others in plan:
            assert kept[others].all()  # none goes twice
            kept[others] = False
        left.append(int(kept.sum()))
    assert left == sorted(set(left), reverse=True)  # fewer in each step


PAIRS = [0.0, 1.0, 100.0, 102.0, 200.0, 204.0]
"""Pairs at distances 1, 2, 4, far from each other."""
OFFSETS = [[1000.0, 1000.25, 1000.5, 1002.0], [1000.0, 1000.25, 1000.375, 1002.0]]


@pytest.mark.parametrize(
    ("responses", "kept", "share", "plan"),
    [
        # greedy: the first takes in the second; the third, near the second only, stays
        ([[0.0, 1.0, 2.0, 50.0]], "1111", 0.5, [(0, [1])]),
        # in another order the one in the middle comes first and takes in both
        ([[1.0, 0.0, 2.0, 50.0]], "1111", 0.5, [(0, [1, 2])]),
        # with k of 6 merge those with the k smallest neighbours, at least one pair
        ([PAIRS], "111111", 0.01, [(0, [1])]),
        ([PAIRS], "111111", 2 / 6, [(0, [1])]),
        ([PAIRS], "111111", 3 / 6, [(0, [1]), (2, [3])]),
        ([PAIRS], "111111", 5 / 6, [(0, [1]), (2, [3]), (4, [5])]),
        # what was removed takes no part
        ([[0.0, 0.1, 5.0, 6.0]], "1011", 0.1, [(2, [3])]),
        ([[0.0, 0.1, 5.0, 6.0]], "0100", 0.5, []),
        ([[0.0, 0.1, 5.0, 6.0]], "0000", 0.5, []),
        # equal answers merge whatever the share
        ([[0.3] * 5, [0.7] * 5], "11111", 0.01, [(0, [1, 2, 3, 4])]),
        # far from 0, where the expansion ‖a‖² − 2ab + ‖b‖² would lose the difference
        (OFFSETS, "1111", 0.25, [(1, [2])]),
    ],
)
def test_plans(responses: list[list[float]], kept: str, share: float, plan: list[tuple[int, list[int]]]) -> None:
    assert plan_merge([torch.tensor(responses)], torch.tensor([flag == "1" for flag in kept]), share) == plan


# --- merging a model ------------------------------------------------------------------------------------------------


CLASSES = ["finch", "owl", "wren"]


@torch.no_grad()
def test_weights_classes_and_records(configured: Callable[..., Config]) -> None:
    model = build_model(configured({"model": PROTOPNET}).model, 3, seed=1).eval()
    records = fresh_records(model, CLASSES)
    weight = model.class_weights().clone()
    merge(model, records, [(7, [8]), (0, [4, 3])])
    expected = weight.clone()
    expected[7], expected[8] = weight[7] + weight[8], 0
    expected[0], expected[[3, 4]] = weight[0] + weight[3] + weight[4], 0
    assert_close(model.class_weights(), expected)
    for j, record in enumerate(records):
        assert record.kept == bool(model.prototypes.kept[j]) == (j not in (3, 4, 8))
        if record.kept:
            own = model.prototypes.membership[j].nonzero().flatten().tolist()
            assert record.classes == [CLASSES[c] for c in own]
    assert records[0].classes == ["finch", "owl"]
    assert records[7].classes == ["wren"]
    assert [records[j].reason for j in (3, 4, 8)] == ["merged into prototype 0"] * 2 + ["merged into prototype 7"]


# --- the stage in a run ---------------------------------------------------------------------------------------------


STEPS, EPOCHS = 3, 2
MERGING: dict[str, Any] = {
    "model": PROTOPNET | {"system": "protopshare"},
    "schedule": [{"stage": "merge", "steps": STEPS, "epochs": EPOCHS, "share": 0.25, "learning_rate": 0.05}],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A ProtoPNet that was trained and projected."""
    folder = tmp_path_factory.mktemp("protopnet")
    schedule = [
        {"stage": "warm_up", "epochs": 1, "batch_size": 8},
        {"stage": "project"},
        {"stage": "last_layer", "epochs": 2},
    ]
    fields = TINY | {"model": PROTOPNET, "schedule": schedule, "cache.folder": str(folder / "cache")}
    return train(load_config(None, copy.deepcopy(fields)), folder / "run", quiet=True)


@pytest.fixture
def start(trained: Run, tmp_path: Path) -> Run:
    """A copy of it that a test may spoil."""
    return Run(shutil.copytree(trained.folder, tmp_path / "protopnet"))


def test_a_protopnet_becomes_a_protopshare(configured: Callable[..., Config], start: Run, tmp_path: Path) -> None:
    run = train(configured(MERGING | {"start": str(start.folder)}), tmp_path / "run", quiet=True)
    lines = lines_of(run)
    steps = [line for line in lines if line["event"] == "merge"]
    assert [(line["stage"], line["step"], line["epoch"]) for line in steps] == [(0, 0, 1), (0, 1, 3), (0, 2, 5)]
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == list(range(STEPS * EPOCHS))
    assert lines[-1]["event"] == "stage"
    for line in steps:
        assert 0 <= line["validation"]["accuracy"] <= line["tuned"]["accuracy"] <= 1  # tuning is kept if it helps
        assert line["validation"]["cross_entropy"] > 0
    # vectors and backbone stay, so that the answers of the start decide every step
    kept, responses, expected = torch.ones(9, dtype=torch.bool), responses_of(start), []
    into: dict[int, int] = {}
    for _ in range(STEPS):
        for stays, others in slow_plan(responses, kept, 0.25):
            kept[others] = False
            into |= dict.fromkeys(others, stays)
        expected.append(int(kept.sum()))
    assert [line["prototypes"] for line in steps] == expected
    check_model(run, start, kept, into)


@pytest.mark.parametrize(("system", "other_class_weight"), [("protopshare", 0.0), ("protopnet", None)])
def test_weights_to_other_classes_start_as_the_config_says(
    configured: Callable[..., Config], start: Run, tmp_path: Path, system: str, other_class_weight: float | None
) -> None:
    """Also where the model comes from a run that began elsewhere; where it began the same, they stay as trained."""
    config = configured({"model": PROTOPNET | {"system": system}, "start": str(start.folder)})
    run = Run.create(tmp_path / "run", config)
    weights = RunState(SingleProcess(), config, run, Reporter(quiet=True)).model.class_weights()
    before = load_run(start.folder).model
    own = before.prototypes.membership
    assert torch.equal(weights[own], before.class_weights()[own])
    assert (before.class_weights()[~own] < -0.4).all()
    if other_class_weight is None:
        assert torch.equal(weights, before.class_weights())
    else:
        assert (weights[~own] == other_class_weight).all()


def check_model(run: Run, start: Run, kept: Tensor, into: dict[int, int]) -> None:
    """Who went where, whose each is, and that it is the model of the start otherwise."""
    loaded, before = load_run(run.folder), load_run(start.folder)
    assert loaded.config.model.system == "protopshare"
    assert torch.equal(loaded.model.prototypes.kept, kept)
    assert torch.equal(loaded.model.prototypes.vectors, before.model.prototypes.vectors)
    assert not torch.equal(loaded.model.class_weights(), before.model.class_weights())
    classes = {j: set(record.classes) for j, record in enumerate(before.records)}
    for j, stays in into.items():  # in the order in which they went
        classes[stays] |= classes[j]
    rows = json.loads(run.prototypes_file.read_text())["prototypes"]
    for j, (row, earlier) in enumerate(zip(rows, before.records, strict=True)):
        assert row["kept"] == bool(kept[j])
        assert row["reason"] == (None if kept[j] else f"merged into prototype {into[j]}")
        assert (row["image"], row["location"]) == (earlier.image, earlier.location)  # it still is that patch
        if kept[j]:
            own = loaded.model.prototypes.membership[j].nonzero().flatten().tolist()
            assert set(row["classes"]) == classes[j] == {loaded.classes[c] for c in own}
    assert loaded.model.prototypes.membership[kept].any(0).all()  # no class is left without


def test_one_step_is_the_merge_of_the_start_and_a_tuned_last_layer(
    configured: Callable[..., Config], start: Run, tmp_path: Path
) -> None:
    """With a learning rate of next to nothing the weights are the sums, of other classes of 0."""
    stage = {"stage": "merge", "steps": 1, "epochs": 1, "share": 0.4, "learning_rate": 1e-12}
    config = configured(MERGING | {"start": str(start.folder), "schedule": [stage]})
    found = load_run(train(config, tmp_path / "run", quiet=True).folder).model
    expected: Any = load_run(start.folder).model
    expected.set_other_class_weight(0.0)
    plan = slow_plan(responses_of(start), expected.prototypes.kept, 0.4)
    assert plan
    for stays, others in plan:
        expected.absorb(stays, others)
    assert_close(found.class_weights(), expected.class_weights(), rtol=0, atol=1e-6)
    assert torch.equal(found.prototypes.kept, expected.prototypes.kept)
    assert torch.equal(found.prototypes.membership, expected.prototypes.membership)


def test_distances_that_are_read_in_batches_merge_and_prune_the_same(
    configured: Callable[..., Config], start: Run, tmp_path: Path
) -> None:
    schedule = [
        {"stage": "merge", "steps": 1, "epochs": 1, "share": 0.4},
        {"stage": "prune_impure", "nearest": 6, "own": 4},
    ]
    fields = MERGING | {"start": str(start.folder), "schedule": schedule, "runtime.evaluation_batch": 4}
    whole, batches = (
        load_run(train(configured(fields | {"cache.scores_gb": size}), tmp_path / name, quiet=True).folder).model
        for name, size in (("whole", 1.0), ("batches", 1e-9))
    )
    assert torch.equal(batches.prototypes.kept, whole.prototypes.kept)
    assert torch.equal(batches.prototypes.of_class, whole.prototypes.of_class)
    assert not whole.prototypes.kept.all()


# --- killed and resumed ---------------------------------------------------------------------------------------------


def test_a_merge_that_ends_after_a_step_is_resumed_to_the_same_end(
    configured: Callable[..., Config], start: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(MERGING | {"start": str(start.folder)})
    whole = train(config, tmp_path / "whole", quiet=True)
    plans: list[Any] = []

    def killed(*arguments: Any) -> Any:
        if len(plans) == 2:
            raise Killed
        plans.append(plan_merge(*arguments))
        return plans[-1]

    run = Run(tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "plan_merge", killed)
        with pytest.raises(Killed):
            train(config, run.folder, quiet=True)
    assert load_checkpoint(run.last).position[:2] == (0, 2 * EPOCHS)
    shutil.rmtree(start.folder)  # what was taken from there is in the checkpoint
    train(run.config(), run.folder, resume=True, quiet=True)
    assert_same_run(run, whole)


@pytest.mark.slow
def test_a_merge_that_ends_before_any_of_its_writes_is_resumed_to_the_same_end(
    configured: Callable[..., Config], start: Run, tmp_path: Path
) -> None:
    stage = MERGING["schedule"][0] | {"steps": 2}
    config = configured(MERGING | {"start": str(start.folder), "schedule": [stage]})
    whole, copies = train_and_copy(config, tmp_path / "whole")
    for run in copies:
        train(run.config(), run.folder, resume=True, quiet=True)
        assert_same_run(run, whole)


# --- where a run may start ------------------------------------------------------------------------------------------


def refused(config: Config, out: Path) -> str:
    with pytest.raises(DaplError) as caught:
        train(config, out, quiet=True)
    assert not out.exists()  # nothing half-made is left
    return str(caught.value)


def test_a_start_on_other_classes_is_refused(configured: Callable[..., Config], start: Run, tmp_path: Path) -> None:
    config = configured(MERGING | {"start": str(start.folder), "data.classes": 4})
    assert refused(config, tmp_path / "run") == (
        f"start: {start.folder} was trained on other classes than this data has."
    )


def test_a_start_of_another_model_is_refused(configured: Callable[..., Config], start: Run, tmp_path: Path) -> None:
    wider = configured(MERGING | {"start": str(start.folder), "model": MERGING["model"] | {"width": 12}})
    said = refused(wider, tmp_path / "run")
    assert said.startswith(f"{start.best}: a checkpoint of another model: ")
    assert "instead of (12, " in said
    other = configured({"start": str(start.folder), "schedule": [{"stage": "last_layer"}]})  # a DAPL
    assert "a checkpoint of another model: attention." in refused(other, tmp_path / "run")


def test_the_seed_is_filled_in(
    configured: Callable[..., Config], start: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start.folder.rename(tmp_path / "protopnet-5")
    monkeypatch.setenv("RUNS", str(tmp_path))
    config = configured(MERGING | {"start": "$RUNS/protopnet-{seed}", "seed": 5})
    run = train(config, tmp_path / "run", quiet=True)
    assert run.config().start == "$RUNS/protopnet-{seed}"
    missing = configured(MERGING | {"start": "$RUNS/protopnet-{seed}", "seed": 6})
    assert "protopnet-6: not a run directory" in refused(missing, tmp_path / "other")
