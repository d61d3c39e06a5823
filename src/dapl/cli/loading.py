"""What a command does while it loads its libraries."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_done = False


@contextmanager
def loading() -> Iterator[None]:
    """For the imports of a command: the garbage collector lets them be, while they are made and ever after.

    They make half a million objects, none of which is garbage before the process ends. The collector would look through
    all of them again and again meanwhile, in later collections, and at the end: together a fifth of what it takes to
    load them. Only once per process: a later command in the same one finds them loaded.
    """
    global _done
    if _done or not gc.isenabled():
        yield
        return
    _done = True
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
