"""Work that several processes share: batches are divided among them, and what each found is put together again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dapl.processes.interface import Processes


def own_batches(order: Sequence[Tensor], processes: Processes) -> list[Tensor]:
    """The batches of this process: whole ones, so that each image is seen in the same company as in one process.

    Where there are fewer batches than processes, smaller ones are made, so that no process goes without.

    >>> from dapl.processes.interface import SingleProcess
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
