"""Marks of bad prototypes: the file, and what may be dropped."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dapl.common.errors import DaplError
from dapl.runs.marks import Mark, Marks, mark_now, to_drop


def record(index: int, name: str, **fields: Any) -> dict[str, Any]:
    image = f"{name}/{index}.jpg"
    return {"index": index, "classes": [name], "kept": True, "image": image, "location": [1, 2]} | fields


RECORDS = [record(0, "finch"), record(1, "finch"), record(2, "owl"), record(3, "owl", kept=False)]


def marked(folder: Path, *prototypes: int, note: str = "why") -> Marks:
    marks = Marks.of_run(folder)
    for index in prototypes:
        marks.put(mark_now(index, note, RECORDS[index]["image"], RECORDS[index]["location"]))
    return marks


def test_put_change_and_remove(tmp_path: Path) -> None:
    marks = marked(tmp_path, 2, 0)
    assert list(marks.read()) == [0, 2]
    marks.put(Mark(2, "other", "2026-01-01T00:00:00+00:00"))
    assert Marks(tmp_path / "marks.json").read()[2].note == "other"
    assert marks.remove(0)
    assert not marks.remove(0)
    assert list(marks.read()) == [2]
    assert not list(tmp_path.glob(".*"))


def test_many_at_once_lose_none(tmp_path: Path) -> None:
    marks = Marks.of_run(tmp_path)
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda n: marks.put(Mark(n, "", "")), range(40)))
    assert list(marks.read()) == list(range(40))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": "x", "version": 1, "marks": []}',
        '{"format": "dapl-marks", "version": 2, "marks": []}',
        '{"format": "dapl-marks", "version": 1, "marks": [1]}',
        '{"format": "dapl-marks", "version": 1, "marks": [{"prototype": -1, "note": "", "at": ""}]}',
        '{"format": "dapl-marks", "version": 1, "marks": [{"prototype": 1, "note": 5, "at": ""}]}',
    ],
)
def test_a_broken_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "marks.json").write_text(content)
    with pytest.raises(DaplError, match=r"marks\.json: .*put it right or delete it"):
        Marks.of_run(tmp_path).read()


def test_what_is_dropped(tmp_path: Path) -> None:
    marked(tmp_path, 1, 3)
    assert to_drop(tmp_path, RECORDS) == {1: "why"}  # 3 was removed before


def test_nothing_to_drop(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match="no prototype is marked as bad; `dapl serve"):
        to_drop(tmp_path, RECORDS)
    marked(tmp_path, 3)
    with pytest.raises(DaplError, match="no prototype is marked"):
        to_drop(tmp_path, RECORDS)


def test_a_class_keeps_its_last_prototype(tmp_path: Path) -> None:
    marked(tmp_path, 2)
    with pytest.raises(DaplError, match="every prototype of the class 'owl' is marked as bad"):
        to_drop(tmp_path, RECORDS)


def test_marks_of_another_model_are_refused(tmp_path: Path) -> None:
    marked(tmp_path, 1)
    changed = [*RECORDS[:1], RECORDS[1] | {"image": "finch/9.jpg"}, *RECORDS[2:]]
    with pytest.raises(DaplError, match=r"was marked when it was a patch of finch/1\.jpg"):
        to_drop(tmp_path, changed)
    content = json.loads((tmp_path / "marks.json").read_text())
    content["marks"][0]["prototype"] = 7
    (tmp_path / "marks.json").write_text(json.dumps(content))
    with pytest.raises(DaplError, match="prototype 7 is marked, but the run has 4"):
        to_drop(tmp_path, RECORDS)
