"""Whole files or none: what was there stays until what is new is complete."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dapl.common.files import replacing, replacing_folder, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    with pytest.raises(PermissionError), replacing_folder(tmp_path / "report") as fresh:
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
