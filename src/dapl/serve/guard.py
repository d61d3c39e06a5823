"""What every request passes: is it addressed to us, does it come from our own page; and the headers of every answer."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dapl.serve.refusal import Refusal

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_READING = ("GET", "HEAD", "OPTIONS")
PICTURES_COME_TO = "/api/explain"
"""The one address with a larger limit, which it watches itself."""
_MAX_BODY = 2**16


class Guard:
    """ASGI middleware.

    A name that someone else's DNS points at this machine is refused (the page behind it could otherwise read
    everything), and so is a request that changes something and was sent by the page of another site.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        """``names``: host names under which the server may be called, beside IP addresses."""
        self.app = app
        self.names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self._refusal(Headers(scope=scope), scope["method"])
        if refused is None:
            limited = receive if scope["path"] == PICTURES_COME_TO else _limited(receive)
            await self.app(scope, limited, send_with_headers)
        else:
            await refused(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers, method: str) -> JSONResponse | None:
        host = headers.get("host", "")
        if not self._is_ours(_hostname(host)):
            return _answer(421, "The server does not go by this name; `dapl serve --allow-host NAME` adds one.")
        if method not in _READING and not _same_origin(headers, host):
            return _answer(403, "Only the server's own page may send this; open it there.")
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _limited(receive: Receive) -> Receive:
    """A body that is read up to a limit; what comes after it makes reading fail."""
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > _MAX_BODY:
            raise Refusal(413, "The body of the request is too large.")
        return message

    return counted


def _same_origin(headers: Headers, host: str) -> bool:
    """True also for programs that are no browser: they send neither header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _answer(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"detail": sentence}, status)
