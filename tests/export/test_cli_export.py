"""`dapl export`: what docs/export.md shows is run as it stands; what is wrong gets a sentence; uploads."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest

from dapl.cli import main
from dapl.common.errors import DaplError
from dapl.export.export import CHECKED
from dapl.export.folder import NAMES
from dapl.export.hub import push_folder
from dapl.runs.run import Run

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_code_on_the_page(
    evaluated: Callable[[str], Path],
    image: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(evaluated("dapl"), tmp_path / "runs" / "birds")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shown = []
    for language, text in BLOCKS:
        if language == "bash":
            assert text.startswith("dapl ")
            assert main(text.split()[1:]) == 0
        else:
            exec(text, {})
        shown.append(capsys.readouterr().out)
    assert [language for language, _ in BLOCKS] == ["bash", "python", "python", "python"]
    out = tmp_path / "runs" / "birds" / "export"
    assert sorted(path.name for path in out.iterdir()) == sorted(NAMES)
    assert all(name in shown[0] for name in NAMES)
    assert "ONNX Runtime against PyTorch, largest difference: logits" in shown[0]
    assert "exported to  runs/birds/export" in shown[0]
    assert "`model.onnx`" in (out / "README.md").read_text()
    assert shown[1].strip() in Run(evaluated("dapl")).class_names()
    assert (tmp_path / "why.html").stat().st_size > 5000
    assert 0 < float(shown[2]) <= 1
    assert (tmp_path / "copy-of-birds" / "model.safetensors").is_file()
    assert shown[3].startswith(shown[1].strip())  # ONNX Runtime says the same


def test_the_page_names_every_file() -> None:
    table = PAGE.split("## In Python")[0]
    assert [name for name in NAMES if f"`{name}" not in table] == []
    assert f"on {CHECKED} images" in PAGE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "onx"], "--format: 'onx' is not known; did you mean 'onnx'?"),
        (["--format", ","], "--format: nothing is named"),
        (["--model.heads", "3"], "dapl export takes only fields of runtime, cache and data"),
        (["--format", "onnx", "--push", "me/birds"], "--format onnx,hub"),
        (["--push", "not a name"], "not a name of the hub"),
        (["--push", "me/birds"], "nobody is logged in"),
    ],
)
def test_wrong_words(
    words: list[str], message: str, own_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert main(["export", str(own_run), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (own_run / "export").exists()
    assert main(["export", str(own_run.parent)]) == 2
    assert "not a run directory" in capsys.readouterr().err


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as an upload of small files talks to; remembers what it was sent."""

    said: list[tuple[str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.said.append((self.path, body))
        address = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            self.answer({"url": f"{address}/me/birds", "name": "me/birds"})
        elif self.path == "/api/models/me/birds/preupload/main":
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.answer({"files": modes})
        else:
            commit = {"commitUrl": f"{address}/me/birds/commit/abc", "commitOid": "abc", "success": True}
            self.answer(commit)

    def do_GET(self) -> None:
        self.answer({"sha": "abc", "id": "me/birds", "siblings": []})

    def answer(self, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """A server on this machine in the place of the hub, and a token that means nothing; yields what it is sent."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Hub.said = []
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.hf_api, "ENDPOINT", f"http://127.0.0.1:{server.server_port}", raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_nothing")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_nothing")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Hub.said
    server.shutdown()
    server.server_close()


def test_a_folder_is_uploaded_in_one_commit(own_export: Path, hub: list[tuple[str, bytes]]) -> None:
    assert push_folder(own_export, "me/birds").endswith("/me/birds")
    commits = [body for path, body in hub if "/commit/" in path]
    assert len(commits) == 1
    lines = [json.loads(line) for line in commits[0].splitlines()]
    sent = {line["value"]["path"] for line in lines if line["key"] == "file"}
    assert sent == {path.relative_to(own_export).as_posix() for path in own_export.rglob("*") if path.is_file()}


def test_a_hub_that_does_not_answer(own_export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_nothing")
    before = sorted(own_export.rglob("*"))
    with pytest.raises(DaplError, match=r"--push me/birds: the hub at http://127.0.0.1:9 did not take it"):
        push_folder(own_export, "me/birds")
    assert sorted(own_export.rglob("*")) == before
