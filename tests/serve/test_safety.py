"""Nothing outside the run can be read, nobody else's page may write, and nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

from dapl.runs.loading import load_run
from dapl.serve.app import build_app

from .conftest import Server, encoded, image

SECRETS = ("config.yaml", "checkpoints/last.safetensors", "metrics.jsonl", "environment.json")
CLIMBS = (
    "/../{}",
    "/static/../{}",
    "/static/..%2f{}",
    "/static/%2e%2e/{}",
    "/static/%2e%2e%2f{}",
    "/static/..%5c{}",
    "/static/....//{}",
    "/static//{}",
    "/static/..%252f{}",
    "/static/%c0%ae%c0%ae/{}",
    "/api/images/../{}",
    "/api/images/example-0/..%2f..%2f{}",
    "/api/images/..%2f/{}",
    "/api/examples/..%2f{}/image.jpg",
    "/api/prototypes/..%2f{}/patch.jpg",
    "/report/../{}",
    "/report/images/..%2f..%2f{}",
    "/report/images/%2e%2e/{}",
    "/report/static/..%2f{}",
    "//{}",
    "/{}",
    "/%00{}",
    "/static/{}%00.css",
)


def raw(url: str, target: str, method: str = "GET", headers: str = "") -> tuple[int, bytes]:
    """Send the target as it is: clients would put the dots right before they send."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        host = "" if "Host:" in headers else f"Host: {parts.netloc}\r\n"
        connection.sendall(f"{method} {target} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n".encode("latin-1"))
        answer = b""
        while more := connection.recv(65536):
            answer += more
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("climb", CLIMBS)
def test_no_file_can_be_climbed_to(climb: str, server: Server) -> None:
    up = "../" * 12
    absolute = str(server.run / "config.yaml")
    for target in (
        *SECRETS,
        f"run/{SECRETS[0]}",
        "marks.json",
        up + absolute.lstrip("/"),
        "etc/passwd",
        absolute,
        up + "etc/passwd",
        "app.py",
        "templates/serve.html.j2",
    ):
        status, body = raw(server.url, climb.format(target.replace("../", "..%2f") if "%" in climb else target))
        assert status in (400, 404, 405, 422), (target, status)
        assert b"root:" not in body
        assert b"schedule" not in body
        assert str(server.run.parent).encode() not in body


def test_links_out_of_the_static_folder_do_not_exist(client: httpx.Client) -> None:
    assert client.get("/static/page.js").status_code == 200
    assert client.get("/static/").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b", "["])
def test_another_name_is_refused(host: str, server: Server) -> None:
    """Else a page of that name, pointed here by its DNS, could read everything."""
    status, body = raw(server.url, "/api/run", headers=f"Host: {host}\r\n")
    assert status in (400, 421)
    assert b"prototypes" not in body


def test_own_names_are_answered(server: Server) -> None:
    port = urlsplit(server.url).port
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost", "[::1]:1", socket.gethostname()):
        assert raw(server.url, "/api/run", headers=f"Host: {host}\r\n")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_only_the_own_page_may_write(headers: dict[str, str], client: httpx.Client, server: Server) -> None:
    for method, path in (("PUT", "/api/marks/0"), ("DELETE", "/api/marks/0"), ("POST", "/api/explain?example=0")):
        response = client.request(method, path, headers=headers, json={"note": "x"} if method == "PUT" else None)
        assert response.status_code == 403
    assert client.get("/api/marks").json() == {"marks": []}
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/explain?example=0", headers=own).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/run", "/static/page.js", "/nothing", "/openapi.json"])
def test_headers_of_every_answer(path: str, client: httpx.Client) -> None:
    response = client.get(path)
    headers = response.headers
    assert response.status_code == (404 if path == "/nothing" else 200)
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_two_hundred_at_once_lose_none(server: Server) -> None:
    """Each is answered: with its own result, or 503 and when to come back; whoever comes back gets there in the end."""
    files = [encoded(image(seed), "JPEG", quality=95) for seed in range(20)]
    alone = httpx.Client(base_url=server.url, timeout=60)
    expected = [alone.post("/api/explain", content=file).json()["classes"][0]["logit"] for file in files]

    async def send(client: httpx.AsyncClient, number: int) -> tuple[int, float]:
        waits = 0
        while True:
            response = await client.post("/api/explain", content=files[number % 20])
            if response.status_code == 200:
                return waits, response.json()["classes"][0]["logit"]
            assert response.status_code == 503, response.text
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["detail"].endswith(".")
            waits += 1
            await asyncio.sleep(0.3)

    async def all_at_once() -> list[tuple[int, float]]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=server.url, timeout=200, limits=limits) as client:
            return await asyncio.gather(*(send(client, number) for number in range(200)))

    found = asyncio.run(all_at_once())
    assert len(found) == 200
    for number, (_, logit) in enumerate(found):
        assert logit == pytest.approx(expected[number % 20], abs=1e-9)
    assert any(waits for waits, _ in found), "the queue had no end: 200 images were held at once"


def test_only_images_may_be_large(server: Server, client: httpx.Client) -> None:
    before = server.memory()
    for content in (b'{"note": "' + bytes(30 * 2**20), (bytes(2**20) for _ in range(30))):
        try:
            status = client.put("/api/marks/0", content=content).status_code
        except httpx.TransportError:  # the server hung up while it was still being sent
            continue
        assert status in (400, 413)
    assert server.memory() < before + 20
    assert client.get("/api/marks").json() == {"marks": []}


def test_marks_that_cannot_be_written_are_said(run: Path) -> None:
    with TestClient(build_app(load_run(run)), base_url="http://localhost") as client:
        shutil.rmtree(run)
        run.write_text("a file where the folder was")
        response = client.put("/api/marks/0", json={"note": ""})
        assert response.status_code in (403, 500)
        assert str(run) not in response.text
        assert response.json()["detail"].endswith(".")
