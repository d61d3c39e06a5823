"""The command line: help, flags and fields; what is wrong with them gets one sentence and exit code 2."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dapl.cli import _parser, main
from dapl.config import Config, Section, describe_fields

# --- help -----------------------------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_no_torch() -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dapl", "--help"], capture_output=True, text=True, check=True
    )
    print(f"dapl --help: {time.monotonic() - started:.2f} s")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    assert "dapl.cli" in imported
    heavy = {"torch", "torchvision", "timm", "lightning_fabric", "numpy", "matplotlib"}
    assert not imported & heavy
    for command in ("demo", "train", "evaluate"):
        assert f"\n    {command} " in done.stdout


def fields_of(section: type[Section]) -> Iterator[str]:
    """Names of all fields, walked without the code that the help text is made with."""
    schema = section.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        yield from part.get("properties", {})


def test_help_of_train_is_one_screen(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("--help", "-h"):
        with pytest.raises(SystemExit) as caught:
            main(["train", flag])
        assert caught.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        assert any("--resume RUN" in line for line in lines)
        assert "dapl fields" in " ".join(lines)
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 80


def test_fields_lists_every_field(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["fields"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    said = " ".join(" ".join(lines).split())
    for name, _, text in describe_fields():
        assert name in said
        assert " ".join(text.split()) in said
        assert text, f"{name} is not described"
    for name in set(fields_of(Config)):
        assert any(name in line.partition(" (")[0] for line in lines), name


def test_fields_of_a_section(capsys: pytest.CaptureFixture, refused: Callable) -> None:
    shown = {}
    for section in ("loss", "model.backbone", "parts", "locate"):
        assert main(["fields", section]) == 0
        shown[section] = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")]
    assert all(line.startswith("loss.") for line in shown["loss"])
    assert all(line.startswith("model.backbone.") for line in shown["model.backbone"])
    assert shown["parts"][0].startswith("model (parts):")
    assert "model.crop_size (96)" in shown["parts"]
    assert not any("head_dim (16)" in line for line in shown["parts"])  # DAPL's
    assert "schedule.<n>.epochs (12)" in shown["locate"]
    assert refused("fields", "modle") == "dapl: dapl fields: there is no section 'modle'; did you mean 'model'?\n"


def test_no_command_or_an_unknown_one(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    capsys.readouterr()
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "dapl: there is no command 'trian'; did you mean 'train'?\n"


def test_version(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"dapl {importlib.metadata.version('dapl')}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    pytest.importorskip("shtab", reason="pip install 'dapl[completion]'")
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert all(word in script.read_text() for word in ("evaluate", "rembg-model", "faceforensics"))
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", script], check=False).returncode == 0
    if shell == "bash":  # a shell that has read it completes a command
        ask = f"source {script}; COMP_WORDS=(dapl eva); COMP_CWORD=1; _shtab_dapl; echo ${{COMPREPLY[@]}}"
        assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout == "evaluate\n"


def test_a_field_without_its_section(write: Callable, refused: Callable) -> None:
    for words in ((write(), "--epochs", "3"), ("--epochs", "3", write())):
        said = refused("train", *words)
        assert said.startswith("dapl: --epochs: say which; fields of that name are --schedule.<n>.epochs")
        assert said.endswith("e.g. --schedule.0.epochs 3.\n")
    assert "--head_dim: say which; fields of that name are --model.head_dim, e.g. --model.head_dim 8." in refused(
        "train", write(), "--head_dim=8"
    )
    assert "--headdim: is no field of a config; did you mean --model.head_dim?" in refused(
        "train", write(), "--headdim=8"
    )


def test_the_exit_code_of_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dapl", "train", str(tmp_path / "nowhere.yaml")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"dapl: {tmp_path / 'nowhere.yaml'}: no such file")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_is_no_traceback() -> None:
    """``dapl fields | head -1``: the pipe's other end is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dapl", "fields"], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_another_pipe_that_breaks_is_an_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    """As when a process that loads images dies: not to be taken for a reader that has seen enough."""

    def broken(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("dapl.config.load_config", broken)
    with capfd.disabled():
        assert main(["train", "config.yaml"]) == 2


# --- configs and flags ----------------------------------------------------------------------------------------------


def test_an_unknown_field_gets_the_nearest_known_one(write: Callable, refused: Callable) -> None:
    path = write(model={"head_dims": 8})
    assert refused("train", path) == f"dapl: {path}: unknown field 'model.head_dims'; did you mean 'head_dim'?\n"
    path = write(schedule=[{"stage": "warm_up", "epoch": 3}])
    assert "unknown field 'schedule.0.epoch'; did you mean 'epochs'?" in refused("train", path)
    path = write()
    assert "did you mean 'loss'?" in refused("train", path, "--los.cluster", "1")
    assert "did you mean --seed?" in refused("train", path, "--sead", "1")
    assert "did you mean 'devices'?" in refused("train", path, "--runtime.device", "2")


def test_an_unknown_kind_gets_the_nearest_known_one(write: Callable, refused: Callable) -> None:
    assert "did you mean 'warm_up'?" in refused("train", write(schedule=[{"stage": "warmup"}]))
    assert "did you mean 'toybirds'?" in refused("train", write(data={"name": "toybird"}))


def test_a_value_of_the_wrong_kind(write: Callable, refused: Callable) -> None:
    assert "field 'model.head_dim'" in refused("train", write(), "--model.head_dim", "wide")
    assert "field 'seed'" in refused("train", write(), "--seed", "-1")
    assert "field 'data.validation_share'" in refused("train", write(), "--data.validation_share=1.5")
    assert "prototypes of more than 1×1 patches are not built" in refused("train", write(), "--model.patch", "2")


def test_files_that_are_no_configs(refused: Callable, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    assert f"{path}: no such file" in refused("train", str(path))
    path.write_text("data:\n  name: toybirds\n bad: [1,\n")
    assert refused("train", str(path)).startswith(f"dapl: {path}: line 3 is not YAML")
    path.write_text("- a\n- b\n")
    assert "a config is a mapping of fields, this file holds a list" in refused("train", str(path))
    path.write_bytes(b"\xff\xfe\x00data")
    assert f"{path}: not text in UTF-8" in refused("train", str(path))
    path.unlink()
    assert "has no training image" in refused("train", str(tmp_path))  # a folder is data
    path.write_text("x: !!python/object/apply:os.mkdir [evidence]\n")
    assert "is not YAML" in refused("train", str(path))


def test_flags_that_lack_something(write: Callable, refused: Callable) -> None:
    assert "needs data or a config" in refused("train")
    path = write()
    assert "--seed needs a value" in refused("train", path, "--seed")
    assert "--model.heads needs a value" in refused("train", path, "--model.heads", "--seed", "1")
    assert "--quiet: is no field of a config" in refused("train", path, "--quiet"), "no value would help"
    assert "dapl demo takes no --quiet" in refused("demo", "--quiet")
    assert "--model.heads: '[1,' is not a YAML value" in refused("train", path, "--model.heads", "[1,")
    assert "unexpected argument 'again'" in refused("train", path, "again")
    assert "is no item of the list; it has 1" in refused("train", path, "--schedule.4.epochs", "2")
    assert "dapl demo takes no --seed" in refused("demo", "--seed", "1")


def test_flags_may_stand_anywhere(write: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("dapl.cli.train._run", lambda *arguments: calls.append(arguments) or 0)
    path, out = write(), tmp_path / "out"
    for line in (
        [path, "--out", str(out), "--model.heads", "5", "--seed=7"],
        ["--model.heads", "5", path, "--seed", "7", "--out", str(out)],
        ["--seed", "7", "--out", str(out), "--model.heads=5", path],
    ):
        assert main(["train", *line]) == 0
        config, folder, resume = calls.pop()
        assert (config.model.heads, config.seed, folder, resume) == (5, 7, out, False)


@pytest.mark.parametrize(
    ("command", "old", "name"), [("report", "pictures", "images"), ("compare", "picture", "image")]
)
def test_flags_of_former_versions_still_work(command: str, old: str, name: str, capsys: pytest.CaptureFixture) -> None:
    given = [_parser().parse_args([command, "run", *flags]) for flags in ([], [f"--{name}", "5"], [f"--{old}", "6"])]
    assert [getattr(arguments, name) for arguments in given] == [{"images": 3, "image": 0}[name], 5, 6]
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert f"--{name} N" in said
    assert f"--{old}" not in said


def test_devices_that_do_not_exist(write: Callable, refused: Callable) -> None:
    if not torch.cuda.is_available():
        assert refused("train", write(), "--accelerator", "cuda").startswith("dapl: runtime: ")
    assert refused("train", write(), "--accelerator", "abacus").startswith("dapl: runtime: ")
    assert refused("train", write(), "--precision", "7-mixed").startswith("dapl: runtime: ")


def test_backbones_that_do_not_exist(write: Callable, refused: Callable, tmp_path: Path) -> None:
    assert "model.backbone.name: timm has no model 'test_efficientnot'; did you mean test_efficientnet" in refused(
        "train", write(), "--model.backbone.name", "test_efficientnot"
    )
    assert "does not name different stages of test_efficientnet" in refused(
        "train", write(), "--model.backbone.stages", "[7]"
    )
    missing = tmp_path / "weights.pth"
    assert f"{missing}: no such weight file" in refused("train", write(), "--model.backbone.weights", str(missing))
