"""The model of a run on disk: its checkpoints, and the records of its prototypes in them.

A checkpoint is one safetensors file with model, optimizer and, in its header, the position as JSON. Never a pickle.
Random state is not stored: the position determines the seed of every random number (see `dapl.common.seeds`). Records
say where each prototype came from and what became of it; they are the content of ``prototypes.json``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dapl.common.errors import BrokenError, DaplError, MissingError
from dapl.common.reading import checked, parse_json, regular_file
from dapl.models.contract import PrototypeModel
from dapl.models.prototypes import of_class_from
from dapl.models.weights import write_tensors
from dapl.runs.schemas import CheckpointHeader, PrototypeRecord, Records

FORMAT = 1
_ADVICE = "restore it from a copy, or train anew"
_MODEL, _OPTIMIZER = "model.", "optimizer."
_OF_CLASS, _MEMBERSHIP, _KEPT = (f"prototypes.{name}" for name in ("of_class", "membership", "kept"))
_RECORDS: TypeAdapter[list[PrototypeRecord]] = TypeAdapter(Records)


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
    write_tensors(path, tensors, {"dapl": json.dumps(header)})


def load_checkpoint(path: Path) -> Checkpoint:
    """Tensors as they are; position and facts are those of `CheckpointHeader`, within its bounds."""
    if not path.exists():
        raise MissingError(f"{path}: no such checkpoint; the run has not got that far, or this is not a run.")
    try:
        with safe_open(regular_file(path, _ADVICE), "pt") as file:
            written = (file.metadata() or {})["dapl"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as error:
        raise BrokenError(
            f"{path}: not a whole checkpoint of dapl ({type(error).__name__}: {error}); it was cut off or is of "
            f"another program, {_ADVICE}."
        ) from error
    header = parse_json(written, f"{path}: header", _ADVICE)
    if isinstance(header, dict) and header.get("format") != FORMAT:
        raise BrokenError(
            f"{path}: checkpoint format {header.get('format')!r}, this version reads {FORMAT}; train anew."
        )
    position = Position(*checked(header, CheckpointHeader, f"{path}: header", _ADVICE).position)
    facts = dict(header["facts"])
    parts: dict[str, dict[str, Tensor]] = {_MODEL: {}, _OPTIMIZER: {}}
    for name, tensor in tensors.items():
        for prefix, found in parts.items():
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = tensor
    return Checkpoint(position, parts[_MODEL], parts[_OPTIMIZER], facts)


def restore_model(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Fill a model, or say which tensors show that the checkpoint is of another one."""
    own, state = model.state_dict(), dict(state)
    if _MEMBERSHIP in state and _OF_CLASS in own:  # a file of before prototypes were kept by class
        state[_OF_CLASS] = of_class_from(state.pop(_MEMBERSHIP))
    wrong = [f"{name} is missing" for name in own if name not in state]
    wrong += [f"{name} is not part of this model" for name in state if name not in own]
    wrong += [
        f"{name} has shape {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and name != _OF_CLASS and state[name].shape != tensor.shape
    ]
    if _OF_CLASS in own and _OF_CLASS in state and (error := _wrong_table(state, own)):
        wrong.append(error)
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise DaplError(
            f"{path}: a checkpoint of another model: {'; '.join(wrong[:3])}{more}. Use the run's own config."
        )
    model.load_state_dict(state)


def _wrong_table(state: dict[str, Tensor], own: dict[str, Tensor]) -> str | None:
    """What is wrong with the prototypes of the classes in a file; rows are longer where classes share prototypes."""
    table, prototypes = state[_OF_CLASS], len(own[_KEPT])
    if table.dim() != 2 or len(table) != len(own[_OF_CLASS]):
        return f"{_OF_CLASS} has shape {tuple(table.shape)} instead of {tuple(own[_OF_CLASS].shape)}"
    if table.dtype != torch.long or (table.numel() and not -1 <= int(table.min()) <= int(table.max()) < prototypes):
        return f"{_OF_CLASS} names prototypes that there are not"
    return None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of the optimizer as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value) for number, entry in state.items() for name, value in entry.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    """Fill an optimizer, or say which tensor of the checkpoint ``path`` shows that it is of another one."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, entry = name.partition(".")
        fits = number.isascii() and number.isdigit() and int(number) < len(parameters)
        if not fits or (tensor.dim() and tensor.shape != parameters[int(number)].shape):
            raise BrokenError(f"{path}: optimizer.{name}: does not fit a parameter of this stage; {_ADVICE}.")
        state.setdefault(int(number), {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def fresh_records(model: PrototypeModel, classes: Sequence[str]) -> list[PrototypeRecord]:
    groups = model.prototypes.group_of.tolist()
    return [
        PrototypeRecord(j, [classes[c] for c in own], groups[j]) for j, own in enumerate(model.prototypes.classes_of())
    ]


def bounding_boxes(regions: Tensor) -> list[list[int] | None]:
    """bool P×H×W → for each left, top, right, bottom, the last two exclusive; None for an empty region.

    >>> bounding_boxes(torch.tensor([[[False, True, True]], [[False, False, False]]]))
    [[1, 0, 3, 1], None]
    """

    pixels = regions.detach().cpu().numpy().view(np.uint8)
    boxes: list[list[int] | None] = []
    for region in np.ascontiguousarray(pixels):
        content, width = region.tobytes(), region.shape[1]  # bytes are searched faster than anything is summed
        first = content.find(1)
        if first < 0:
            boxes.append(None)
            continue
        top, bottom = first // width, content.rfind(1) // width + 1
        columns = np.bitwise_or.reduce(region[top:bottom]).tobytes()
        boxes.append([columns.find(1), top, columns.rfind(1) + 1, bottom])
    return boxes


def records_to_json(records: Sequence[PrototypeRecord]) -> list[dict[str, Any]]:
    """Plain values that share nothing with the records, as ``dataclasses.asdict`` gives them in 20 times the time."""
    return list(_RECORDS.dump_python(list(records)))


def records_from_json(values: Any, where: object) -> list[PrototypeRecord]:
    """``where`` they were read, for the sentence on what is wrong with them."""
    return checked(values, _RECORDS, f"{where}: prototypes", _ADVICE)


def records_of(checkpoint: Checkpoint, model: PrototypeModel, path: Path) -> list[PrototypeRecord]:
    """Where the prototypes of ``model`` came from, one record for each."""
    records = records_from_json(checkpoint.facts.get("prototypes"), path)
    if len(records) != len(model.prototypes):
        raise BrokenError(
            f"{path}: prototypes: has records of {len(records)}, the model has {len(model.prototypes)}; {_ADVICE}."
        )
    return records
