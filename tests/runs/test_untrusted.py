"""A run or an export made by somebody else is read with nothing but its own files, and written to nowhere else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from dapl.cli import main
from dapl.common.errors import BrokenError
from dapl.common.files import is_cache
from dapl.config import CacheConfig, Config, load_config
from dapl.export.export import export_run
from dapl.export.hub import load_exported
from dapl.runs.run import Run, open_run


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """An image of the user, which is nobody else's business."""
    path = tmp_path / "private" / "secret.jpg"
    path.parent.mkdir()
    Image.new("RGB", (16, 16), (250, 0, 0)).save(path)
    return path


def test_a_linked_image_of_an_export_is_not_followed(
    dapl_run: Path, tmp_path: Path, secret: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = export_run(dapl_run, tmp_path / "export", ["hub"], quiet=True).folder
    assert len(load_exported(folder).images) == 9
    image = folder / "prototypes" / "00000.jpg"
    image.unlink()
    image.symlink_to(secret)
    with pytest.raises(BrokenError, match=r"prototypes/00000\.jpg: is a link that leads out of"):
        load_exported(folder)
    assert main(["explain", str(folder), str(secret), "--out", str(tmp_path / "why")]) == 2
    assert "is a link that leads out of" in capsys.readouterr().err
    shutil.rmtree(folder / "prototypes")
    (folder / "prototypes").symlink_to(secret.parent)
    with pytest.raises(BrokenError, match="prototypes: is a link that leads out of"):
        load_exported(folder)


def test_an_export_in_the_cache_of_the_hub_is_links_to_its_own_files(dapl_run: Path, tmp_path: Path) -> None:
    made = export_run(dapl_run, tmp_path / "export", ["hub"], quiet=True).folder
    blobs = tmp_path / "models--user--birds" / "blobs"
    snapshot = blobs.parent / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(made.rglob("*.*"))):
        path.rename(blobs / str(number))
        link = snapshot / path.relative_to(made)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(blobs / str(number))
    assert len(load_exported(snapshot).images) == 9


@pytest.mark.parametrize("name", ["metrics", "report", "prototypes.png", "data.json", "checkpoints/best.safetensors"])
def test_a_run_whose_files_lead_elsewhere_is_refused(run: Path, secret: Path, name: str) -> None:
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(secret.parent)
    with pytest.raises(BrokenError, match=rf"{name}: is a link that leads out of .*run"):
        Run.open(run)


def test_a_run_may_itself_be_reached_by_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    (run / "data").symlink_to(tmp_path)  # nothing of ours: the user may keep there what he likes
    assert Run.open(tmp_path / "link").class_names()


def test_the_config_of_a_run_stands_alone(run: Path, secret: Path) -> None:
    (run / "config.yaml").write_text(f"base: {secret}\n" + (run / "config.yaml").read_text())
    with pytest.raises(BrokenError, match=r"config\.yaml: base: the config of a run stands alone"):
        Run.open(run).config()


def caches_in(run: Path, folder: str) -> str:
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["cache"]["folder"] = folder
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    return Run.open(run).config().cache.folder


def test_the_cache_of_a_run_is_used_only_where_it_was_made_a_cache_here(
    run: Path, tmp_path: Path, secret: Path, configured: Callable[..., Config]
) -> None:
    own = Run.open(run).config().cache.folder
    assert is_cache(Path(own))  # training has made it
    default = CacheConfig().folder
    for other in (str(secret.parent), str(tmp_path / "new"), "/etc", "$NO_SUCH_VARIABLE/x", default):
        assert caches_in(run, other) == default
    _, config = open_run(run, {"cache.folder": str(tmp_path / "mine")})  # the user may name what he likes
    assert config.cache.folder == str(tmp_path / "mine")
    assert open_run(run, load_config(None, {"cache.folder": "x"}))[1].cache.folder == "x"


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_no_command_writes_into_a_folder_that_a_run_names(
    run: Path, tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, command: str, capfd
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    caches_in(run, str(secret.parent))
    assert main([command, str(run)]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "cache" in line]
    default = tmp_path / "home" / ".cache" / "dapl"
    assert said == [
        f"cache.folder: {secret.parent} holds no caches of this machine, so {default} is used; "
        "--cache.folder names another."
    ]
    assert [path.name for path in secret.parent.iterdir()] == ["secret.jpg"]
    assert is_cache(tmp_path / "home" / ".cache" / "dapl")
