"""The log of requests, one line of JSON each. It has no query, which may hold the token, and no header."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

from starlette.types import Scope

from dapl.common.errors import WriteError
from dapl.common.files import append_line, make_appendable

log = logging.getLogger("dapl.serve")


class AccessLog:
    """Appends to a file, or writes to standard error where the path is ``-``.

    >>> AccessLog(Path("-")).line({"method": "GET", "path": "/", "client": ("::1", 5)}, 200, 7, 0.01234)
    ... # doctest: +ELLIPSIS
    '{"time": "...", "client": "::1", "method": "GET", "path": "/", "status": 200, "bytes": 7, "seconds": 0.012}'
    """

    def __init__(self, path: Path) -> None:
        self._failed = False
        self._path = None if str(path) == "-" else path
        if self._path is not None:
            make_appendable(self._path)

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
        line = self.line(scope, status, sent, seconds)
        try:
            if self._path is None:
                print(line, file=sys.stderr, flush=True)
            else:
                append_line(self._path, line)
        except (OSError, WriteError) as error:
            if not self._failed:
                log.error("the access log cannot be written: %s", error)
            self._failed = True
