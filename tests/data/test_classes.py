"""A class by what a person types."""

from __future__ import annotations

import pytest

from dapl.common.errors import DaplError
from dapl.data.sample import class_index

BIRDS = ["001.Black_footed_Albatross", "002.Finch", "003.Red_Finch", "10"]


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ("001.Black_footed_Albatross", 0),
        ("black_footed_albatross", 0),
        ("Albatross", 0),
        ("finch", 1),  # a whole name goes before a part of another one
        ("red", 2),
        ("2", 2),
        (2, 2),
        ("10", 3),  # a name goes before an index
    ],
)
def test_by_name_number_or_part_of_the_name(asked: str | int, index: int) -> None:
    assert class_index(BIRDS, asked) == index


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("Fin", "is in the names of several classes: 002.Finch, 003.Red_Finch; say which"),
        ("003.Red_Finsh", r"there is no class '003\.Red_Finsh'; did you mean '003\.Red_Finch'"),
        ("", "there is no class ''"),
        ("7", "there is no class 7; there are 4"),
        (-1, "there is no class -1"),
    ],
)
def test_what_is_none(asked: str | int, message: str) -> None:
    with pytest.raises(DaplError, match=message):
        class_index(BIRDS, asked)
