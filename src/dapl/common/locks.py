"""A lock that says who holds it: process, machine and time.

The system gives a lock back when its process dies, however it dies, so that the lock of a dead holder is free to take.
Whoever does not hold the lock of a folder deletes nothing there.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dapl.common.errors import BrokenError, DaplError, LockedError, MissingError
from dapl.common.files import make_folder, refusing
from dapl.common.reading import read_json

try:
    import fcntl
except ImportError:  # Windows: as on a file system without locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""Name of the lock of a folder, in the folder."""
_STEP = 0.05
"""Seconds between two looks at a lock that one waits for."""
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass
class _Held:
    file: int
    thread: int
    depth: int = 1


_held: dict[str, _Held] = {}
"""What this process holds, by path."""
_guard = threading.Lock()


@contextmanager
def locked(path: Path, doing: str, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock file ``path``; raises `LockedError` where another process holds it for ``wait`` seconds more.

    ``doing``: what for, as the other one's message says it. Within, the same thread may take it again.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with locked(path, "training"), locked(path, "measuring"):
    ...     json.loads(path.read_text())["doing"]
    'training'
    >>> path.exists()
    False
    """
    make_folder(path.parent)
    key = os.path.realpath(path)
    deadline = time.monotonic() + wait
    while not _take(path, key, doing):
        if time.monotonic() >= deadline:
            raise LockedError(_said(path))
        time.sleep(_STEP)
    try:
        yield
    finally:
        _give_back(key)


def _take(path: Path, key: str, doing: str) -> bool:
    with _guard:
        mine = _held.get(key)
        if mine is not None:
            mine.depth += mine.thread == threading.get_ident()
            return mine.thread == threading.get_ident()
        with refusing(path):
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # the holder before us removed the folder
                make_folder(path.parent)
                file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock(file, path):
            os.close(file)
            return False
        _held[key] = _Held(file, threading.get_ident())
        with suppress(OSError):  # on a full disk it is held all the same, only nobody can read by whom
            os.truncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            os.write(file, _who(doing).encode("utf-8"))
        return True


def _lock(file: int, path: Path) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            return True  # such a file system: better no lock than no work at all
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise DaplError(f"{path}: cannot be locked ({error.strerror}); name a folder on another disk.") from error
        return False
    try:  # the holder before us removed the file when it was through: a lock on what has no name keeps nobody out
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False


def _give_back(key: str) -> None:
    with _guard:
        mine = _held.get(key)
        if mine is None:  # a forked process: the lock is its parent's
            return
        mine.depth -= 1
        if not mine.depth:
            del _held[key]
            with suppress(OSError):
                os.unlink(key)  # while it is held, so that it is our own
            os.close(mine.file)


def _forget_in_child() -> None:
    """A forked process, one that loads images say, would keep the lock of a parent that was killed."""
    global _guard
    _guard = threading.Lock()
    for mine in _held.values():
        with suppress(OSError):
            os.close(mine.file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _who(doing: str) -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"process": os.getpid(), "host": platform.node(), "since": since, "doing": doing}
    return json.dumps(facts, ensure_ascii=False) + "\n"


def _said(path: Path) -> str:
    """Who holds it, as the holder wrote it down: for people, it decides nothing."""
    try:
        facts = read_json(path, "", 10_000)
        who = f"process {facts['process']} on {facts['host']} has been {facts['doing']} there since {facts['since']}"
    except (MissingError, BrokenError, KeyError, TypeError):
        who = "another process is at work there"
    return f"{path.parent}: {who}; wait until it is through, or name another folder."
