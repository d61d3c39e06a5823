"""Several devices or reduced precision, by Lightning Fabric. Imported only where it is needed: that takes seconds.

It also says where processes that torchrun starts again find each other. torchrun keeps one store for all its attempts,
and with it the addresses of processes that are dead. Whoever of the next attempt is first there would read those and
try to reach them until it gives up. So each attempt agrees on a name of its own, under which nobody has written before.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, rendezvous
from torch.distributed.constants import default_pg_timeout

from dapl.common.errors import DaplError, reason_of
from dapl.common.liveness import end_with_parent
from dapl.config import RuntimeConfig


@contextmanager
def _only_its_version(package: str) -> Iterator[None]:
    """Within, an import of ``package`` that was not loaded before finds no more than its version."""
    if package in sys.modules:
        yield
        return
    stand_in = ModuleType(package)
    stand_in.__version__ = importlib.metadata.version(package)  # type: ignore[attr-defined]
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        del sys.modules[package]


# At import Fabric asks torchmetrics for its version, and for no more. Loading all of torchmetrics, with transformers
# and scipy, took as long as all else together, in each process anew.
with _only_its_version("torchmetrics"):
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy


START: Literal["spawn", "fork"] = "spawn"
"""How processes are started on one machine: anew, for a copy of this one would hang where it has used threads."""


class _Started(DDPStrategy):
    """Several processes on one machine, which end with the one that started them."""

    def __init__(self) -> None:
        super().__init__(start_method=START)

    def setup_environment(self) -> None:
        """In each of them, before it waits for the others."""
        end_with_parent()
        super().setup_environment()


_LAUNCHED_BY_OTHERS = ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "LOCAL_RANK")


class FabricProcesses:
    """`Processes` on top of a Fabric."""

    def __init__(self, fabric: Fabric, per_machine: int) -> None:
        self.fabric, self.per_machine = fabric, per_machine
        self.device, self.world_size = fabric.device, fabric.world_size
        self.global_rank, self.local_rank = fabric.global_rank, fabric.local_rank

    @classmethod
    def of_runtime(cls, runtime: RuntimeConfig) -> FabricProcesses:
        several = runtime.devices * runtime.nodes > 1
        launched = any(name in os.environ for name in _LAUNCHED_BY_OTHERS)
        try:
            fabric = Fabric(
                accelerator=runtime.accelerator,
                devices=runtime.devices,
                num_nodes=runtime.nodes,
                strategy=("ddp" if launched else _Started()) if several else "auto",
                precision=runtime.precision,  # type: ignore[arg-type]
            )
        except Exception as error:
            # Fabric has no common exception for devices and precisions that do not exist; its first sentence is good.
            raise DaplError(f"runtime: {reason_of(error)}") from error
        return cls(fabric, runtime.devices)

    def __repr__(self) -> str:
        return f"FabricProcesses({str(self.device)!r}, {self.global_rank + 1} of {self.world_size})"

    def autocast(self) -> AbstractContextManager[Any]:
        return self.fabric.autocast()

    def barrier(self) -> None:
        self.fabric.barrier()

    def sum(self, values: Tensor) -> Tensor:
        found = self.fabric.all_reduce(values, reduce_op="sum")
        assert isinstance(found, Tensor)
        return found

    def gather(self, values: Tensor) -> Tensor:
        found = self.fabric.all_gather(values)
        assert isinstance(found, Tensor)
        return found if self.world_size > 1 else found.unsqueeze(0)

    def setup(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        wrapped, stepping = self.fabric.setup(module, optimizer)
        return wrapped, stepping

    def backward(self, loss: Tensor) -> None:
        self.fabric.backward(loss)

    def launch(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self.world_size > 1:
            meet_under_torchrun(self.device)
        return self.fabric.launch(_in_process, self.per_machine, function, *arguments)  # type: ignore[arg-type]


def _in_process(fabric: Fabric, per_machine: int, function: Callable[..., Any], *arguments: Any) -> Any:
    if fabric.device.type == "cpu" and per_machine > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // per_machine))
    return function(FabricProcesses(fabric, per_machine), *arguments)


_PATIENCE = 0.05
"""Seconds between two looks."""


def meet_under_torchrun(device: torch.device) -> None:
    """Join the process group of this attempt; nothing to do for processes that something else has started."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or torch.distributed.is_initialized():
        return
    store, rank, world_size = _torchruns_store()
    name = agree_on_attempt(store, rank, world_size, default_pg_timeout)
    backend = torch.distributed.get_default_backend_for_device(device)
    torch.distributed.init_process_group(
        backend, store=PrefixStore(name, store), rank=rank, world_size=world_size, timeout=default_pg_timeout
    )


def was_restarted() -> bool:
    """Whether torchrun has started the processes of this job before; all of them have to ask."""
    count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return "TORCHELASTIC_RUN_ID" in os.environ and any_restarted(*_torchruns_store(), count, default_pg_timeout)


def any_restarted(store: Store, rank: int, world_size: int, count: int, timeout: timedelta) -> bool:
    """Whether a process of this attempt counts a restart: the same answer for all of them.

    With ``--rdzv-backend c10d`` a host counts the restarts that its own processes were the cause of, and no others.
    """
    name = agree_on_attempt(store, rank, world_size, timeout)
    store.set(f"{name}/restarts/{rank}", str(count))
    return any(int(store.get(f"{name}/restarts/{other}")) for other in range(world_size))


@cache
def _torchruns_store() -> tuple[Store, int, int]:
    """The store, this process's rank and their number. The first process may be the one that keeps the store."""
    return next(rendezvous("env://", timeout=default_pg_timeout))


def agree_on_attempt(store: Store, rank: int, world_size: int, timeout: timedelta) -> str:
    """A name that the living processes have in common, and none that has died.

    The first process proposes one, each other one answers with a word of its own, and the first one repeats all these
    words. Who reads its word knows that the proposal is not one of an earlier attempt.

    >>> agree_on_attempt(torch.distributed.HashStore(), 0, 1, timedelta(seconds=1)).startswith("dapl/")
    True
    """
    own, until = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    if rank == 0:
        answers = [f"dapl/{own}/{other}" for other in range(1, world_size)]
        store.set("dapl/attempt", own)
        if answers:
            store.wait(answers, timeout)
        store.set(f"dapl/{own}/all", " ".join(store.get(answer).decode() for answer in answers))
        return f"dapl/{own}"
    answered = ""
    while time.monotonic() < until:
        proposed = store.get("dapl/attempt").decode()
        if proposed != answered:
            store.set(f"dapl/{proposed}/{rank}", own)
            answered = proposed
        if store.check([f"dapl/{proposed}/all"]) and own in store.get(f"dapl/{proposed}/all").decode().split():
            return f"dapl/{proposed}"
        time.sleep(_PATIENCE)
    raise DaplError(f"process {rank} of {world_size} has waited {timeout} for the first one, which was not started.")
