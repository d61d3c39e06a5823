"""Stages: who learns and how fast, the last layer on cached scores, and what happens when a loss is not finite."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.testing import assert_close

from dapl.batches.run_data import RunData
from dapl.batches.sources import Batch, BatchSource, in_order, shuffled
from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.common.seeds import derive_seed
from dapl.config import Config, FitStage, JointStage, LastLayerStage, WarmUpStage, dump_config
from dapl.data.build import build_splits
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.runs.checkpoint import load_checkpoint
from dapl.runs.loading import load_run
from dapl.training import losses
from dapl.training.stages import (
    FitEpoch,
    Objective,
    Terms,
    all_responses,
    last_layer,
    make_optimizer,
    of_table,
    rate_factor,
    streamed_scores,
    weigh_heads,
)
from dapl.training.trainer import train


def epochs(
    model: PrototypeModel, config: Config, stage: WarmUpStage | JointStage, source: BatchSource, processes: Processes
) -> Callable[[int], FitEpoch]:
    """``epochs(…)(index)``: the epochs of a stage, as the trainer runs them."""
    objective = Objective(model, config.loss)
    wrapped, stepping = processes.setup(objective, make_optimizer(model, stage))
    return partial(FitEpoch, processes, wrapped, objective.draw_negatives, stepping, stage, source, (0, 0))


def fit(
    model: PrototypeModel, config: Config, stage: WarmUpStage | JointStage, source: BatchSource, processes: Processes
) -> list[Terms]:
    """The terms of each step of a whole stage."""
    epoch = epochs(model, config, stage, source, processes)
    return [found for index in range(stage.epochs) for _, found in epoch(index).steps()]


# --- learning rates -------------------------------------------------------------------------------------------------


def test_rates() -> None:
    constant, cosine = FitStage(epochs=4, decay="constant"), FitStage(decay="cosine")
    assert [rate_factor(constant, epoch, epoch / 4) for epoch in range(4)] == [1.0] * 4
    step = FitStage(epochs=7, decay="step", decay_epochs=3, decay_factor=0.5)
    assert [rate_factor(step, epoch, 0.9) for epoch in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    half = math.sqrt(2) / 2
    expected = [1.0, (1 + half) / 2, 0.5, (1 - half) / 2]
    assert [rate_factor(cosine, 0, progress) for progress in (0, 0.25, 0.5, 0.75)] == pytest.approx(expected)


def test_each_step_is_taken_at_its_own_rate(
    model: PrototypeModel, config: Config, run_data: RunData, processes: Processes
) -> None:
    stage = WarmUpStage(epochs=2, batch_size=5, decay="cosine", learning_rates={"addon": 0.01, "prototypes": 0.1})
    both = epochs(model, config, stage, run_data.source("train", model), processes)
    seen = []
    for epoch in (both(0), both(1)):
        assert len(epoch) == 3  # 15 images
        for _ in epoch.steps():
            seen.append([group["lr"] for group in epoch.optimizer.param_groups])
    factors = [0.5 * (1 + math.cos(math.pi * step / 6)) for step in range(6)]
    assert seen == [pytest.approx([0.01 * factor, 0.1 * factor]) for factor in factors]


# --- who learns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "learning"),
    [
        (WarmUpStage(epochs=1, batch_size=8), {"addon", "attention", "prototypes"}),
        (JointStage(epochs=1, batch_size=8), {"backbone", "addon", "attention", "prototypes"}),
        (WarmUpStage(epochs=1, batch_size=8, learning_rates={"addon": 0.0, "prototypes": 1e-3}), {"prototypes"}),
        (WarmUpStage(epochs=1, batch_size=8, learning_rates={"classifier": 1e-3}), {"classifier"}),
    ],
    ids=["warm-up", "joint", "a rate of 0", "classifier"],
)
def test_parts_with_a_rate_move_and_others_do_not(
    configured: Callable[..., Config], run_data: RunData, processes: Processes, stage: Any, learning: set[str]
) -> None:
    config = configured({"model.backbone.stages": [-1]})  # so that no block of the backbone goes unused
    model = build_model(config.model, 3)
    before = {name: copy.deepcopy(part.state_dict()) for name, part in model.components().items()}
    fit(model, config, stage, run_data.images("train"), processes)
    for name, part in model.components().items():
        trained = dict(part.named_parameters())
        for entry, tensor in part.state_dict().items():
            if entry in trained and name in learning:
                assert not torch.equal(tensor, before[name][entry]), f"{name}.{entry} did not move"
            else:  # batch-norm statistics too: they are kept by default
                assert torch.equal(tensor, before[name][entry]), f"{name}.{entry} moved"


def test_statistics_move_where_they_are_not_kept(
    configured: Callable[..., Config], model: PrototypeModel, run_data: RunData, processes: Processes
) -> None:
    model.backbone.freeze_statistics = False
    name = next(name for name in model.backbone.state_dict() if name.endswith("running_mean"))
    before = model.backbone.state_dict()[name].clone()
    fit(model, configured(), JointStage(epochs=1, batch_size=8), run_data.images("train"), processes)
    assert not torch.equal(model.backbone.state_dict()[name], before)


@pytest.mark.parametrize("augment", ["none", "flip", "affine"])
def test_a_frozen_backbone_keeps_its_statistics_whatever_the_images_go_through(
    configured: Callable[..., Config], model: PrototypeModel, run_data: RunData, processes: Processes, augment: Any
) -> None:
    model.backbone.freeze_statistics = False  # type: ignore[assignment]
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    stage = WarmUpStage(epochs=1, batch_size=8, augment=augment)
    fit(model, configured(), stage, run_data.images("train", augment), processes)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.backbone.state_dict().items())


def test_weight_decay_pulls_a_part_to_zero(
    model: PrototypeModel, config: Config, run_data: RunData, processes: Processes
) -> None:
    norms = []
    for decay in (0.0, 100.0):
        trained = copy.deepcopy(model)
        stage = WarmUpStage(epochs=2, batch_size=8, weight_decay={"addon": decay})
        fit(trained, config, stage, run_data.source("train", model), processes)
        norms.append(trained.components()["addon"][0].weight.norm().item())  # type: ignore[index]
    assert norms[1] < norms[0]


def test_rates_of_parts_that_the_system_lacks_are_left_alone(patches: Callable) -> None:
    """So that one schedule serves several systems; where none is left, nothing would learn."""
    model = patches(2, 2, 4)
    rates = {"addon": 0.1, "prototypes": 0.2}
    assert "addon" not in model.components()
    assert [group["lr"] for group in make_optimizer(model, WarmUpStage(learning_rates=rates)).param_groups] == [0.2]
    with pytest.raises(DaplError, match=r"warm_up gives none of .* a learning rate"):
        make_optimizer(model, WarmUpStage(learning_rates={"addon": 0.1}))


def test_a_step_resumed_in_the_middle_of_an_epoch_is_the_same(
    model: PrototypeModel, config: Config, run_data: RunData, processes: Processes
) -> None:
    stage = WarmUpStage(epochs=1, batch_size=4, augment="flip")
    source = run_data.source("train", model, "flip")
    whole, cut = copy.deepcopy(model), copy.deepcopy(model)
    terms = fit(whole, config, stage, source, processes)
    epoch = epochs(cut, config, stage, source, processes)
    steps = epoch(0).steps()
    first = [next(steps)[1], next(steps)[1]]
    torch.manual_seed(999)  # what happens to the global generator in between is nothing to it
    assert first + [found for _, found in epoch(0).steps(2)] == terms
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, cut.state_dict()[name]), name


# --- the last layer -------------------------------------------------------------------------------------------------


def kept_sum(model: PrototypeModel) -> Tensor:
    """Σ|w| over the prototypes that still count; class-wise weights have one a prototype."""
    weight = model.components()["classifier"].weight.flatten()  # type: ignore[union-attr,operator]
    return sum((weight[j].abs() for j in range(len(weight)) if model.prototypes.kept[j]), torch.zeros(()))


def slow_last_layer(model: PrototypeModel, run_data: RunData, stage: LastLayerStage, position: Sequence[int]) -> None:
    """The same steps over images: the whole network at each."""
    dataset = run_data.dataset("train")
    weight = model.components()["classifier"].weight
    model.requires_grad_(False)
    weight.requires_grad_(True)  # type: ignore[union-attr]
    optimizer = torch.optim.Adam([weight], lr=stage.learning_rate)  # type: ignore[list-item]
    for epoch in range(stage.epochs):
        for rows in shuffled(len(dataset), stage.batch_size, derive_seed(*position, epoch, "order")):
            images = torch.stack([dataset[int(row)].image.as_subclass(Tensor) for row in rows])
            logits = model(images).logits
            labels = torch.tensor([dataset.labels[int(row)] for row in rows])
            loss = torch.nn.functional.cross_entropy(logits, labels) + stage.l1 * kept_sum(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_cached_scores_give_the_weights_of_a_run_over_images(
    model: PrototypeModel, run_data: RunData, processes: Processes
) -> None:
    model.prototypes.kept[1] = False
    stage = LastLayerStage(epochs=3, batch_size=6, learning_rate=0.01, l1=1e-3)
    slow = copy.deepcopy(model)
    slow_last_layer(slow, run_data, stage, (0, 4))
    source = run_data.source("train", model)
    scores = all_responses(model, source, in_order(len(source), 4), processes, lambda count: None)["scores"]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    epochs: list[Terms] = []
    last_layer(model, scores, source.labels, stage, (0, 4), lambda epoch, means: epochs.append(means))
    assert_close(model.components()["classifier"].weight, slow.components()["classifier"].weight, rtol=0, atol=1e-5)
    assert (model.components()["classifier"].weight - 1).abs().max() > 0.01, "nothing was learned"
    assert len(epochs) == 3
    assert epochs[-1]["cross_entropy"] < epochs[0]["cross_entropy"]
    for name, tensor in model.state_dict().items():
        assert name == "classifier.weight" or torch.equal(tensor, before[name]), name
    streamed = copy.deepcopy(model)
    streamed.load_state_dict(before)
    read = streamed_scores(streamed, source, processes)
    last_layer(streamed, read, source.labels, stage, (0, 4), lambda epoch, means: None)
    assert_close(streamed.components()["classifier"].weight, model.components()["classifier"].weight, rtol=0, atol=1e-6)


def test_the_means_of_an_epoch_are_over_images(model: PrototypeModel) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(7, 6, generator=generator), torch.arange(7) % 3
    logits = model.classify(scores).detach()
    means: list[Terms] = []
    stage = LastLayerStage(epochs=1, batch_size=3, learning_rate=1e-12)  # 3 + 3 + 1 rows
    last_layer(model, scores, labels, stage, (0, 0), lambda epoch, terms: means.append(terms))
    assert means[0]["cross_entropy"] == pytest.approx(losses.cross_entropy(logits, labels).item(), rel=1e-6)
    assert means[0]["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_l1_shrinks_the_weights(model: PrototypeModel) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(30, 6, generator=generator), torch.arange(30) % 3
    sums = []
    for penalty in (0.0, 0.1, 1.0):
        trained = copy.deepcopy(model)
        stage = LastLayerStage(epochs=20, batch_size=10, learning_rate=0.01, l1=penalty)
        last_layer(trained, scores, labels, stage, (0, 0), lambda epoch, terms: None)
        sums.append(trained.components()["classifier"].weight.abs().sum().item())  # type: ignore[union-attr]
    assert sums[2] < sums[1] < sums[0]


def test_a_last_layer_that_is_not_finite_says_so(model: PrototypeModel) -> None:
    scores = torch.full((4, 6), math.nan)
    with pytest.raises(DaplError, match="last_layer, epoch 1: the loss is not finite"):
        last_layer(model, scores, torch.tensor([0, 1, 2, 0]), LastLayerStage(), (0, 0), lambda epoch, terms: None)


# --- a loss that is not finite --------------------------------------------------------------------------------------


class Poisoned:
    """A source whose second batch is broken."""

    def __init__(self, source: BatchSource) -> None:
        self.source, self.labels = source, source.labels

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, order: Sequence[Tensor], seed: int = 0) -> Iterator[Batch]:
        for number, batch in enumerate(self.source.batches(order, seed)):
            if number == 1:
                assert batch.features is not None
                batch.features[0, 0, 0, 0] = math.nan
            yield batch


def test_the_message_names_stage_epoch_step_and_terms(
    model: PrototypeModel, config: Config, run_data: RunData, processes: Processes
) -> None:
    stage = WarmUpStage(epochs=3, batch_size=5)
    source = Poisoned(run_data.source("train", model))
    steps = epochs(model, config, stage, source, processes)(1).steps()
    next(steps)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(DaplError, match=r"warm_up, epoch 2, step 2: .* not finite \(total, cross_entropy"):
        next(steps)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), f"{name} was touched by the broken step"


@pytest.mark.parametrize("batch_size", [5, 15], ids=["in the middle of an epoch", "at the end of an epoch"])
def test_the_last_good_checkpoint_survives(
    configured: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture, batch_size: int
) -> None:
    good = {"stage": "warm_up", "epochs": 2, "batch_size": 5}
    rates = dict.fromkeys(("addon", "attention", "prototypes"), 1e30)
    bad = {"stage": "joint", "epochs": 2, "batch_size": batch_size, "learning_rates": rates}
    train(configured({"schedule": [good]}), tmp_path / "good", quiet=True)
    (tmp_path / "bad.yaml").write_text(dump_config(configured({"schedule": [good, bad]})))
    assert main(["train", str(tmp_path / "bad.yaml"), "--out", str(tmp_path / "bad")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("dapl: joint, epoch 1")
    assert "not finite" in message
    assert "cross_entropy" in message
    for name in ("last.safetensors", "best.safetensors"):
        expected, found = (load_checkpoint(tmp_path / run / "checkpoints" / name) for run in ("good", "bad"))
        assert found.position == expected.position
        assert expected.model.keys() == found.model.keys()
        for key, tensor in expected.model.items():
            assert torch.equal(tensor, found.model[key]), key
    load_run(tmp_path / "bad", "last")
    lines = (tmp_path / "bad" / "metrics.jsonl").read_text()
    assert "NaN" not in lines
    assert yaml.safe_load((tmp_path / "bad" / "config.yaml").read_text())["schedule"][1]["stage"] == "joint"


def test_a_loss_that_explodes_stops_the_run(
    configured: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It stays finite, so that nothing else would say so."""
    rates = dict.fromkeys(("addon", "attention", "prototypes", "classifier"), 1e6)
    stage = {"stage": "warm_up", "epochs": 3, "batch_size": 5, "learning_rates": rates}
    config = configured({"schedule": [stage], "model.similarity": "cosine", "model.scale": 1000.0})
    (tmp_path / "hot.yaml").write_text(dump_config(config))
    assert main(["train", str(tmp_path / "hot.yaml"), "--out", str(tmp_path / "hot")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("dapl: warm_up, epoch")
    assert "exploded to" in message


# --- what each head alone knows -------------------------------------------------------------------------------------


def test_heads_count_by_what_they_know_alone_by_loop(model: PrototypeModel) -> None:
    heads, classes = model.prototypes.groups, model.classes
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(20, classes * heads, generator=generator), torch.arange(20) % classes
    scores[torch.arange(20), labels * heads] += 1  # head 0 knows all of them
    scores[:, 1 + heads] = 2  # head 1 always says class 1, whose prototype is gone
    model.prototypes.kept[1 + heads] = False
    alone = weigh_heads(model, of_table(scores), labels, in_order(20, 6))
    known = []
    for head in range(heads):
        right = 0
        for image in range(20):
            kept = [c for c in range(classes) if bool(model.prototypes.kept[c * heads + head])]
            right += max(kept, key=lambda c: float(scores[image, c * heads + head])) == int(labels[image])
        known.append(right)
    assert known[0] == 20 > known[1]
    assert alone.tolist() == pytest.approx([right / 20 for right in known])
    (weight,) = model.components()["classifier"].parameters()
    for c in range(classes):  # mean of (r + 1)/(n + C) over heads is 1
        expected = [(right + 1) * heads / (sum(known) + heads) for right in known]
        assert weight[c].tolist() == pytest.approx(expected, rel=1e-5)


def test_a_run_that_weighs_its_heads(configured: Callable[..., Config], tmp_path: Path) -> None:
    """What is written down is what the best model has, and validation is that of the weighed one."""
    stages = [{"stage": "warm_up", "epochs": 1, "batch_size": 8}, {"stage": "project"}, {"stage": "weigh_heads"}]
    run = train(configured({"schedule": stages}), tmp_path / "run", quiet=True)
    entry = next(one for one in run.logged() if one.get("name") == "weigh_heads")
    model, images = load_run(run.folder).model, len(build_splits(run.config().data).validation)
    (weight,) = model.components()["classifier"].parameters()
    say = (torch.tensor(entry["alone"]) * images + 1) / (images + model.classes)
    assert_close(weight, (say / say.mean()).expand_as(weight))
    assert 0 <= entry["validation"]["accuracy"] <= 1
