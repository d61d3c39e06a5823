"""The processor is named where Linux lists it, and by Python elsewhere."""

from __future__ import annotations

import platform
from pathlib import Path

from dapl.runs.provenance import machine, processor_name


def test_the_processor_is_the_first_that_is_listed(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nmodel name\t: Some CPU 3: fast\nprocessor\t: 1\nmodel name\t: Other\n")
    assert processor_name(listing) == "Some CPU 3: fast"
    assert processor_name(tmp_path / "gone") == (platform.processor() or platform.machine())


def test_instructions_are_those_that_torch_is_held_to() -> None:
    assert machine()["instructions"] in ("DEFAULT", "NO AVX", "AVX2", "AVX512", "VSX", "ZVECTOR", "SVE256")
