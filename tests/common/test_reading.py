"""The door by which small files are read: whatever lies there, the answer is a value or one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from dapl.common.errors import BrokenError, MissingError
from dapl.common.reading import LARGEST, read_as, read_bytes, read_json, refuse_links_out


class Facts(BaseModel):
    count: int = Field(ge=0, strict=True)
    names: list[str] = []


CONTENTS = {
    b"": "not JSON",
    b"{": "not JSON",
    b"\xff\xfe": "not text in UTF-8",
    b"[" * 100_000: "nested too deeply",
    b"1" * 10_000: "not JSON",
    b"[]": "the file: ",
    b'{"count": -1}': "count: input should be greater than or equal to 0 \\(got -1\\)",
    b'{"count": "7"}': "count: input should be a valid integer",
    b'{"count": 1, "names": ["a", 2]}': r"names\.1: input should be a valid string \(got 2\)",
    b'{"names": []}': "count: field required",
}


@pytest.mark.parametrize(("content", "said"), CONTENTS.items(), ids=[str(content[:30]) for content in CONTENTS])
def test_a_broken_file_is_one_sentence_that_names_file_and_field(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(BrokenError, match=said) as caught:
        read_as(path, Facts, "train anew")
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith("; train anew.")
    assert "\n" not in message


def test_what_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    with pytest.raises(MissingError, match=r"facts\.json: no such file; train anew"):
        read_json(path, "train anew")
    path.mkdir()
    with pytest.raises(BrokenError, match="is a folder and not a file"):
        read_json(path, "train anew")
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BrokenError, match="is a pipe or device and not a file"):
            read_json(other, "train anew")
    with pytest.raises(BrokenError, match="cannot be read"):
        read_json(tmp_path / ("n" * 300), "train anew")


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)  # sparse: takes no room
    with pytest.raises(BrokenError, match="bytes are more than such a file has"):
        read_json(path, "train anew")
    with pytest.raises(BrokenError, match="bytes are more"):
        read_bytes(path, "train anew", largest=10)


def test_links_that_lead_out_are_refused_and_others_are_not(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "secret.txt"
    (folder / "metrics").mkdir(parents=True)
    outside.write_text("of the user")
    (folder / "inside.txt").write_text("its own")
    (folder / "metrics" / "link.txt").symlink_to("../inside.txt")
    refuse_links_out(folder)
    (folder / "metrics" / "out.txt").symlink_to(outside)
    with pytest.raises(BrokenError, match=r"metrics/out\.txt: is a link that leads out of"):
        refuse_links_out(folder)
    refuse_links_out(folder, frozenset(("inside.txt",)))
    refuse_links_out(folder, within=tmp_path)
