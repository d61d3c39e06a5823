"""The annotation files: read in any order, and every broken line named with its file and number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dapl.common.errors import DaplError
from dapl.data.cub import Cub200


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


def set_line(number: int, text: str) -> Callable[[list[str]], object]:
    return lambda lines: lines.__setitem__(number - 1, text)


def test_lines_in_any_order_and_ids_with_gaps(tiny_cub: Path) -> None:
    before = Cub200(tiny_cub)
    for file in ("image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt", "parts/part_locs.txt"):
        edit(tiny_cub / file, lambda lines: lines.reverse())
    for file in (
        "images.txt",
        "image_class_labels.txt",
        "train_test_split.txt",
        "bounding_boxes.txt",
        "parts/part_locs.txt",
    ):
        edit(tiny_cub / file, lambda lines: lines.__setitem__(slice(None), [f"1{line}" for line in lines]))
    after = Cub200(tiny_cub)
    assert (after.names, after.labels) == (before.names, before.labels)
    for index in (0, 7, 15):
        assert torch.equal(after[index].keypoints, before[index].keypoints)  # type: ignore[arg-type]
        assert torch.equal(after[index].box, before[index].box)  # type: ignore[arg-type]


def test_windows_line_ends(tiny_cub: Path) -> None:
    before = Cub200(tiny_cub)
    for path in [*tiny_cub.glob("*.txt"), *tiny_cub.glob("parts/*.txt")]:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    after = Cub200(tiny_cub)
    assert (after.names, after.classes, after.parts) == (before.names, before.classes, before.parts)


def test_missing_root_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DaplError, match=r"nowhere: no such folder.*published layout.*Caltech-UCSD Birds"):
        Cub200(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "file",
    [
        "images.txt",
        "image_class_labels.txt",
        "train_test_split.txt",
        "classes.txt",
        "bounding_boxes.txt",
        "parts/parts.txt",
        "parts/part_locs.txt",
    ],
)
def test_missing_empty_and_binary_files(tiny_cub: Path, file: str) -> None:
    path = tiny_cub / file
    content = path.read_bytes()
    path.write_bytes(b"\n")
    with pytest.raises(DaplError, match=re.escape(f"{path}: is empty")):
        Cub200(tiny_cub)
    path.write_bytes(content.replace(b"\n2 ", b"\n2 \xff\xfe", 1))
    with pytest.raises(DaplError, match=re.escape(f"{path}, line ")):
        Cub200(tiny_cub)
    path.unlink()
    with pytest.raises(DaplError, match=re.escape(f"{path}: cannot be read")):
        Cub200(tiny_cub)


@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        ("images.txt", 3, "3", "expected a number and a name"),
        ("images.txt", 3, "three a.jpg", "expected a number and a name"),
        ("images.txt", 3, "2 a.jpg", "the number 2 was used before"),
        ("classes.txt", 2, "", "expected a number and a name"),
        ("image_class_labels.txt", 4, "4 9", "there is no class 9"),
        ("image_class_labels.txt", 4, "99 1", "there is no image 99"),
        ("image_class_labels.txt", 4, "4 1 1", "expected 2 numbers, found '4 1 1'"),
        ("image_class_labels.txt", 4, "", "expected 2 numbers"),
        ("image_class_labels.txt", 4, "3 1", "says again what line 3 says"),
        ("train_test_split.txt", 5, "5 2", "there is no split flag 2"),
        ("bounding_boxes.txt", 6, "6 1 1 10", "expected 5 numbers"),
        ("bounding_boxes.txt", 6, "6 1 1 10 nan", "expected 5 numbers"),
        ("bounding_boxes.txt", 6, "6 1 1 10 0", "the box has no width or no height"),
        ("parts/part_locs.txt", 7, "2 3 x 1 1", "expected 5 numbers"),
        ("parts/part_locs.txt", 7, "2 9 1 1 1", "there is no part 9"),
        ("parts/part_locs.txt", 7, "2 3 1 1 2", "visible must be 0 or 1"),
        ("parts/part_locs.txt", 7, "2 2 1 1 1", "says again what line 6 says"),
    ],
)
def test_malformed_lines(tiny_cub: Path, file: str, line: int, text: str, message: str) -> None:
    edit(tiny_cub / file, set_line(line, text))
    with pytest.raises(DaplError, match=re.escape(f"{tiny_cub / file}, line {line}: {message}")):
        Cub200(tiny_cub)


def test_truncated_tables(tiny_cub: Path) -> None:
    edit(tiny_cub / "parts/part_locs.txt", lambda lines: lines.pop(9))
    with pytest.raises(DaplError, match=r"part_locs\.txt: has no line for image 3;"):
        Cub200(tiny_cub)


def test_name_twice(tiny_cub: Path) -> None:
    edit(tiny_cub / "images.txt", lambda lines: lines.__setitem__(1, "2 " + lines[0].split()[1]))
    with pytest.raises(DaplError, match=r"images\.txt: the name .*jpg' stands there 2 times"):
        Cub200(tiny_cub)
