"""Clients that are slow, many, or want to come in without a token: the others are answered all the same."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

from dapl.cli import main
from dapl.runs.loading import load_run
from dapl.serve import connections
from dapl.serve import requests as serve_requests
from dapl.serve.app import build_app
from dapl.serve.connections import Connection
from dapl.serve.requests import AccessLog

from .conftest import Server, encoded, image, serving, serving_process

TOKEN = "a-token-of-sixteen-or-more"


def connect(server: Server, text: str = "") -> socket.socket:
    parts = urlsplit(server.url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    connection.sendall(text.replace("\n", "\r\n").encode())
    return connection


def slow_body(server: Server) -> socket.socket:
    """An image that never arrives."""
    return connect(
        server, f"POST /api/explain HTTP/1.1\nHost: {urlsplit(server.url).netloc}\nContent-Length: 99999\n\nx"
    )


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    answer = b""
    try:
        while more := connection.recv(65536):
            answer += more
    except ConnectionResetError:
        pass
    return answer


def test_bodies_that_do_not_arrive_block_nobody(server: Server, client: httpx.Client) -> None:
    with ExitStack() as stack:
        for _ in range(2 * serve_requests.PLACES):
            stack.enter_context(slow_body(server))
        assert client.post("/api/explain", content=encoded(image())).status_code == 200


@pytest.fixture
def small(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Room for four connections, and little patience."""
    monkeypatch.setattr(Connection, "most", 4)
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    monkeypatch.setattr(serve_requests, "_SECONDS", 1.0)
    with serving(run) as running:
        yield running


def test_a_newcomer_takes_the_place_of_whoever_waits_longest(small: Server) -> None:
    with ExitStack() as stack:
        first, *others = [stack.enter_context(connect(small, "GET / HT")) for _ in range(4)]
        assert httpx.get(f"{small.url}/api/run").status_code == 200
        assert received(first) == b"", "it was hung up on"
        for other in others:
            other.close()
        bodies = [stack.enter_context(slow_body(small)) for _ in range(4)]
        time.sleep(0.4)
        assert httpx.get(f"{small.url}/api/run").status_code == 200
        assert received(bodies[0]) == b""


def test_who_is_slow_is_told_and_hung_up_on(small: Server) -> None:
    with connect(small, "GET / HTTP/1.1\nHost: loc") as half, slow_body(small) as body:
        assert received(half) == b""
        head = received(body)
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within" in head
    host = urlsplit(small.url).netloc
    with connect(small, f"PUT /api/marks/0 HTTP/1.1\nHost: {host}\nContent-Length: 9\n\n" + "{") as mark:
        assert received(mark).split(b" ")[1] in (b"400", b"408")


def test_many_bytes_that_arrive_at_once_are_bounded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = serve_requests.ArrivingBodies(most=10)
    assert bodies.held == 0
    with TestClient(build_app(load_run(run)), base_url="http://localhost") as client:
        client.app.app.state.dapl.worker.arriving = bodies  # type: ignore[attr-defined]
        answer = client.post("/api/explain", content=encoded(image()))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert bodies.held == 0


@pytest.mark.parametrize(
    "text", ["\x00\x01\n\n", "GET / HTTX/1.1\n\n", "GET /\n\n", "A" * 70000, "GET / HTTP/1.1\n: x\n\n"]
)
def test_what_is_not_http_gets_one_sentence_and_the_headers(text: str, server: Server) -> None:
    with connect(server, text) as connection:
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"X-Frame-Options: DENY" in head
    assert json.loads(body)["detail"].endswith(".")


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://a b", "//", "http://\xff"])
def test_an_origin_that_is_none_is_refused_with_the_headers(origin: str, client: httpx.Client) -> None:
    answer = client.put("/api/marks/0", json={"note": ""}, headers={"Origin": origin.encode("latin-1")})  # type: ignore[dict-item]
    assert answer.status_code == 403
    assert answer.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_with_a_token_only_who_has_it_comes_in(run: Path) -> None:
    with TestClient(build_app(load_run(run), token=TOKEN), base_url="http://localhost") as client:
        assert client.get("/health").json() == {"status": "ok"}
        for path in ("/", "/api/run", "/static/page.js", "/openapi.json", "/?token=wrong", "/nothing"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "token" in answer.json()["detail"]
        assert client.put("/api/marks/0", json={"note": ""}).status_code == 401
        assert client.get("/api/run", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
        assert client.get("/api/run", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401
        assert client.get("/api/run", headers={"Cookie": f"dapl-80={TOKEN}x"}).status_code == 401
        entered = client.get(f"/?token={TOKEN}", follow_redirects=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert client.get("/api/run").status_code == 200, "the browser has the cookie now"
        client.cookies.clear()
        away = client.get(f"http://localhost//evil.example/?token={TOKEN}", follow_redirects=False)
        assert away.headers["location"] == "/evil.example/"


def test_a_token_that_could_be_guessed_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for token in ("", "short", "sixteen characters with spaces", "äöüäöüäöüäöüäöüäöü"):
        assert main(["serve", str(run), "--token", token]) == 2
        assert "--token: give 16 characters or more" in capsys.readouterr().err
    assert main(["serve", str(run), "--access-log", "/dev/null/x"]) == 2
    assert "/dev/null/x: cannot be written" in capsys.readouterr().err


def test_open_to_the_network_it_has_a_token_and_stops_gracefully(run: Path, tmp_path: Path) -> None:
    """0.0.0.0 is warned of; what is being answered when it is told to stop is still answered."""
    with serving_process(run, "--host", "0.0.0.0", "--access-log", str(tmp_path / "log")) as server:
        assert server.process is not None
        assert server.token is not None
        url = f"http://127.0.0.1:{urlsplit(server.url).port}"
        assert httpx.get(f"{url}/api/run").status_code == 401
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {server.token}"}, timeout=60) as client:
            assert client.post("/api/explain", content=encoded(image())).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        server.process.poll = lambda: None  # type: ignore[method-assign]  # it was meant to end
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["path"], line["status"]) for line in lines] == [("/api/run", 401), ("/api/explain", 200)]
    assert all(line["bytes"] > 0 and line["client"] == "127.0.0.1" for line in lines)


def test_an_access_log_on_a_full_disk_stops_no_request(run: Path, tmp_path: Path) -> None:
    log = AccessLog(Path("/dev/full"))
    with TestClient(build_app(load_run(run), access_log=log), base_url="http://localhost") as client:
        assert client.get("/api/run").status_code == 200
        assert client.get("/api/run").status_code == 200
