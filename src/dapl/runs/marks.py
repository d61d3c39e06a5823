"""Prototypes that a person marked as bad: kept in the run as ``marks.json``. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from dapl.common.errors import DaplError, MissingError
from dapl.common.files import write_json
from dapl.common.locks import locked
from dapl.common.reading import read_as
from dapl.runs.schemas import Count, Location, Name

FORMAT, VERSION = "dapl-marks", 1
NOTE_LENGTH = 500


@dataclass(frozen=True)
class Mark:
    """One prototype, and what it was when it was marked: a number alone would also fit another model's prototype."""

    prototype: Count
    note: Name
    """Why, in the words of the person; may be empty."""
    at: Name
    """When, UTC in ISO 8601."""
    image: Name | None = None
    """The training image of the prototype; None where it was not projected."""
    location: Location | None = None
    """[row, column] of its patch on the feature grid."""


class MarksFile(BaseModel):
    """marks.json."""

    format: Literal["dapl-marks"]
    version: Literal[1]
    marks: list[Mark]


def mark_now(prototype: int, note: str, image: str | None, location: list[int] | None) -> Mark:
    return Mark(prototype, note, datetime.now(UTC).isoformat(timespec="seconds"), image, location)


class Marks:
    """The file. It is read anew for each question, so that nothing that another process wrote is lost from sight."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_run(cls, folder: Path) -> Marks:
        return cls(folder / "marks.json")

    def read(self) -> dict[int, Mark]:
        """By prototype, in order; empty where nothing was marked yet."""
        try:
            marks = read_as(self.path, MarksFile, "put it right or delete it").marks
        except MissingError:
            return {}
        return {mark.prototype: mark for mark in sorted(marks, key=lambda mark: mark.prototype)}

    def put(self, mark: Mark) -> None:
        """Add a mark, or replace the one that the prototype has."""
        with self._locked():
            self._write(self.read() | {mark.prototype: mark})

    def remove(self, prototype: int) -> bool:
        """Whether there was one."""
        with self._locked():
            marks = self.read()
            found = marks.pop(prototype, None) is not None
            if found:
                self._write(marks)
            return found

    def _locked(self) -> AbstractContextManager[None]:
        """Between reading and writing, nobody else may write."""
        return locked(self.path.with_name(f".{self.path.name}.lock"), "marking prototypes", wait=10)

    def _write(self, marks: dict[int, Mark]) -> None:
        entries = [asdict(marks[prototype]) for prototype in sorted(marks)]
        write_json(self.path, {"format": FORMAT, "version": VERSION, "marks": entries})


def to_drop(folder: Path, records: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Marked prototypes of a run that still count, with the notes, checked against its ``prototypes.json``.

    Raises where nothing is left to drop, where a mark was made on another model, and where a class would be left
    without a prototype.
    """
    marks = Marks.of_run(folder)
    found: dict[int, str] = {}
    for mark in marks.read().values():
        if mark.prototype >= len(records):
            raise DaplError(
                f"{marks.path}: prototype {mark.prototype} is marked, but the run has {len(records)}; the marks are of "
                "another model. Delete the file and mark anew."
            )
        record = records[mark.prototype]
        if (mark.image, mark.location) != (record["image"], record["location"]):
            raise DaplError(
                f"{marks.path}: prototype {mark.prototype} was marked when it was a patch of {mark.image}; it is "
                f"another one now, of {record['image']}. Look at it again with `dapl serve {folder}`."
            )
        if record["kept"]:
            found[mark.prototype] = mark.note
    if not found:
        raise DaplError(f"{folder}: no prototype is marked as bad; `dapl serve {folder}` is where they are marked.")
    _refuse_empty_classes(marks.path, found, records)
    return found


def _refuse_empty_classes(path: Path, dropped: dict[int, str], records: Sequence[dict[str, Any]]) -> None:
    left = {
        name for record in records if record["kept"] and record["index"] not in dropped for name in record["classes"]
    }
    for prototype in dropped:
        for name in records[prototype]["classes"]:
            if name not in left:
                raise DaplError(
                    f"{path}: every prototype of the class '{name}' is marked as bad, and a class needs at least one; "
                    "take one of the marks away."
                )
