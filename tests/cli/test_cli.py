"""The command line: each bad input of DESIGN section 6 gets its message and exit code 2, and leaves nothing behind."""

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
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from dapl.cli import _parser, main
from dapl.config import Config, Section, describe_fields, parse_config
from dapl.runs.run import Run
from dapl.training.trainer import train

from ..conftest import TINY

SMALL = TINY | {
    "data": TINY["data"] | {"classes": 2, "images_per_class": 4, "test_images_per_class": 1},
    "schedule": [{"stage": "warm_up", "epochs": 1}],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder: a run that nobody named would be made there, in the folder runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """``write(data={…})``: the tiny config with some sections replaced, as a file."""

    def written(**sections: Any) -> str:
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(SMALL | {"cache": {"folder": str(tmp_path / "cache")}} | sections))
        return str(path)

    return written


@pytest.fixture
def refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Runs a command that has to be refused: exit code 2, one message, nothing half-written. Returns the message."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        message = said.err[said.err.index("dapl: ") :]  # before it may stand what was going well
        left = [path for path in place.rglob("*") if path != place / "runs"]
        assert left == [], "something was left behind"
        assert not list(tmp_path.rglob("*.tmp"))
        return message

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    config = parse_config(SMALL | {"cache": {"folder": str(folder / "cache")}})
    return train(config, folder / "run", quiet=True).folder


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Run:
    """A run of one's own, which a test may break."""
    return Run(shutil.copytree(trained, tmp_path / "run"))


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


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cub(tiny_cub: Path, write: Callable) -> Callable[..., str]:
    """``cub(runtime={…})``: the config of a run on the tiny CUB, which a test breaks before."""

    def written(**sections: Any) -> str:
        return write(data={"name": "cub", "root": str(tiny_cub), "image_size": 64}, **sections)

    return written


def images(root: Path, folder: str = "images") -> list[Path]:
    return sorted(path for path in (root / folder).rglob("*") if path.is_file())


def refused_for(image: Path, message: str, cache: Path) -> None:
    assert message.startswith(f"dapl: {image}: ")
    assert "take it out of the data set" in message
    assert len(message.splitlines()) == 1
    assert not cache.exists() or [path.name for path in cache.iterdir()] in ([], ["CACHEDIR.TAG"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_a_truncated_image(
    cub: Callable, refused: Callable, tiny_cub: Path, tmp_path: Path, workers: int, cached: bool
) -> None:
    """Met while decoding: in this process or in a loading one, for the cache or for a batch."""
    image = images(tiny_cub)[2]
    image.write_bytes(image.read_bytes()[: image.stat().st_size // 2])
    cache = {"folder": str(tmp_path / "cache"), "pixels": cached, "features": cached}
    runtime = {"accelerator": "cpu", "workers": workers}
    refused_for(image, refused("train", cub(runtime=runtime, cache=cache)), tmp_path / "cache")


@pytest.mark.parametrize("content", [b"", b"GIF89a and no more", b"<html>404</html>"])
def test_a_corrupt_image(cub: Callable, refused: Callable, tiny_cub: Path, tmp_path: Path, content: bytes) -> None:
    image = images(tiny_cub)[2]
    image.write_bytes(content)
    refused_for(image, refused("train", cub()), tmp_path / "cache")


def test_the_same_folder_serves_once_the_image_is_mended(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    image = images(tiny_cub)[0]
    whole = image.read_bytes()
    image.write_bytes(whole[:300])
    path = cub()
    refused("train", path)
    image.write_bytes(whole)
    assert main(["train", path, "--out", str(tiny_cub / "run")]) == 0
    assert Run(tiny_cub / "run").last.exists()


def test_a_class_without_images(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    table = tiny_cub / "train_test_split.txt"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(f"{line.split()[0]} 0" if int(line.split()[0]) > 18 else line for line in lines) + "\n")
    message = refused("train", cub())
    assert message.startswith(f"dapl: {tiny_cub}: class 004.Grey_Owl has no train image")


def test_a_mask_of_another_size(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    mask = images(tiny_cub, "segmentations")[1]
    Image.new("L", (17, 13)).save(mask)
    message = refused("train", cub())
    assert message.startswith(f"dapl: {mask}: the mask is 17×13 pixels, but its image {images(tiny_cub)[1]} is ")


def test_a_keypoint_outside_the_image(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    table = tiny_cub / "parts" / "part_locs.txt"
    lines = table.read_text().splitlines()
    lines[1] = "1 2 900.0 20.0 1"
    table.write_text("\n".join(lines) + "\n")
    message = refused("train", cub())
    assert message.startswith(f"dapl: {table}, line 2: left eye is marked visible at (900, 20), outside ")


def test_data_that_is_not_there(write: Callable, refused: Callable, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("DAPL_CUB", raising=False)
    message = refused("train", write(data={"name": "cub"}))
    assert "data.root: the environment variable DAPL_CUB is not set" in message
    assert str(tmp_path / "nothing") in refused("train", write(data={"name": "cub", "root": str(tmp_path / "nothing")}))


def test_one_image_per_class_cannot_be_held_out(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    table = tiny_cub / "train_test_split.txt"
    rows = [line.split()[0] for line in table.read_text().splitlines()]
    table.write_text("".join(f"{row} {int(int(row) % 6 == 1)}\n" for row in rows))
    assert "no class has the two training images" in refused("train", cub())


def test_a_foreground_loss_without_masks(cub: Callable, refused: Callable, tiny_cub: Path) -> None:
    shutil.rmtree(tiny_cub / "segmentations")
    message = refused("train", cub(loss={"foreground": {"weight": 1.0}}))
    assert message.startswith("dapl: loss.foreground.weight: the data has no foreground masks")


# --- runs -----------------------------------------------------------------------------------------------------------


def test_what_is_not_a_run(refused: Callable, tmp_path: Path) -> None:
    for command in (["evaluate", str(tmp_path)], ["train", "--resume", str(tmp_path)]):
        assert f"{tmp_path}: not a run directory" in refused(*command)


def commands(run: Run) -> list[list[str]]:
    return [["evaluate", str(run.folder)], ["train", "--resume", str(run.folder)]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: os.truncate(path, path.stat().st_size // 2), "safetensors: not a whole checkpoint of dapl"),
        (lambda path: torch.save({"model": torch.zeros(2)}, path), "safetensors: not a whole checkpoint of dapl"),
        (lambda path: save_file(load_file(path), path), "of another program"),
    ],
    ids=["truncated", "a pickle", "without our header"],
)
def test_a_damaged_checkpoint(finished: Run, refused: Callable, damage: Callable, message: str) -> None:
    for path in (finished.last, finished.best):
        damage(path)
    before = {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()}
    for command in commands(finished):
        assert message in refused(*command)
    assert {path: path.read_bytes() for path in before} == before


def test_a_checkpoint_of_another_model(finished: Run, refused: Callable) -> None:
    config = yaml.safe_load(finished.config_file.read_text())
    config["model"]["heads"] = 3
    finished.config_file.write_text(yaml.safe_dump(config))
    for command in commands(finished):
        message = refused(*command)
        assert "safetensors: a checkpoint of another model: " in message
        assert "addon.0.weight has shape (8," in message


def test_a_run_without_a_checkpoint(finished: Run, refused: Callable) -> None:
    finished.best.unlink()
    assert f"{finished.best}: no such checkpoint" in refused("evaluate", str(finished.folder))


def test_a_run_whose_files_are_damaged(finished: Run, refused: Callable) -> None:
    finished.data_file.write_text("{")
    assert f"{finished.data_file}: not JSON" in refused("evaluate", str(finished.folder))
    finished.data_file.unlink()
    assert f"{finished.data_file}: no such file" in refused("evaluate", str(finished.folder))
    finished.config_file.write_text("data: [")
    for command in commands(finished):
        assert f"{finished.config_file}: line" in refused(*command)


def test_data_with_other_classes(finished: Run, refused: Callable) -> None:
    message = refused("evaluate", str(finished.folder), "--data.classes", "3")
    assert "the test split has 3 classes that are not the 2 of the run" in message


def test_only_some_fields_may_change_for_an_evaluation(finished: Run, refused: Callable) -> None:
    message = refused("evaluate", str(finished.folder), "--model.heads", "3")
    assert "--model.heads: dapl evaluate takes only fields of runtime, cache and data" in message
    assert "did you mean 'test'?" in refused("evaluate", str(finished.folder), "--split", "tset")
