"""One process, several on this machine, or one of those that torchrun or SLURM started on several machines.

Reduced precision on a processor is tried in a child process before a run depends on it. Some processors say that they
have instructions for bfloat16 which then end the process (SIGILL): under a hypervisor that hides them, or with kernels
for matrix tiles (AMX) that the system has not switched on.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from dapl.common.errors import DaplError, original_message, said_by_system
from dapl.config import Config
from dapl.processes.interface import Processes, SingleProcess

_MOST_PER_CORE = 4
"""Processes; each holds the libraries, the model and its batches."""


def make_processes(config: Config) -> Processes:
    """The processes that ``config.runtime`` asks for; Fabric is loaded only where one plain process is not enough."""
    runtime = config.runtime
    device = _single_device(runtime.accelerator)
    most = _MOST_PER_CORE * (os.cpu_count() or 1)
    if device is not None and device.type == "cpu" and runtime.devices > max(most, 8):
        raise DaplError(
            f"runtime.devices: {runtime.devices} processes are more than {_MOST_PER_CORE} per core of this machine, "
            f"which has {os.cpu_count()}; give {most} or fewer."
        )
    if device is not None and runtime.devices * runtime.nodes == 1 and runtime.precision in ("32", "32-true"):
        return SingleProcess(device)
    if device is not None and device.type == "cpu":
        check_precision(runtime.precision)
    from dapl.processes.fabric import FabricProcesses

    return FabricProcesses.of_runtime(runtime)


def _single_device(accelerator: str) -> torch.device | None:
    """The first device of that kind; None where there is none, or where Fabric knows the kind and we do not."""
    is_there: dict[str, Callable[[], bool]] = {
        "mps": torch.backends.mps.is_available,
        "cuda": torch.cuda.is_available,
        "cpu": lambda: True,
    }
    kind = {"auto": next(kind for kind, there in is_there.items() if there()), "gpu": "cuda"}.get(
        accelerator, accelerator
    )
    if kind not in is_there or not is_there[kind]():
        return None
    return torch.device(kind) if kind == "cpu" else torch.device(kind, 0)


def is_first_process() -> bool:
    """Whether this process speaks for all: the only one, or the first of those that torchrun or SLURM started."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def launch(config: Config, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function(processes, config, *arguments)`` in every process; returns what the first one returns."""
    processes = make_processes(config)
    try:
        return processes.launch(_in_sentences, function, config, *arguments)
    except (torch.multiprocessing.ProcessRaisedException, DaplError) as error:
        # A spawned process or a loading one hands over its exception as a traceback in text.
        message = original_message(str(error))
        if message is None:
            raise
        raise DaplError(message) from error
    except RuntimeError as error:
        if processes.world_size == 1 or not _lost_another(error):
            raise
        raise DaplError(
            "another process of this run has ended or cannot be reached any more, so this one ends too; start all of "
            "them again with `dapl train --resume RUN`, which goes on from the last checkpoint."
        ) from error


def _in_sentences(processes: Processes, function: Callable[..., Any], config: Config, *arguments: Any) -> Any:
    """What the system refuses is said, in whichever process it is: an exception of another one comes over as text."""
    try:
        return function(processes, config, *arguments)
    except BrokenPipeError:
        raise  # of standard output: whoever read it has seen enough
    except OSError as error:
        raise DaplError(said_by_system(error)) from error


def _lost_another(error: RuntimeError) -> bool:
    """Whether this is how torch's communication says that a peer has gone; gloo has no exception of its own."""
    if isinstance(error, torch.distributed.DistError):
        return True
    words = ("closed by peer", "reset by peer", "Broken pipe", "Socket closed", "Timed out waiting", "connectFullMesh")
    return any(word in str(error) for word in words)


_INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"
_FEWER = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""Values of that environment variable, which keeps torch's kernels (oneDNN) to fewer instructions, from many to few."""


def check_precision(precision: str, exercise: Callable[[], object] | None = None) -> None:
    """Refuse a precision that would end the process on this processor, with a way round that was tried.

    ``exercise`` is what a child process does to find out; by default a training step in bfloat16.

    >>> check_precision("32-true")
    """
    if not precision.startswith("bf16") or not hasattr(os, "fork"):
        return
    exercise = exercise or _bfloat16_step
    ended_by = _signal_that_ended(exercise)
    if ended_by is None:
        return
    fewer = (value for value in _FEWER if _signal_that_ended(exercise, {_INSTRUCTIONS: value}) is None)
    way = next((f"set {_INSTRUCTIONS}={value} in the environment, with which it worked, or " for value in fewer), "")
    raise DaplError(
        f"runtime.precision: {precision} ends with {ended_by.name} on this processor, tried before anything was "
        f"trained; {way}use 32-true."
    )


def _bfloat16_step() -> None:
    """Forward and backward through the operations that networks are made of, in sizes that the fast kernels take."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.Conv2d(32, 32, 3, padding=1, groups=32),
        torch.nn.Conv2d(32, 64, 1),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 16 * 16, 64),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(torch.zeros(4, 3, 16, 16)).sum().backward()


def _signal_that_ended(
    exercise: Callable[[], object], environment: dict[str, str] | None = None
) -> signal.Signals | None:
    """The signal that a child process died of while it did the exercise, if it did."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()  # the child may die here: that is the answer, and no news
            os.environ |= environment or {}
            torch.set_num_threads(1)  # threads of the parent do not exist here, and would be waited for
            exercise()
        finally:
            os._exit(0)  # an exception is no signal: the run itself will say it better
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
