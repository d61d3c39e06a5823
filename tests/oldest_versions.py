"""Prints constraints that hold every direct requirement at the oldest version that pyproject.toml admits."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def requirements(project: dict[str, Any]) -> list[str]:
    """The requirements of the package and of all its extras."""
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [line for line in project["dependencies"] + extras if not line.startswith("dapl[")]


def oldest(requirement: str) -> str | None:
    """``name==version`` of a requirement that says from which version on; None of one that takes any.

    >>> oldest("mkdocstrings[python]>=0.30"), oldest("types-PyYAML")
    ('mkdocstrings==0.30', None)
    """
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?(?:>=([\w.]+))?", requirement)
    if found is None:
        raise ValueError(f"pyproject.toml: {requirement!r} is no requirement of the form name>=version.")
    name, version = found.groups()
    return None if version is None else f"{name}=={version}"


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join(line for line in map(oldest, requirements(project)) if line is not None))
