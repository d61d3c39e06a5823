"""Checkpoints: one safetensors file with model, optimizer and, in its header, the position as JSON. Never a pickle.

Random state is not stored: the position determines the seed of every random number (see `dapl.common.seeds`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.common.files import replacing

FORMAT = 1
_MODEL, _OPTIMIZER = "model.", "optimizer."


class Position(NamedTuple):
    """Where a run is: the next thing to do is this step of this epoch of this stage, all counted from 0."""

    stage: int = 0
    epoch: int = 0
    step: int = 0


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    """Adam's state, ``<parameter number>.<name>``; empty between stages."""
    facts: dict[str, Any] = field(default_factory=dict)
    """JSON: the best validation accuracy so far, where the prototypes came from."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    tensors = {_MODEL + name: tensor for name, tensor in checkpoint.model.items()}
    tensors |= {_OPTIMIZER + name: tensor for name, tensor in checkpoint.optimizer.items()}
    header = {"format": FORMAT, "position": checkpoint.position, "facts": checkpoint.facts}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        safetensors.torch.save_file(contiguous, temporary, metadata={"dapl": json.dumps(header)})


def load_checkpoint(path: Path) -> Checkpoint:
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})["dapl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        if header["format"] != FORMAT:
            raise DaplError(f"{path}: checkpoint format {header['format']}, this version reads {FORMAT}; train anew.")
        position, facts = Position(*header["position"]), dict(header["facts"])
    except FileNotFoundError as error:
        raise DaplError(f"{path}: no such checkpoint; the run has not got that far, or this is not a run.") from error
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise DaplError(
            f"{path}: not a whole checkpoint of dapl ({type(error).__name__}: {error}); it was cut off or is of "
            "another program. Restore it from a copy, or train anew."
        ) from error
    parts: dict[str, dict[str, Tensor]] = {_MODEL: {}, _OPTIMIZER: {}}
    for name, tensor in tensors.items():
        for prefix, found in parts.items():
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = tensor
    return Checkpoint(position, parts[_MODEL], parts[_OPTIMIZER], facts)


def restore_model(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Fill a model, or say which tensors show that the checkpoint is of another one."""
    own = model.state_dict()
    wrong = [f"{name} is missing" for name in own if name not in state]
    wrong += [f"{name} is not part of this model" for name in state if name not in own]
    wrong += [
        f"{name} has shape {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise DaplError(
            f"{path}: a checkpoint of another model: {'; '.join(wrong[:3])}{more}. Use the run's own config."
        )
    model.load_state_dict(state)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of the optimizer as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value) for number, entry in state.items() for name, value in entry.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, entry = name.split(".", 1)
        state.setdefault(int(number), {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
