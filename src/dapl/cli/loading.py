"""What a command does while it loads its libraries: it tells the two that look after memory what is to come."""

from __future__ import annotations

import ctypes
import gc
import os
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
    keep_freed_memory()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


_TRIM, _MMAP = -1, -3
"""Numbers of the two options in glibc's malloc.h."""
_KEPT, _ON_ITS_OWN = 128 * 2**20, 256 * 2**20


def keep_freed_memory() -> bool:
    """Let the C library keep up to 128 MB that tensors give back, for the next ones; whether it was told so.

    Left to itself it returns each large block to the system and takes it again page by page at each step of a training,
    which costs a CPU a tenth of its time. Who has set it otherwise by the environment is left alone.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc, or not Linux
        return False
    return bool(set_option(_MMAP, _ON_ITS_OWN) and set_option(_TRIM, _KEPT))
