"""One model pass at a time, and only so many pictures waiting for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from dapl.serve.refusal import too_busy

PLACES = 32
"""Requests that may hold a picture in memory, counting the one that is being worked on."""

_Result = TypeVar("_Result")


class Worker:
    """A single thread that all work on the model goes through, in the order in which it was asked for."""

    def __init__(self, places: int = PLACES) -> None:
        self.places = places
        self.taken = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Held from before a picture is read until its answer is there. Only the event loop's thread takes places."""
        if self.taken >= self.places:
            raise too_busy()
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
