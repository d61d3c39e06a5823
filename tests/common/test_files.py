"""Whole files or none: what was there stays until what is new is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dapl.common import files
from dapl.common.errors import WriteError
from dapl.common.files import (
    append_line,
    is_cache,
    mark_as_cache,
    replacing,
    replacing_folder,
    sweep,
    sweep_all,
    write_bytes,
    write_json,
    write_new,
    write_text,
)
from dapl.common.liveness import is_alive, this_process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_refused_file_of_a_new_folder_is_named_as_a_person_knows_it(tmp_path: Path) -> None:
    """Nobody knows the temporary folder that a report is written into before it takes its place."""
    with pytest.raises(WriteError) as refused, replacing_folder(tmp_path / "report") as new:
        write_text(new / "images" / ("x" * 300), "page")
    assert str(refused.value).startswith(f"{tmp_path}/report/images/xxx")
    assert ".tmp" not in str(refused.value)
    assert names(tmp_path) == []


def test_new_file_in_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "facts.json"
    write_json(path, {"größe": [1, 2.5, None]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"größe": [1, 2.5, None]}
    assert "größe" in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8").endswith("\n")
    assert names(path.parent) == ["facts.json"]


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with replacing(path) as temporary:
        assert temporary.parent == path.parent  # a rename within one file system is atomic
        temporary.write_text("half of the n")
        assert path.read_text() == "old"
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_leaves_the_old_file_and_nothing_else(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(error), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half of the n")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_failure_before_anything_was_written(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replacing(tmp_path / "file.txt"):
        raise RuntimeError
    assert names(tmp_path) == []


def test_what_json_cannot_hold_changes_nothing(tmp_path: Path) -> None:
    write_json(tmp_path / "facts.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "facts.json", {"path": object()})
    assert (tmp_path / "facts.json").read_text() == "1\n"
    assert names(tmp_path) == ["facts.json"]


def fill(folder: Path, text: str) -> None:
    (folder / "page.html").write_text(text)


def test_a_folder_appears_whole_and_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "report"
    for text in ("old", "new"):
        with replacing_folder(folder) as fresh:
            assert fresh.parent == folder.parent
            fill(fresh, "half")
            assert not folder.exists() or (folder / "page.html").read_text() == "old"
            fill(fresh, text)
        assert (folder / "page.html").read_text() == text
        assert names(folder.parent) == ["report"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_leaves_the_old_folder_and_nothing_else(error: type[BaseException], tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "report") as fresh:
        fill(fresh, "old")
    with pytest.raises(error), replacing_folder(tmp_path / "report") as fresh:  # noqa: PT012
        fill(fresh, "half")
        raise error
    assert (tmp_path / "report" / "page.html").read_text() == "old"
    assert names(tmp_path) == ["report"]


def test_a_folder_that_cannot_be_exchanged_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replacing_folder(tmp_path / "report") as fresh:
        fill(fresh, "old")
    really = os.replace

    def refuse(source: Path, target: Path) -> None:
        if ".new." in Path(source).name:
            raise PermissionError("no")
        really(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(WriteError, match="cannot be written"), replacing_folder(tmp_path / "report") as fresh:
        fill(fresh, "new")
    assert (tmp_path / "report" / "page.html").read_text() == "old"
    assert names(tmp_path) == ["report"]


def test_what_came_to_the_place_in_the_meantime_stays(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        if folder.exists():
            raise FileExistsError(folder)

    with pytest.raises(FileExistsError), replacing_folder(tmp_path / "report", check):  # noqa: PT012
        (tmp_path / "report").mkdir()
        fill(tmp_path / "report", "of another")
    assert (tmp_path / "report" / "page.html").read_text() == "of another"
    assert names(tmp_path) == ["report"]


# --- power ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed, in order."""
    found: list[str] = []
    replace = os.replace

    def synced(file: int) -> None:
        found.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")

    def renamed(source: Path, target: Path) -> None:
        found.append(f"{Path(source).name} becomes {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(files, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the names of open files are read in /proc")
def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_after_it(steps: list[str], tmp_path: Path) -> None:
    write_text(tmp_path / "facts.json", "whole")
    temporary = f".facts.json.{this_process()}.tmp"
    assert steps == [f"sync {temporary}", f"{temporary} becomes facts.json", f"sync {tmp_path.name}"]
    steps.clear()
    write_text(tmp_path / "facts.json", "made anew in a moment", synced=False)
    assert steps == [f"{temporary} becomes facts.json"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the names of open files are read in /proc")
def test_a_folder_is_synced_with_all_that_is_in_it_before_it_takes_its_place(steps: list[str], tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "report") as new:
        write_text(new / "index.html", "page")
        write_bytes(new / "images" / "1.png", b"image")
    exchange = steps.index(f"{new.name} becomes report")
    assert {"sync index.html", "sync 1.png", "sync images", f"sync {new.name}"} <= set(steps[:exchange])
    assert steps[exchange + 1 :] == [f"sync {tmp_path.name}"]


# --- what dead processes left ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dead() -> str:
    """The name of a process of this machine that has ended."""
    code = "from dapl.common.liveness import this_process; print(this_process())"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert is_alive(name) is False
    return name


def test_the_next_write_sweeps_what_dead_processes_left(dead: str, tmp_path: Path) -> None:
    (tmp_path / f".facts.json.{dead}.tmp").write_text("half")
    (tmp_path / ".facts.json.4711.tmp").write_text("half, by an older version")
    (tmp_path / f".report.{dead}.new.tmp" / "images").mkdir(parents=True)
    living = tmp_path / f".other.json.{this_process()}.tmp"
    living.write_text("about to be whole")
    elsewhere = tmp_path / ".other.json.00000000-1-1.tmp"
    elsewhere.write_text("of a process of another machine, which may live")
    write_text(tmp_path / "new.txt", "new")
    assert names(tmp_path) == sorted([living.name, elsewhere.name, "new.txt"])
    os.utime(elsewhere, (0, 0))
    sweep(tmp_path)
    assert not elsewhere.exists()


def test_a_folder_that_was_put_aside_when_its_process_died_comes_back(dead: str, tmp_path: Path) -> None:
    for which, text in (("old", "older report"), ("new", "newer report")):
        aside = tmp_path / "run" / f".report.{dead}.{which}.tmp"
        aside.mkdir(parents=True)
        fill(aside, text)
    sweep_all(tmp_path)
    assert names(tmp_path / "run") == ["report"]
    assert (tmp_path / "run" / "report" / "page.html").read_text() == "older report"


def test_what_is_no_leftover_stays(tmp_path: Path) -> None:
    for name in (".hidden.tmp", "notes.12.tmp", ".tmp", ".a.tmp"):
        (tmp_path / name).write_text("of the user")
    sweep(tmp_path)
    assert len(names(tmp_path)) == 4


# --- what the system refuses ----------------------------------------------------------------------------------------


WRITES: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_text(path, "new"),
    "new": lambda path: write_new(path, b"new"),
    "line": lambda path: append_line(path, "new"),
    "folder": lambda path: _one_folder(path),
}


def _one_folder(path: Path) -> None:
    with replacing_folder(path) as new:
        fill(new, "new")


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_path_that_cannot_be_is_one_sentence(write: Callable[[Path], object], tmp_path: Path) -> None:
    for path in (Path("/dev/null/x"), tmp_path / ("n" * 300), Path("/dev/null/x/y/z")):
        with pytest.raises(WriteError, match="cannot be written") as caught:
            write(path)
        assert str(caught.value).startswith(str(path.parents[0] if "z" in path.name else "/"))
        assert str(caught.value).count("\n") == 0
    assert names(tmp_path) == []


def test_a_full_disk_leaves_what_was_there(disk, tmp_path: Path) -> None:
    write_text(disk.folder / "facts.json", "old")
    append_line(disk.folder / "log.jsonl", "first")
    folder = disk.full()
    with pytest.raises(WriteError, match=r"facts\.json: cannot be written \(No space left on device\); free"):
        write_text(folder / "facts.json", "new" * 100_000)
    with pytest.raises(WriteError, match="No space left"):
        append_line(folder / "log.jsonl", "second" * 100_000)
    with pytest.raises(WriteError, match="No space left"), replacing_folder(folder / "report") as new:
        write_bytes(new / "image.png", bytes(100_000))
    assert (folder / "facts.json").read_text() == "old"
    assert (folder / "log.jsonl").read_text() == "first\n"
    assert names(folder) == ["facts.json", "filling", "log.jsonl"]


def test_a_line_is_never_glued_to_one_that_a_kill_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, "one")
    path.write_text(path.read_text() + "tw")
    append_line(path, "three")
    assert path.read_text().split("\n") == ["one", "tw", "three", ""]


@pytest.mark.parametrize("write", [write_text, write_json, append_line, lambda path, text: replaced(path, text)])
def test_what_is_no_text_is_one_sentence_and_changes_nothing(
    write: Callable[[Path, str], None], tmp_path: Path
) -> None:
    path = tmp_path / "facts.json"
    path.write_text("before")
    with pytest.raises(WriteError, match=r"facts\.json: cannot be written, .*k\\xf6 is not text in UTF-8; rename it"):
        write(path, os.fsdecode(b"near k\xf6ln"))
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["facts.json"]


def replaced(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def test_a_new_file_is_never_written_over_another(tmp_path: Path) -> None:
    assert write_new(tmp_path / "mask.png", b"mine")
    assert not write_new(tmp_path / "mask.png", b"yours")
    assert (tmp_path / "mask.png").read_bytes() == b"mine"
    assert names(tmp_path) == ["mask.png"]


def test_a_folder_of_caches_is_known_as_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of the user")
    assert not is_cache(tmp_path)
    (tmp_path / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of another program")
    assert not is_cache(tmp_path)
    mark_as_cache(tmp_path / "cache")
    assert is_cache(tmp_path / "cache")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / f"{'0a' * 12}-images.npy").write_text("as older versions left it")
    assert is_cache(tmp_path / "old")
