"""`dapl serve` under attack: thousands of hostile requests while honest ones are counted. Loopback only."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

from faults.material import Material, encoded_images
from faults.mutate import broken_bytes
from faults.results import Tally
from faults.running import Case, Crew, Fault, Outcome, end, ended, start

_ATTACKERS = 4
_MEMORY_SHARE = 0.10
"""By which memory may have grown for good."""


def campaign(material: Material, crew: Crew, hostile: int, honest: int, seed: int, memory: bool = True) -> Tally:
    """Attackers and an honest client at once; then the server's memory is looked at, and it is told to stop."""
    tally = Tally("requests to the server")
    crew.root.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    log = crew.root / "server.said"
    pid = _serve(material, port, log)
    try:
        _until_it_answers(port, pid)
        warm = Case("warm-up", lambda folder: _honest(material, port, 60, seed), (0,), 300)
        tally.add(crew.one(warm, keep=False).faults, cases=0)
        time.sleep(1)
        before = _memory(pid)
        crowd = Crew(crew.root / "crowd", _ATTACKERS + 1, crew.patience)
        share = -(-hostile // _ATTACKERS)
        cases = [Case("honest client", lambda folder: _honest(material, port, honest, seed, folder), (0,), 1500)]
        cases += [
            Case(
                f"attacker {number}",
                lambda folder, number=number: _attack(material, port, share, seed + number),
                (0,),
                1500,
            )
            for number in range(_ATTACKERS)
        ]
        answered = 0
        for outcome in crowd.run(cases, keep=True):
            tally.add(outcome.faults, cases=0)
            if outcome.case.label == "honest client":
                answered = _count(outcome)
        tally.cases += share * _ATTACKERS + honest
        time.sleep(3)
        after = _memory(pid)
        tally.note = f"{answered:,} of {honest:,} honest requests answered; memory {before:.0f} → {after:.0f} MB"
        faults: list[Fault] = []
        if answered < honest:
            faults.append(("lost", f"{honest - answered} honest requests were not answered"))
        if memory and after > before * (1 + _MEMORY_SHARE):
            faults.append(("memory", f"{before:.0f} → {after:.0f} MB"))
        os.kill(pid, signal.SIGTERM)
        faults += _stopped(pid)
        text = log.read_text(errors="replace")
        faults += [("traceback", text[-400:])] if "Traceback (most recent call last)" in text else []
        tally.add(faults, cases=0)
    finally:
        end(pid)
    return tally


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def _serve(material: Material, port: int, log: Path) -> int:
    from dapl.cli import main

    return start(log, lambda: main(["serve", str(material.run), "--port", str(port)]))


def _until_it_answers(port: int, pid: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if ended(pid) is not None:
            raise SystemExit("faults: the server did not start")
        try:
            if _request(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("faults: the server does not answer")


def _stopped(pid: int) -> list[Fault]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        code = ended(pid)
        if code is not None:
            return [] if code == 0 else [("exit code", f"the server ended with {code}")]
        time.sleep(0.05)
    return [("hang", "the server did not stop")]


def _memory(pid: int) -> float:
    """MB in use."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def _request(
    port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _honest(material: Material, port: int, count: int, seed: int, folder: Path | None = None) -> int:
    """What the page does: facts, examples, uploads; 503 and a lost connection are tried again, as it does."""
    rng, answered, image = random.Random(f"{seed}/honest"), 0, material.image.read_bytes()
    for _ in range(count):
        kind = rng.randrange(4)
        for _ in range(40):
            try:
                if kind == 0:
                    status, body = _request(port, "POST", "/api/explain", image)
                elif kind == 1:
                    status, body = _request(port, "POST", "/api/explain?example=0")
                else:
                    status, body = _request(
                        port, "GET", rng.choice(["/", "/api/run", "/api/classes", "/static/page.js"])
                    )
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)
                continue
            if status == 503:
                time.sleep(0.3)
                continue
            answered += status == 200 and len(body) > 0
            break
    if folder is not None:
        (folder / "answered").write_text(str(answered))
    return 0


def _count(outcome: Outcome) -> int:
    path = outcome.folder / "answered"
    return int(path.read_text()) if path.exists() else 0


def _attack(material: Material, port: int, count: int, seed: int) -> int:
    rng, good = random.Random(f"{seed}/attack"), encoded_images()
    open_ones: list[socket.socket] = []
    for _ in range(count):
        try:
            _hostile(port, rng, good, open_ones)
        except (OSError, http.client.HTTPException, UnicodeError, ValueError):
            continue
        while len(open_ones) > 40:
            open_ones.pop(0).close()
    return 0


_PATHS = (
    *("/../../etc/passwd", "/static/..%2f..%2fetc/passwd", "/%00", "/api/images/" + "x" * 3000, "/api/prototypes/-1"),
    *("/api/prototypes/99999999999999999999", "/api/examples?count=1000000000", "/api/examples/²/image.jpg", "//evil/"),
    *("/report/images/..%2f..%2fconfig.yaml", "/?" + "a=b&" * 2000, "/api/marks/1e9", "/nothing", "/api/explain"),
)
_HEADERS = (
    *({"Host": "evil.example"}, {"Origin": "http://["}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}),
    *({"Content-Length": "-1"}, {"Transfer-Encoding": "chunked, chunked"}, {"Cookie": "a=" * 3000}, {"X": "y" * 60000}),
)


def _hostile(port: int, rng: random.Random, good: dict[str, bytes], open_ones: list[socket.socket]) -> None:
    kind = rng.randrange(8)
    if kind == 0:  # not HTTP
        _raw(port, rng.randbytes(rng.randrange(1, 3000)))
    elif kind == 1:  # a header that never ends
        open_ones.append(_raw(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", keep=True))
    elif kind == 2:  # a body that never comes
        head = f"POST /api/explain HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9999999\r\n\r\nx"
        open_ones.append(_raw(port, head.encode(), keep=True))
    elif kind == 3:
        _request(port, rng.choice(["GET", "PUT", "DELETE", "BREW", "OPTIONS"]), rng.choice(_PATHS))
    elif kind == 4:
        _request(port, rng.choice(["GET", "POST"]), "/api/run", None, dict(rng.choice(_HEADERS)))
    elif kind == 5:
        body: Any = rng.choice([b"{", b"[]", json.dumps({"note": "x" * 70000}).encode(), b"\xff" * 500])
        _request(port, "PUT", "/api/marks/0", body, {"Content-Type": "application/json"})
    elif kind == 6:
        _request(port, "POST", "/api/explain", broken_bytes(good[rng.choice(sorted(good))], rng))
    else:
        query = rng.choice(
            ["example=-1", "example=99999999999", "image=x", "top=1000000000", "class=-5", "switched_off=9" * 50]
        )
        _request(port, "POST", f"/api/explain?{query}")


def _raw(port: int, content: bytes, keep: bool = False) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(content)
    if not keep:
        connection.shutdown(socket.SHUT_WR)
        connection.close()
    return connection
