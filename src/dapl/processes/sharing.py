"""Work that several processes share: batches are dealt out, what each found is put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

import torch
from lightning_fabric import Fabric
from torch import Tensor

TABLE = TypeVar("TABLE")


def deal(order: Sequence[Tensor], fabric: Fabric) -> list[Tensor]:
    """Whole batches dealt out to the processes, so that each image is seen in the same company as in one process.

    Where there are fewer batches than processes, smaller ones are made, so that no process goes without.
    """
    if len(order) < fabric.world_size:
        order = torch.cat(list(order)).tensor_split(fabric.world_size)
    return [indices for indices in order[fabric.global_rank :: fabric.world_size] if len(indices)]


def everywhere(table: Tensor, fabric: Fabric) -> Tensor:
    """Rows that each process filled in its share of, put together (the rest is 0)."""
    if fabric.world_size == 1:
        return table
    return fabric.all_reduce(table.to(fabric.device), reduce_op="sum").cpu()  # type: ignore[union-attr]


def merged(table: TABLE, fabric: Fabric) -> TABLE:
    """The rows that each process filled in its share of, and the sums of all."""
    for field in fields(table):  # type: ignore[arg-type]
        setattr(table, field.name, everywhere(getattr(table, field.name), fabric))
    return table
