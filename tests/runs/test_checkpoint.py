"""Checkpoints: what goes in comes out bit for bit, and a file that is not one is refused; code: see test_safety."""

from __future__ import annotations

import copy
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dapl.common.errors import DaplError, WriteError
from dapl.config import Config
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.runs.checkpoint import (
    Checkpoint,
    Position,
    load_checkpoint,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
    save_checkpoint,
)

RECORD = {"index": 0, "classes": ["owl"], "head": 0, "image": "Ünïcode/0001", "box": [0, 1, 7, 9]}
FACTS = {"best": [0.5, -1.25], "prototypes": [RECORD], "epoch_sums": {}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "last.safetensors"


@pytest.fixture
def saved(path: Path, model: PrototypeModel) -> Path:
    save_checkpoint(path, Checkpoint(Position(2, 1, 7), model.state_dict(), {"0.step": torch.tensor(3.0)}, FACTS))
    return path


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype
        assert torch.equal(tensor, second[name]), name


def test_round_trip(saved: Path, model: PrototypeModel) -> None:
    found = load_checkpoint(saved)
    assert found.position == (2, 1, 7)
    assert isinstance(found.position, Position)
    assert_same(found.model, model.state_dict())
    assert_same(found.optimizer, {"0.step": torch.tensor(3.0)})
    assert found.facts == FACTS
    assert [file.name for file in saved.parent.iterdir()] == ["last.safetensors"]


def test_numbers_of_the_header_come_back_bit_for_bit(path: Path) -> None:
    sums = {"total": 1 / 3, "contrast": 0.1 + 0.2, "tiny": 5e-324}
    save_checkpoint(path, Checkpoint(Position(), {"x": torch.zeros(1)}, facts={"epoch_sums": sums}))
    assert load_checkpoint(path).facts["epoch_sums"] == sums


def test_tensors_that_are_not_contiguous(path: Path) -> None:
    tensor = torch.rand(4, 3, 5, 5).to(memory_format=torch.channels_last)
    save_checkpoint(path, Checkpoint(Position(), {"weight": tensor, "turned": tensor[0, 0].T}))
    assert_same(load_checkpoint(path).model, {"weight": tensor, "turned": tensor[0, 0].T})


def test_an_interrupted_save_leaves_the_old_one(
    saved: Path, model: PrototypeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(tensors: Any, file: Path, metadata: Any) -> None:
        Path(file).write_bytes(b"half of it")
        raise SafetensorError("I/O error: No space left on device (os error 28)")  # its words for a full disk

    monkeypatch.setattr(safetensors.torch, "save_file", interrupted)
    with pytest.raises(WriteError, match=r"last\.safetensors: cannot be written \(No space left on device\); free"):
        save_checkpoint(saved, Checkpoint(Position(9), {}))
    assert load_checkpoint(saved).position == (2, 1, 7)
    assert [file.name for file in saved.parent.iterdir()] == ["last.safetensors"]


# --- files that are not checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 4, 8, 200, 0.5, 0.999], ids=lambda kept: f"{kept} of it")
def test_a_truncated_file(saved: Path, kept: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(DaplError, match=r"last\.safetensors: not a whole checkpoint of dapl .* cut off") as caught:
        load_checkpoint(saved)
    assert "train anew" in str(caught.value)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(DaplError, match=r"last\.safetensors: no such checkpoint"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "of another program"),
        ("not json", "header: not JSON"),
        ("[" * 100_000, "header: not JSON of ours"),
        ("[]", "header: the file: "),
        ("{}", "checkpoint format None, this version reads 1"),
        ('{"format": 1, "position": 3, "facts": {}}', "header: position: input should be a valid list"),
        ('{"format": 1, "position": [1, 2, 3, 4], "facts": {}}', "header: position: list should have at most 3"),
        ('{"format": 1, "position": [0, -1, 0], "facts": {}}', r"header: position\.1: .* greater than or equal to 0"),
        ('{"format": 1, "position": [0, 1e400, 0], "facts": {}}', r"header: position\.1: "),
        ('{"format": 1, "position": [0, true, 0], "facts": {}}', r"header: position\.1: .* valid integer"),
        ('{"format": 1, "position": [0, 0, 0], "facts": 5}', "header: facts: "),
        ('{"format": 1, "position": [0, 0, 0], "facts": {"best": "high"}}', r"header: facts\.best: .* valid list"),
        ('{"format": 1, "position": [0, 0, 0], "facts": {"prototypes": [3]}}', r"header: facts\.prototypes\.0: "),
        ('{"format": 99, "position": [0, 0, 0], "facts": {}}', "checkpoint format 99, this version reads 1"),
    ],
)
def test_a_header_that_is_not_ours(path: Path, header: str | None, message: str) -> None:
    path.parent.mkdir()
    metadata = None if header is None else {"dapl": header}
    safetensors.torch.save_file({"model.weight": torch.zeros(2)}, path, metadata=metadata)
    with pytest.raises(DaplError, match=message):
        load_checkpoint(path)


def test_a_header_longer_than_the_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(struct.pack("<Q", 2**40) + b"{}")
    with pytest.raises(DaplError, match="not a whole checkpoint"):
        load_checkpoint(path)


# --- other models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 3}, r"addon\.0\.weight has shape \(8, \d+, 1, 1\) instead of \(12, \d+, 1, 1\)"),
        ({"head_dim": 5}, r"has shape .* instead of"),
        ({"backbone": {"name": "test_resnet", "weights": "random"}}, "is missing"),
    ],
)
def test_a_checkpoint_of_another_model(saved: Path, config: Config, change: dict[str, Any], said: str) -> None:
    fields = config.model.model_dump() | change
    other = build_model(type(config.model).model_validate(fields), 3)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(DaplError, match=f"a checkpoint of another model: .*{said}.*Use the run's own config"):
        restore_model(other, load_checkpoint(saved).model, saved)
    assert_same(other.state_dict(), before)


def test_another_number_of_classes(saved: Path, config: Config) -> None:
    with pytest.raises(DaplError, match="another model"):
        restore_model(build_model(config.model, 4), load_checkpoint(saved).model, saved)


def test_its_own_checkpoint_fits(saved: Path, config: Config, model: PrototypeModel) -> None:
    other = build_model(config.model, 3, seed=99)
    restore_model(other, load_checkpoint(saved).model, saved)
    assert_same(other.state_dict(), model.state_dict())


def test_a_checkpoint_of_before_prototypes_were_kept_by_class(
    saved: Path, config: Config, model: PrototypeModel
) -> None:
    state = load_checkpoint(saved).model
    del state["prototypes.of_class"]
    other = build_model(config.model, 3, seed=99)
    restore_model(other, state | {"prototypes.membership": model.prototypes.membership}, saved)
    assert_same(other.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (torch.tensor([[0, 1], [2, 3], [4, 6]]), "names prototypes that there are not"),
        (torch.tensor([[0, 1], [2, 3], [4, -2]]), "names prototypes that there are not"),
        (torch.zeros(3, 2), "names prototypes that there are not"),
        (torch.zeros(4, 2, dtype=torch.long), "has shape \\(4, 2\\) instead of \\(3, 2\\)"),
    ],
)
def test_prototypes_of_classes_that_cannot_be(saved: Path, config: Config, table: Tensor, said: str) -> None:
    state = load_checkpoint(saved).model | {"prototypes.of_class": table}
    with pytest.raises(DaplError, match=f"prototypes.of_class {said}"):
        restore_model(build_model(config.model, 3), state, saved)


# --- the optimizer --------------------------------------------------------------------------------------------------


def trained(layers: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        inputs = torch.rand(5, 4, generator=torch.Generator().manual_seed(step))
        layers(inputs).square().sum().backward()
        optimizer.step()


def adam(layers: nn.Sequential) -> torch.optim.Adam:
    return torch.optim.Adam(
        [{"params": layers[0].parameters(), "lr": 1e-2, "weight_decay": 1e-3}, {"params": layers[1].parameters()}]
    )


def test_an_optimizer_goes_on_exactly_where_it_was(path: Path) -> None:
    whole = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    cut = copy.deepcopy(whole)
    trained(whole, adam(whole), range(6))
    first = adam(cut)
    trained(cut, first, range(3))
    save_checkpoint(path, Checkpoint(Position(), cut.state_dict(), optimizer_tensors(first)))
    found = load_checkpoint(path)
    resumed = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    resumed.load_state_dict(found.model)
    second = adam(resumed)
    restore_optimizer(second, found.optimizer, path)
    assert_same(optimizer_tensors(second), optimizer_tensors(first))
    assert [group["lr"] for group in second.param_groups] == [1e-2, 1e-3]
    trained(resumed, second, range(3, 6))
    assert_same(resumed.state_dict(), whole.state_dict())


@pytest.mark.parametrize("name", ["exp_avg", "x.exp_avg", "-1.exp_avg", "4.exp_avg", "²5.exp_avg", "0.exp_avg"])
def test_an_optimizer_of_another_stage(name: str, path: Path) -> None:
    optimizer = adam(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    with pytest.raises(DaplError, match=rf"last\.safetensors: optimizer\.{name}: does not fit a parameter"):
        restore_optimizer(optimizer, {name: torch.zeros(5, 5)}, path)
