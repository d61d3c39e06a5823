"""Connections that may not hold the server up: how many there are, and how long each may make it wait.

What uvicorn leaves open: a client that never finishes its header, that never reads its answer, or that opens more
connections than the process has files for. Whoever makes the server wait the longest gives way to newcomers.
"""

from __future__ import annotations

import asyncio
import json
import resource
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from dapl.serve.requests import SAFE_HEADERS

MOST_CONNECTIONS = 512
"""At once; fewer where the process may open fewer files."""
HEADER_SECONDS = 10.0
"""From the first byte of a request to the end of its header, and from a new connection to its first request."""
STALLED_SECONDS = 30.0
"""For a client that does not take its answer."""
IDLE_SECONDS = 75
"""Before an idle connection is closed: longer than clients keep theirs, or one may send into a closing one."""
STOP_SECONDS = 10
"""For what is being answered when the server is told to stop."""
_PATIENCE = 5.0
"""A body that arrives for longer than this may be given up where connections run out."""


def most_connections() -> int:
    """As many as the limit of open files leaves room for beside everything else that is open.

    >>> 0 < most_connections() <= MOST_CONNECTIONS
    True
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else max(8, min(MOST_CONNECTIONS, allowed // 2))


class Connection(H11Protocol):
    """One connection, with a deadline for everything that the other side has to do."""

    most: int | None = None
    """Connections at once, at most; None: `most_connections`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.since = self.loop.time()
        """When it last became the other side's turn."""
        self._header: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > (self.most or most_connections()):
            slowest = min((one for one in self.connections if one._may_go()), key=lambda one: one.since, default=None)  # type: ignore[union-attr]
            if slowest is None or slowest is self:
                self._refuse(503, "The server has as many connections as it can hold; try again in a second.")
                return
            slowest.transport.abort()
        self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_idle():
            self._expect_header()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        if self.cycle.more_body:  # it was refused before it had arrived
            self._expect_header()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # closing would wait for what a client does not take

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is not a request of HTTP/1.1 that can be read.")

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _may_go(self) -> bool:
        """Whether it waits for the other side: for a header, or for a body that has been arriving for long."""
        slow = self.cycle is not None and self.cycle.more_body and self.loop.time() - self.since > _PATIENCE
        return self._is_idle() or slow

    def _expect_header(self) -> None:
        if self._header is None:
            self._header = self.loop.call_later(HEADER_SECONDS, self._check_header, self.cycle)

    def _check_header(self, before: Any) -> None:
        self._header = None
        if self.cycle is before:  # no request has begun since
            self.transport.abort()

    def _refuse(self, status: int, sentence: str) -> None:
        """Answered without h11, which may be in any state."""
        if self.transport.is_closing():
            return
        body = json.dumps({"detail": sentence}).encode()
        headers = {**SAFE_HEADERS, "Content-Type": "application/json", "Content-Length": str(len(body))}
        more = {"Connection": "close", "Retry-After": "1"} if status == 503 else {"Connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **more}.items())
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode("latin-1") + body
            )
        self.transport.close()


def server_config(app: ASGIApp) -> Config:
    """How uvicorn has to be run."""
    return Config(
        app,
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
