"""Signs of life: which process this is, whether another one still lives, and what is done again and again meanwhile."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


def this_process() -> str:
    """A name that no other process has: of the machine, the number and the start of this one."""
    return _named(os.getpid())


@cache
def _named(number: int) -> str:
    """Asked once: whoever writes thousands of files asks for each of them."""
    return f"{_machine()}-{number}-{_started(number)}"


if hasattr(os, "register_at_fork"):  # a child may have the number of a process that its parent knew
    os.register_at_fork(after_in_child=_named.cache_clear)


def is_alive(process: str) -> bool | None:
    """Whether the process of that name lives; None where it is one of another machine, which cannot be seen.

    >>> is_alive(this_process()), is_alive(f"{_machine()}-{os.getpid()}-0")   # the second had the number before us
    (True, False)
    """
    if "-" not in process:
        return False  # as older versions wrote it, of which none runs any more
    machine, number, started = process.rsplit("-", 2)
    if machine != _machine():
        return None
    return has_process(int(number)) and _started(int(number)) in (int(started), 0)


def has_process(number: int) -> bool:
    """Whether there is a process of that number on this machine; on Windows, where asking would end it, yes."""
    if os.name == "nt":
        return True
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return number > 0 and not _is_zombie(number)


@cache
def _machine() -> str:
    """Eight hexadecimal digits. Containers count processes anew, so the name space of their numbers belongs to it."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return hashlib.blake2b(f"{platform.node()}/{space}".encode(), digest_size=4).hexdigest()


def _fields(number: int) -> list[str]:
    """What /proc/<number>/stat says after the name of the program; empty on systems without it."""
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _started(number: int) -> int:
    """When a process started, in ticks since the machine did; 0 where that cannot be known."""
    fields = _fields(number)
    return int(fields[19]) if len(fields) > 19 else 0


def _is_zombie(number: int) -> bool:
    """Dead, and not yet taken notice of by its parent."""
    return _fields(number)[:1] == ["Z"]


def end_with_parent() -> None:
    """Called in a process that another one started: it ends when that one is gone, even where that was before the call.

    A parent that was killed cannot say so, and its children would wait for work, or for each other, for ever.
    """
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        # the second, since brothers that were forked hold open what would tell the first
        while parent.is_alive() and os.getppid() == parent.pid:
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_LOOK_SECONDS = 0.5


@contextmanager
def meanwhile(act: Callable[[], object], seconds: float) -> Iterator[None]:
    """``act`` is called every so many seconds, in a thread of its own, until the block ends.

    >>> seen = []
    >>> with meanwhile(lambda: seen.append("alive"), 0.001):
    ...     while not seen:
    ...         pass
    >>> seen[0]
    'alive'
    """
    done = threading.Event()

    def again_and_again() -> None:
        while not done.wait(seconds):
            act()

    thread = threading.Thread(target=again_and_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
