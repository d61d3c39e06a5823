"""`dapl serve` before the first request."""

from __future__ import annotations

import builtins
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dapl.cli import main

from .conftest import serving_process


def said(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def test_what_cannot_be_served(
    trained: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(trained("blackbox"))]) == 2
    assert "the model has no prototypes" in said(capsys)
    assert main(["serve", str(tmp_path)]) == 2
    assert "not a run directory" in said(capsys)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(trained("dapl")), "--port", str(port)]) == 2
    assert "--port names another one" in said(capsys)
    assert main(["serve", str(trained("dapl")), "--port", "99999"]) == 2
    assert "cannot listen" in said(capsys)


def test_broken_marks_are_said_at_the_start(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "marks.json").write_text('{"format": "dapl-marks", "version": 1, "marks": [{"prototype": "x"}]}')
    assert main(["serve", str(run), "--port", "0"]) == 2
    assert "marks.json: marks.0.prototype: input should be a valid integer" in said(capsys)


def test_without_the_extra_it_says_what_to_install(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest, **more):
        if name == "uvicorn":
            raise ImportError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["serve", str(run)]) == 2
    assert "(No module named 'uvicorn'); pip install 'dapl[serve]'" in said(capsys)


def test_it_listens_to_this_machine_only_and_ends_with_ctrl_c(run: Path) -> None:
    with serving_process(run) as server:
        assert server.process is not None
        assert server.url.startswith("http://127.0.0.1:")
        port = int(server.url.rsplit(":", 1)[1])
        table = Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
        listening = {line.split()[1] for line in table if line.split()[3] == "0A"}
        assert f"0100007F:{port:04X}" in listening
        assert f"00000000:{port:04X}" not in listening
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=30) == 0
        server.process.poll = lambda: None  # type: ignore[method-assign]  # it was meant to end
