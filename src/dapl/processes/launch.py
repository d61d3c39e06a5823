"""One process, several on this machine, or one of those that torchrun or SLURM started on several machines."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric

from dapl.common.errors import DaplError, original_message
from dapl.config import Config

_LAUNCHED_BY_OTHERS = ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "LOCAL_RANK")


def make_fabric(config: Config) -> Fabric:
    runtime = config.runtime
    several = runtime.devices * runtime.nodes > 1
    launched = any(name in os.environ for name in _LAUNCHED_BY_OTHERS)
    try:
        return Fabric(
            accelerator=runtime.accelerator,
            devices=runtime.devices,
            num_nodes=runtime.nodes,
            strategy=("ddp" if launched else "ddp_spawn") if several else "auto",
            precision=runtime.precision,  # type: ignore[arg-type]
        )
    except Exception as error:
        # Fabric has no common exception for devices and precisions that do not exist; its first sentence is good.
        raise DaplError(f"runtime: {str(error).splitlines()[0]}") from error


def is_first_process() -> bool:
    """Whether this process speaks for all: the only one, or the first of those that torchrun or SLURM started."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def launch(config: Config, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function(fabric, config, *arguments)`` in every process; returns what the first one returns."""
    fabric = make_fabric(config)
    try:
        return fabric.launch(_with_threads, function, config, *arguments)  # type: ignore[arg-type]
    except (torch.multiprocessing.ProcessRaisedException, DaplError) as error:
        # A spawned process or a loading one hands over its exception as a traceback in text.
        message = original_message(str(error))
        if message is None:
            raise
        raise DaplError(message) from error


def _with_threads(fabric: Fabric, function: Callable[..., Any], config: Config, *arguments: Any) -> Any:
    if fabric.device.type == "cpu" and config.runtime.devices > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // config.runtime.devices))
    return function(fabric, config, *arguments)
