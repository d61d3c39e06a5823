"""Reduced precision on a processor: tried in a child process before a run depends on it.

Some processors say that they have instructions for bfloat16 which then end the process (SIGILL): under a hypervisor
that hides them, or with kernels for matrix tiles (AMX) that the system has not switched on.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable

import torch

from dapl.common.errors import DaplError

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
