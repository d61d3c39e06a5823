"""Several devices or reduced precision, by Lightning Fabric. Imported only where it is needed: that takes seconds."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dapl.common.errors import DaplError
from dapl.common.liveness import end_with_parent
from dapl.config import RuntimeConfig
from dapl.processes.meeting import meet_under_torchrun


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
            raise DaplError(f"runtime: {str(error).splitlines()[0]}") from error
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
