"""The log of requests, one line of JSON each. It has no query, which may hold the token, and no header."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from starlette.types import Scope

from dapl.common.errors import DaplError

log = logging.getLogger("dapl.serve")


class AccessLog:
    """Appends to a file, or writes to standard error where the path is ``-``.

    >>> AccessLog(Path("-")).line({"method": "GET", "path": "/", "client": ("::1", 5)}, 200, 7, 0.01234)
    ... # doctest: +ELLIPSIS
    '{"time": "...", "client": "::1", "method": "GET", "path": "/", "status": 200, "bytes": 7, "seconds": 0.012}'
    """

    def __init__(self, path: Path) -> None:
        self._failed = False
        try:
            self._file: TextIO = sys.stderr if str(path) == "-" else path.open("a", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise DaplError(f"--access-log: {path} cannot be written ({error}); name another file, or - .") from error

    def line(self, scope: Scope, status: int, sent: int, seconds: float) -> str:
        client = scope.get("client")
        return json.dumps(
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "client": client[0] if client else None,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "bytes": sent,
                "seconds": round(seconds, 3),
            }
        )

    def write(self, scope: Scope, status: int, sent: int, seconds: float) -> None:
        """A full disk is said once, and requests are answered all the same."""
        try:
            self._file.write(self.line(scope, status, sent, seconds) + "\n")
            self._file.flush()
        except OSError as error:
            if not self._failed:
                log.error("the access log cannot be written: %s", error)
            self._failed = True
