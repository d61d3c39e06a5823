"""Pruning: the foreground share of each prototype against a slow loop, and what may be removed by it (decision 7).

And `dapl train --from RUN --drop-marked`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from dapl.batches.sources import Batch, BatchSource, in_order
from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.models.build import SYSTEMS
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.runs.checkpoint import load_checkpoint
from dapl.runs.loading import load_run
from dapl.runs.marks import Marks, mark_now
from dapl.runs.run import Run
from dapl.training import state
from dapl.training.pruning import foreground_shares, own_among_nearest, prune, without_marked
from dapl.training.trainer import train

from ..conftest import TINY
from .conftest import PROTOPNET, assert_same_run, lines_of, responses_of

N, CLASSES, GROUPS, WIDTH, GRID, SIZE = 11, 3, 2, 5, 4, 32
CELL = SIZE // GRID


@pytest.fixture
def drawn(patches: Callable) -> tuple[PrototypeModel, Tensor, Tensor, Tensor]:
    """A model, features, labels and pixel masks: a blob somewhere in each image."""
    generator = torch.Generator().manual_seed(2)
    model = patches(CLASSES, GROUPS, WIDTH)
    with torch.no_grad():
        model.prototypes.vectors.copy_(torch.rand(model.prototypes.vectors.shape, generator=generator))
    features = torch.rand(N, GROUPS * WIDTH, GRID, GRID, generator=generator)
    masks = torch.zeros(N, SIZE, SIZE, dtype=torch.uint8)
    boxes = torch.randint(3, 20, (N, 4), generator=generator).tolist()
    for mask, (top, left, height, width) in zip(masks, boxes, strict=True):
        mask[top : top + height, left : left + width] = 1
    return model, features, torch.arange(N) % CLASSES, masks


def batched(features: Tensor, labels: Tensor, batch_size: int = 4) -> Iterator[Batch]:
    for rows in in_order(len(features), batch_size):
        yield Batch(rows, labels[rows], features=features[rows])


def slow_share(features: Tensor, vector: Tensor, mask: Tensor, bias_of: str) -> float:
    """1 − B of one prototype on one image. features: D×H×W of its head."""
    activation = [[0.0] * GRID for _ in range(GRID)]
    for row in range(GRID):
        for column in range(GRID):
            distance = sum((float(z) - float(p)) ** 2 for z, p in zip(features[:, row, column], vector, strict=True))
            activation[row][column] = math.log((distance + 1) / (distance + 1e-4))
    if bias_of == "map":
        background = total = 0.0
        for row in range(GRID):
            for column in range(GRID):
                cell = mask[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
                background += (1 - float(cell.float().mean())) * activation[row][column]
                total += activation[row][column]
        return 1 - background / total
    small = torch.tensor(activation, dtype=torch.double)[None, None]
    pixels = F.interpolate(small, size=(SIZE, SIZE), mode="bicubic", align_corners=False)[0, 0].numpy()
    region = pixels >= np.percentile(pixels, 95)
    return float(mask.numpy()[region].mean())


@pytest.mark.parametrize("bias_of", ["region", "map"])
@pytest.mark.parametrize("batch_size", [1, 4, N])
def test_shares_are_those_of_a_slow_loop(drawn: tuple, processes: Processes, bias_of: str, batch_size: int) -> None:
    model, features, labels, masks = drawn
    shares = foreground_shares(model, batched(features, labels, batch_size), lambda i: masks[i], processes, bias_of)
    for j, vector in enumerate(model.prototypes.vectors.detach()):
        label, head = divmod(j, GROUPS)
        on_images = [
            slow_share(features[image, head * WIDTH : (head + 1) * WIDTH], vector, masks[image], bias_of)
            for image in range(N)
            if labels[image] == label
        ]
        assert float(shares[j]) == pytest.approx(np.mean(on_images), abs=1e-5)


def test_the_percentile_bounds_the_region(drawn: tuple, processes: Processes) -> None:
    model, features, labels, masks = drawn
    narrow, wide = (
        foreground_shares(model, batched(features, labels), lambda i: masks[i], processes, "region", percentile)
        for percentile in (95.0, 1.0)
    )
    mean = torch.stack([masks[labels == label].float().mean() for label in range(CLASSES)])
    assert_close(wide, mean.repeat_interleave(GROUPS), rtol=0, atol=0.02)  # nearly the whole image
    assert (narrow - wide).abs().max() > 0.05


def test_a_class_without_images_has_no_evidence(drawn: tuple, processes: Processes) -> None:
    model, features, _, masks = drawn
    labels = torch.arange(N) % 2
    shares = foreground_shares(model, batched(features, labels), lambda i: masks[i], processes)
    assert shares.isnan().tolist() == [False] * 4 + [True] * 2
    prune(model, shares, 1.0)
    assert model.prototypes.kept[4:].all()


def test_below_the_threshold_is_removed_and_indices_stay(patches: Callable) -> None:
    model = patches(2, 3, 4)
    vectors, membership = model.prototypes.vectors.detach().clone(), model.prototypes.membership.clone()
    removed = prune(model, torch.tensor([0.1, 0.3, 0.9, 0.29, 0.31, math.nan]), 0.3)
    assert removed.tolist() == [True, False, False, True, False, False]  # 0.3 itself is not below
    assert model.prototypes.kept.tolist() == (~removed).tolist()
    assert torch.equal(model.prototypes.vectors, vectors)
    assert torch.equal(model.prototypes.membership, membership)


def test_a_class_never_loses_its_last_prototype(patches: Callable) -> None:
    model = patches(2, 3, 4)
    removed = prune(model, torch.tensor([0.1, 0.25, 0.2, 0.0, 0.0, 0.0]), 0.3)
    assert model.prototypes.kept.tolist() == [False, True, False, True, False, False]  # its best one stays
    assert removed.tolist() == [True, False, True, False, True, True]


def test_pruning_twice_removes_only_what_is_left(patches: Callable) -> None:
    model = patches(2, 3, 4)
    prune(model, torch.tensor([0.9, 0.1, 0.9, 0.9, 0.1, 0.1]), 0.3)
    # the best share of class 0 now is that of a prototype which is gone already: it must not come back
    removed = prune(model, torch.tensor([0.1, 0.2, 0.05, 0.1, 0.9, 0.9]), 0.3)
    assert removed.tolist() == [False, False, True, False, False, False]
    assert model.prototypes.kept.tolist() == [True, False, False, True, False, False]


@torch.no_grad()
def test_removed_prototypes_do_not_reach_the_logits(model: PrototypeModel) -> None:
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = model(images)
    prune(model, torch.tensor([0.1, 0.9, 0.9, 0.9, 0.9, 0.9]), 0.3)
    model.prototypes.vectors[0] = 100.0
    after = model(images)
    contribution = before.scores[:, :1] * model.components()["classifier"].weight[0, 0]
    assert_close(after.logits[:, :1], before.logits[:, :1] - contribution)
    assert torch.equal(after.logits[:, 1:], before.logits[:, 1:])
    assert torch.equal(after.scores[:, 1:], before.scores[:, 1:])


# --- by the classes of the nearest training images ----------------------------------------------------------------


def slow_own(distances: Tensor, labels: Tensor, membership: Tensor, nearest: int) -> list[int]:
    """How many of the k images with the smallest distance are of a class of the prototype's."""
    counts = []
    for j in range(distances.shape[1]):
        order = sorted(range(len(distances)), key=lambda image, j=j: distances[image, j].item())
        counts.append(sum(membership[j, labels[image]].item() for image in order[:nearest]))
    return counts


@pytest.mark.parametrize("nearest", [1, 3, 6, 100])
@pytest.mark.parametrize("seed", range(3))
def test_own_among_nearest_is_that_of_a_slow_loop(seed: int, nearest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    distances = torch.rand(13, 8, generator=generator)
    labels = torch.randint(0, 4, (13,), generator=generator)
    membership = torch.eye(4).bool().repeat_interleave(2, 0)
    membership[1, 3] = membership[6, 0] = True  # of two classes, as after merging
    for at_once in (13, 4, 1):  # all images, or only the best so far and a few more
        batches = zip(distances.split(at_once), labels.split(at_once), strict=True)
        own = own_among_nearest(batches, lambda some: membership.T[some], nearest)
        assert own.tolist() == slow_own(distances, labels, membership, nearest)
        assert 0 < own.sum() < 8 * nearest


PURE: dict[str, Any] = {"model": PROTOPNET | {"prototypes_per_class": 4}}
"""Prototypes of a network with random weights: many are as near to other classes as to their own."""


@pytest.mark.parametrize("own", [2, 3, 6])
def test_impure_prototypes_are_removed_in_a_run(own: int, configured: Callable[..., Config], tmp_path: Path) -> None:
    stage = {"stage": "prune_impure", "nearest": 6, "own": own}
    last = {"stage": "last_layer", "epochs": 1}
    config = configured(PURE | {"schedule": [{"stage": "project"}, last, stage, last]})
    run = train(config, tmp_path / "run", quiet=True)
    loaded, labels = load_run(run.folder), torch.tensor(list(build_splits(config.data).train.labels))
    counts = slow_own(responses_of(run), labels, loaded.model.prototypes.membership, 6)
    kept = loaded.model.prototypes.kept.tolist()
    for label in range(3):
        numbers = range(4 * label, 4 * label + 4)
        pure = [j for j in numbers if counts[j] >= own]
        best = max(numbers, key=lambda j: counts[j])  # the first of the best, where none is pure enough
        assert [j for j in numbers if kept[j]] == (pure or [best])
    for j, record in enumerate(loaded.records):
        assert record.kept == kept[j]
        said = f"{counts[j]} of the 6 nearest training images are of its class"
        assert record.reason == (None if kept[j] else said)
    (line,) = (line for line in lines_of(run) if line.get("name") == "prune_impure")
    assert line["removed"] == kept.count(False) > 0
    assert line["validation"].keys() == {"accuracy", "cross_entropy"}


def test_a_class_keeps_a_prototype_however_impure(configured: Callable[..., Config], tmp_path: Path) -> None:
    """Threshold that nothing reaches: one prototype per class is left, and a second time changes nothing."""
    stage = {"stage": "prune_impure", "nearest": 15, "own": 15}  # all 15 training images, 5 of them its own
    config = configured(PURE | {"schedule": [{"stage": "project"}, stage, stage]})
    run = train(config, tmp_path / "run", quiet=True)
    assert [line["removed"] for line in lines_of(run) if line.get("name") == "prune_impure"] == [9, 0]
    model = load_run(run.folder).model
    assert (model.prototypes.membership[model.prototypes.kept].sum(0) == 1).all()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 64, 64)).logits.isfinite().all()


def test_the_scores_of_a_model_are_computed_once(
    configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are those that every stage would compute for itself."""
    joint = {"stage": "joint", "epochs": 1, "batch_size": 9}
    last = {"stage": "last_layer", "epochs": 2}
    schedule = [{"stage": "project"}, {"stage": "prune_impure", "nearest": 6, "own": 3}, last, joint, last]
    config = configured(PURE | {"schedule": schedule})
    passes: list[int] = []
    written: list[str] = []
    pass_over, write = state.all_responses, state.write_json

    def noted(model: Any, source: BatchSource, *arguments: Any) -> dict:
        passes.append(len(source))
        return pass_over(model, source, *arguments)

    def wrote(file: Path, value: Any) -> None:
        written.append(file.name)
        write(file, value)

    monkeypatch.setattr(state, "all_responses", noted)
    monkeypatch.setattr(state, "write_json", wrote)
    once = train(config, tmp_path / "once", quiet=True)
    assert passes == [3, 15, 15, 3], "validation and training images, before and after the joint stage"
    assert written.count("prototypes.json") == 3, "at the start, after the projection and after the pruning"
    numbers = itertools.count()
    monkeypatch.setattr(state, "digest_of", lambda tensors: str(next(numbers)))  # every model is another one
    each = train(config, tmp_path / "each", quiet=True)
    assert len(passes) > 4 + 4
    assert_same_run(each, once)
    records = json.loads(once.prototypes_file.read_text())["prototypes"]
    assert records == load_checkpoint(once.best).facts["prototypes"]


WARM_UP: dict[str, Any] = {"stage": "warm_up", "epochs": 1, "batch_size": 9}
Configured = Callable[..., Config]


def trained(configured: Configured, system: str, out: Path) -> Path:
    model = TINY["model"] if system == "dapl" else PROTOPNET | {"system": system, "prototypes_per_class": 2}
    if system == "parts":
        backbone = TINY["model"]["backbone"] | {"stages": [-2, -1]}
        model = {"system": "parts", "backbone": backbone, "heads": 2, "head_dim": 4, "crop_size": 32}
    warm_up = WARM_UP | ({"learning_rates": {"layers": 3e-3, "prototypes": 3e-3}} if system == "parts" else {})
    last = [] if system == "pixpnet" else [{"stage": "last_layer", "epochs": 2, "learning_rate": 0.01}]
    config = configured({"model": model, "schedule": [warm_up, {"stage": "project"}, *last]})
    return train(config, out, quiet=True).folder


def mark(folder: Path, **notes: str) -> None:
    records = load_run(folder).records
    for name, note in notes.items():
        record = records[int(name.removeprefix("p"))]
        Marks.of_run(folder).put(mark_now(record.index, note, record.image, record.location))


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"blackbox"}))
def test_marked_prototypes_are_gone_and_the_rest_is_tuned(system: str, configured: Configured, tmp_path: Path) -> None:
    folder, out = trained(configured, system, tmp_path / "run"), tmp_path / "new"
    mark(folder, p1="sees the perch", p4="")
    before = load_run(folder)
    assert main(["train", "--from", str(folder), "--drop-marked", "--out", str(out)]) == 0
    after = load_run(out)
    kept = after.model.prototypes.kept.tolist()
    assert kept == [True, False, True, True, False, True]
    assert [record.kept for record in after.records] == kept
    assert after.records[1].reason == "marked as bad: sees the perch"
    assert after.records[4].reason == "marked as bad"
    assert after.records[0].image == before.records[0].image
    assert [entry["kept"] for entry in Run(out).read_prototypes()] == kept
    weights = after.model.class_weights()
    assert not weights[[1, 4]].any()
    for name, tensor in before.model.state_dict().items():
        if name != "prototypes.kept" and not name.startswith("classifier"):
            assert torch.equal(tensor, after.model.state_dict()[name]), name
    if system != "pixpnet":
        assert not torch.equal(weights[[0, 2, 3, 5]], before.model.class_weights()[[0, 2, 3, 5]])
    assert Run(out).evaluation_file.is_file()
    assert all(record.kept for record in load_run(folder).records)  # the run it came from is as it was


def test_a_run_that_was_cut_short_goes_on_without_them(configured: Configured, tmp_path: Path) -> None:
    folder, out = trained(configured, "dapl", tmp_path / "run"), tmp_path / "new"
    mark(folder, p0="bad")
    without_marked(folder, out)  # and killed here
    assert main(["train", "--resume", str(out)]) == 0
    after = load_run(out)
    assert after.model.prototypes.kept.tolist() == [False] + [True] * 5
    assert after.records[0].reason == "marked as bad: bad"


def test_the_new_run_lies_beside_the_old_one(configured: Configured, tmp_path: Path) -> None:
    folder = trained(configured, "dapl", tmp_path / "run")
    mark(folder, p0="bad")
    assert main(["train", "--from", str(folder), "--drop-marked"]) == 0
    config = Run.open(tmp_path / "run-without-marked").config()
    assert config.start == str(folder)
    assert [stage.stage for stage in config.schedule] == ["last_layer"]


def test_what_does_not_go_together(configured: Configured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(configured, "dapl", tmp_path / "run")
    for words, part in (
        (["--from", str(folder)], "--from RUN and --drop-marked go together"),
        (["--drop-marked"], "--from RUN and --drop-marked go together"),
        (["x.yaml", "--from", str(folder), "--drop-marked"], "leave CONFIG and --resume out"),
        (["--from", str(folder), "--drop-marked", "--model.heads", "3"], "takes only fields of data, runtime and"),
        (["--from", str(folder), "--drop-marked"], "no prototype is marked as bad"),
        (["--from", str(tmp_path / "none"), "--drop-marked"], "not a run directory"),
    ):
        assert main(["train", *words]) == 2
        assert part in capsys.readouterr().err
    mark(folder, p0="bad")
    with pytest.raises(DaplError, match="exists already; name a new folder"):
        without_marked(folder, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "run"]
