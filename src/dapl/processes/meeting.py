"""Where processes that torchrun starts again find each other.

torchrun keeps one store for all its attempts, and with it the addresses of processes that are dead. Whoever of the next
attempt is first there would read those and try to reach them until it gives up. So each attempt agrees on a name of
its own, under which nobody has written before.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, Store, rendezvous
from torch.distributed.constants import default_pg_timeout

from dapl.common.errors import DaplError

_PATIENCE = 0.05
"""Seconds between two looks."""


def meet_under_torchrun(device: torch.device) -> None:
    """Join the process group of this attempt; nothing to do for processes that something else has started."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or torch.distributed.is_initialized():
        return
    store, rank, world_size = next(rendezvous("env://", timeout=default_pg_timeout))
    name = agree_on_attempt(store, rank, world_size, default_pg_timeout)
    backend = torch.distributed.get_default_backend_for_device(device)
    torch.distributed.init_process_group(
        backend, store=PrefixStore(name, store), rank=rank, world_size=world_size, timeout=default_pg_timeout
    )


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
