"""The records of prototypes as plain values, and back."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, fields

from dapl.runs.checkpoint import records_from_json, records_to_json
from dapl.runs.schemas import PrototypeRecord

RECORDS = [
    PrototypeRecord(0, ["wren"], 0),
    PrototypeRecord(
        index=1,
        classes=["wren", "Züricher Ente"],
        head=1,
        kept=False,
        reason="merged",
        image="001.wren/a.jpg",
        location=[2, 0],
        box=[0, 8, 16, 24],
        outline="M0 8h16v16z",
        distance=0.1 + 0.2,
        foreground_share=1.0,
        grounded=False,
        region_foreground=1e-7,
    ),
]


def test_the_file_is_what_the_fields_say() -> None:
    """As ``asdict`` would write it: every field under its name, in their order, to the last digit."""
    assert all(getattr(RECORDS[1], field.name) is not None for field in fields(PrototypeRecord)), "fill a new field too"
    with warnings.catch_warnings(action="error"):  # pydantic warns of a value that is not of its field's type
        found = records_to_json(RECORDS)
    assert json.dumps(found) == json.dumps([asdict(record) for record in RECORDS])
    assert records_from_json(found, "here") == RECORDS


def test_what_is_written_is_not_what_training_goes_on_with() -> None:
    found = records_to_json(RECORDS)
    found[1]["box"][0] = 99
    found[1]["classes"].append("another")
    assert RECORDS[1].box == [0, 8, 16, 24]
    assert len(RECORDS[1].classes) == 2
