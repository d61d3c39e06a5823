"""Which processes work on a sweep: each holds a file lock, which the system takes back however the process dies."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

from filelock import FileLock, Timeout


class Worker:
    """This process, as others see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ".workers"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = uuid.uuid4().hex[:12]
        self.place = f"{socket.gethostname()}:{folder.resolve()}"
        """Where a process must run to be able to tell whether this one lives."""
        self._lock = FileLock(self._file(self.name))
        self._lock.acquire()

    def is_alive(self, name: str) -> bool:
        """Whether the process of that name still runs; what a dead one left is cleared away."""
        file = self._file(name)
        if not file.exists():
            return False
        try:
            with FileLock(file, timeout=0):
                file.unlink(missing_ok=True)
        except Timeout:
            return True
        return False

    def leave(self) -> None:
        self._file(self.name).unlink(missing_ok=True)
        self._lock.release()

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.lock"
