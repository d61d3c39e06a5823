"""Whether masks were drawn or made is known from what stands beside them."""

from pathlib import Path

import pytest

from dapl.masks.made import LOG, made_note


@pytest.mark.parametrize("content", [None, "", "no JSON\n", '{"name": "a.png"}\n', '["features"]\n'])
def test_nothing_is_said_where_nothing_is_known(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / LOG).write_text(content)
    assert made_note(tmp_path) is None


def test_the_methods_are_named_the_most_frequent_first(tmp_path: Path) -> None:
    lines = ['{"method": "grabcut"}'] + ['{"method": "features"}'] * 1200
    (tmp_path / LOG).write_text("\n".join(lines) + "\n")
    said = str(made_note(tmp_path))
    assert said.startswith("The masks of 1,201 images were made by a program (features and grabcut), not drawn")
