"""What every request passes: who may ask, how much may wait, which files are read, and a line in the log.

A refusal is one sentence and a status, never a path or a traceback. Images are read with a limit, decoded by Pillow
alone, never stored and never sent back as they came: whatever hides in a file beside its pixels (a ZIP after the last
marker, HTML in a comment) is left behind, and what the page shows of it is encoded anew.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import AsyncIterable, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import dapl.common.operators  # noqa: F401  (before torchvision)  # isort: skip
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torchvision import tv_tensors

from dapl.common.errors import DaplError, WriteError
from dapl.common.files import append_line, make_appendable
from dapl.data.images import MAX_PIXELS, rgb_of, upright

log = logging.getLogger("dapl.serve")


class Refusal(Exception):  # noqa: N818  (as often an answer as an error)
    """An answer with a status of 400 or more. The sentence is for the person at the other end."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})


PLACES = 32
"""Requests that may hold an image in memory, counting the one that is being worked on."""

_Result = TypeVar("_Result")


class ModelThread:
    """A single thread that all work on the model goes through, in the order in which it was asked for."""

    def __init__(self, places: int = PLACES) -> None:
        self.places = places
        self.taken = 0
        self.arriving = ArrivingBodies()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Held from when an image has arrived until its answer is there. Only the event loop's thread takes places."""
        if self.taken >= self.places:
            sentence = "The server has as many images waiting as it can hold; try again in a second."
            raise Refusal(503, sentence, {"Retry-After": "1"})
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_READING = ("GET", "HEAD", "OPTIONS")
UPLOADS_COME_TO = re.compile(r"(/\d+)?/api/explain")
"""The one address with a larger limit, which it watches itself; of several runs, each has one."""
_MAX_BODY = 2**16
HEALTH = "/health"
"""Answers without a token: it says nothing but that the server is there."""


class Guard:
    """ASGI middleware.

    A name that someone else's DNS points at this machine is refused (the page behind it could otherwise read
    everything), and so is a request that changes something and was sent by the page of another site. With a token,
    whoever does not have it is refused.
    """

    def __init__(
        self, app: ASGIApp, names: Collection[str], token: str | None = None, access_log: AccessLog | None = None
    ) -> None:
        """``names``: host names under which the server may be called, beside IP addresses."""
        self.app, self.token, self.access_log = app, token, access_log
        self.names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent = time.monotonic(), 0, 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            sent += len(message.get("body", b""))
            await send(message)

        try:
            answer = self._refusal(Headers(scope=scope), scope["method"]) or self._admission(scope)
            if answer is None:
                limited = receive if UPLOADS_COME_TO.fullmatch(scope["path"]) else _limited(receive)
                await self.app(scope, limited, send_with_headers)
            else:
                await answer(scope, receive, send_with_headers)
        finally:
            if self.access_log is not None:
                self.access_log.write(scope, status, sent, time.monotonic() - started)

    def _refusal(self, headers: Headers, method: str) -> JSONResponse | None:
        host = headers.get("host", "")
        if not self._is_ours(_hostname(host)):
            sentence = "The server does not go by this name; `dapl serve --allow-host NAME` adds one."
            return JSONResponse({"detail": sentence}, 421)
        if method not in _READING and not _same_origin(headers, host):
            return JSONResponse({"detail": "Only the server's own page may send this; open it there."}, 403)
        return None

    def _admission(self, scope: Scope) -> Response | None:
        """None for whoever may come in; else a refusal, or the cookie for a browser that came with the token."""
        if self.token is None or scope["path"] == HEALTH:
            return None
        headers, cookie = Headers(scope=scope), f"dapl-{(scope.get('server') or ('', 0))[1]}"
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=None).get("token", [""])
        if scope["method"] == "GET" and self._is_token(asked[0]):
            response = RedirectResponse("/" + quote(scope["path"].lstrip("/")), 303)
            response.set_cookie(cookie, self.token, httponly=True, samesite="lax")
            return response
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(bearer):
            return None
        if self._is_token(cookie_parser(headers.get("cookie", "")).get(cookie, "")):
            return None
        sentence = "The server wants its token: open the address that it printed, or send Authorization: Bearer TOKEN."
        return JSONResponse({"detail": sentence}, 401, {"WWW-Authenticate": "Bearer"})

    def _is_token(self, given: str) -> bool:
        """In a time that tells nothing of how much of it was right."""
        return self.token is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def _is_ours(self, name: str) -> bool:
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _limited(receive: Receive) -> Receive:
    """A body that is read up to a limit and within a time; what comes after makes reading fail."""
    total, complete = 0, False
    deadline = asyncio.get_running_loop().time() + _SECONDS

    async def counted() -> Message:
        nonlocal total, complete
        try:
            async with asyncio.timeout_at(None if complete else deadline):
                message = await receive()
        except TimeoutError:
            sentence = f"The request did not arrive within {_SECONDS:.0f} seconds; send it again."
            raise Refusal(408, sentence, {"Connection": "close"}) from None
        total += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if total > _MAX_BODY:
            raise Refusal(413, "The body of the request is too large.")
        return message

    return counted


def _same_origin(headers: Headers, host: str) -> bool:
    """True also for programs that are no browser: they send neither header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # http://[ and the like
        return False


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


MAX_BYTES = 10 * 2**20
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
"""What is tried. Pillow would also open formats that call other programs (EPS) or nest others (ICO, ICNS, PDF)."""
Image.init()  # or Pillow knows only some of them
_KNOWN = [name for name in FORMATS if name in Image.OPEN]  # AVIF depends on how it was built
_DISCARDED = 8 * MAX_BYTES
"""How much more is read of what is refused: a client that is still sending does not look for the answer."""
_SECONDS = 60.0
"""In which an image must have arrived."""
_PATIENCE = 5.0
"""A body that takes longer than this gives way where those that arrive together hold too much."""
_NAMES = "JPEG, PNG, WebP, AVIF, GIF, BMP, TIFF or PPM"


class ArrivingBodies:
    """Bodies that are being received: they may hold so many bytes together, and the slowest gives way to the others."""

    def __init__(self, most: int = 16 * MAX_BYTES) -> None:
        self.most, self.held = most, 0
        self._deadlines: dict[object, tuple[float, asyncio.Timeout]] = {}

    async def read(self, chunks: AsyncIterable[bytes]) -> bytes:
        """All of them, counted while they come in, whatever the header said."""
        loop, key, kept, total = asyncio.get_running_loop(), object(), list[bytes](), 0
        started = loop.time()
        try:
            async with asyncio.timeout(_SECONDS) as deadline:
                self._deadlines[key] = (started, deadline)
                async for chunk in chunks:
                    total += len(chunk)
                    if total <= MAX_BYTES:
                        kept.append(chunk)
                        self.held += len(chunk)
                        self._make_room(loop.time())
                    elif total > _DISCARDED:
                        break
                    else:
                        self.held -= sum(map(len, kept))
                        kept.clear()
        except TimeoutError:
            waited = loop.time() - started
            sentence = f"The image did not arrive within {waited:.0f} seconds; send it again."
            raise Refusal(408, sentence, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise Refusal(400, "The image did not arrive as a whole; send it again.") from None
        finally:
            del self._deadlines[key]
            self.held -= sum(map(len, kept))
        if total > MAX_BYTES:
            raise Refusal(413, f"The file is larger than {MAX_BYTES // 2**20} MB; send a smaller one.")
        return b"".join(kept)

    def _make_room(self, now: float) -> None:
        if self.held <= self.most:
            return
        began, deadline = next(iter(self._deadlines.values()))
        if now - began < _PATIENCE:
            sentence = "The server is receiving as many images as it can hold; try again in a second."
            raise Refusal(503, sentence, {"Retry-After": "1"})
        if not deadline.expired():
            deadline.reschedule(now)


async def read_body(request: Request, arriving: ArrivingBodies) -> bytes:
    """The body of a request, which must be an image's file by its size."""
    return await arriving.read(request.stream())


async def discard_body(request: Request) -> None:
    """Read past what will not be looked at."""
    total = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                total += len(chunk)
                if total > _DISCARDED:
                    return


def decode(content: bytes) -> tv_tensors.Image:
    """uint8 3×H×W RGB, upright: the pixels that `read_image` gives for the file."""
    if not content:
        raise Refusal(422, f"The file is empty; send an image as {_NAMES}.")
    try:
        with Image.open(io.BytesIO(content), formats=_KNOWN) as file:
            width, height = file.size
            if width * height > MAX_PIXELS:
                raise _too_many_pixels()
            file.load()
            return rgb_of(upright(file), "The image")
    except Refusal:
        raise
    except DaplError as error:
        raise Refusal(422, str(error)) from None
    except UnidentifiedImageError:
        raise Refusal(415, f"The file is not an image that can be read; send {_NAMES}.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels() from None
    except MemoryError:
        raise Refusal(413, "The image does not fit into memory; scale it down.") from None
    except Exception:  # Pillow's decoders raise nearly anything on broken data
        raise Refusal(422, "The image is corrupt or truncated; send another copy of it.") from None


def _too_many_pixels() -> Refusal:
    return Refusal(413, f"The image has more than {MAX_PIXELS // 10**6} megapixels; scale it down.")


class AccessLog:
    """One line of JSON per request, appended to a file, or to standard error where the path is ``-``.

    It has no query, which may hold the token, and no header.

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
