"""What a function that may run in several processes knows of them, how they share work, and the case of one process.

Several devices and reduced precision are Lightning Fabric's business (`dapl.processes.fabric`), whose import takes
seconds. One process in full precision, which is how a run is read and mostly how it is trained, does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Processes(Protocol):
    """The processes that share the work, as one of them sees them."""

    @property
    def device(self) -> torch.device: ...

    @property
    def world_size(self) -> int:
        """How many processes there are."""

    @property
    def global_rank(self) -> int:
        """Number of this process, from 0; number 0 writes the files and speaks to the user."""

    @property
    def local_rank(self) -> int:
        """Number of this process on its machine, from 0."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of ``runtime.precision``, for a forward pass outside of a module from `setup`."""

    def barrier(self) -> None:
        """Wait until every process has come here."""

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in each of them."""

    def gather(self, values: Tensor) -> Tensor:
        """The values of all processes in the order of their numbers, W×…, in each of them."""

    def setup(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Both as a training step wants them: gradients are means over the processes."""

    def backward(self, loss: Tensor) -> None: ...

    def launch(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(processes, *arguments)`` in every process; returns what the first one returns."""


class SingleProcess:
    """This process alone, on one device, in full precision.

    >>> processes = SingleProcess()
    >>> processes.world_size, str(processes.device), processes.gather(torch.tensor([1, 2])).tolist()
    (1, 'cpu', [[1, 2]])
    """

    world_size, global_rank, local_rank = 1, 0, 0

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def __repr__(self) -> str:
        return f"SingleProcess({str(self.device)!r})"

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def barrier(self) -> None:
        pass

    def sum(self, values: Tensor) -> Tensor:
        return values

    def gather(self, values: Tensor) -> Tensor:
        return values.unsqueeze(0)

    def setup(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        return module, optimizer

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def launch(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self, *arguments)


def own_batches(order: Sequence[Tensor], processes: Processes) -> list[Tensor]:
    """The batches of this process: whole ones, so that each image is seen in the same company as in one process.

    Where there are fewer batches than processes, smaller ones are made, so that no process goes without.

    >>> own_batches([torch.tensor([0, 1]), torch.tensor([2])], SingleProcess())
    [tensor([0, 1]), tensor([2])]
    """
    if len(order) < processes.world_size:
        order = torch.cat(list(order)).tensor_split(processes.world_size)
    return [indices for indices in order[processes.global_rank :: processes.world_size] if len(indices)]


def sum_rows(table: Tensor, processes: Processes) -> Tensor:
    """The whole table, from the rows that each process filled in (the others are 0 there)."""
    if processes.world_size == 1:
        return table
    return processes.sum(table.to(processes.device)).cpu()
