"""From the data of a report to its page: in a folder, in one file, or below a server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from dapl.common.errors import DaplError
from dapl.common.files import replacing_folder, write_bytes, write_text
from dapl.explain.draw import templates
from dapl.explain.drawings import Label, drawn_once, overview
from dapl.report.collect import Report

_STATIC = ("report.css", "report.js")
_MARKER = "report.json"
"""The data of the report beside its page; a folder that holds it is ours to replace."""
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Linked:
    """Images, styles and script are files of their own, below these two prefixes of a URL."""

    images: str = "images/"
    static: str = ""
    base: str = ""
    """What the addresses begin with, on a server that shows several runs."""
    embedded: Mapping[str, bytes] = field(default_factory=dict)

    def policy(self) -> str:
        return f"{_POLICY}; img-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self'"


@dataclass(frozen=True)
class Embedded:
    """Everything is inside the page."""

    embedded: Mapping[str, bytes]
    images: str = ""
    static: None = None

    def policy(self) -> str:
        script = base64.b64encode(hashlib.sha256(static_files()["report.js"]).digest()).decode("ascii")
        return f"{_POLICY}; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script}'"


def render(
    data: Mapping[str, Any], assets: Linked | Embedded, template: Template | None = None, policy: str | None = None
) -> str:
    """The page, or that of a ``template`` that extends ours."""
    style, script = (static_files()[name].decode("utf-8") for name in _STATIC)
    blobs = {name: base64.b64encode(content).decode("ascii") for name, content in assets.embedded.items()}
    return (template or templates("dapl.report", "dapl.explain").get_template("report.html.j2")).render(
        report=data,
        assets=assets,
        policy=policy or assets.policy(),
        style=Markup(style),
        script=Markup(script),
        blobs=blobs,
        overview=_overview(data, assets, blobs),
    )


def _overview(data: Mapping[str, Any], assets: Linked | Embedded, blobs: Mapping[str, str]) -> Markup:
    """The large image with the outlines of its prototypes, with their names and, for a narrow screen, without."""
    shown = data["overview"]
    if not shown:
        return Markup()
    file, size = shown["file"], data["size"]
    address = f"data:image/jpeg;base64,{blobs.get(file, '')}" if assets.static is None else f"{assets.images}{file}"
    labels = [Label(**one) for one in shown["labels"]]
    outlines = ((row["outline"], row["colour"], row["dashed"]) for row in shown["rows"])
    drawn = [overview(labels, size, with_names, shown.get("view")) for with_names in (True, False)]
    return drawn_once(address, outlines, size) + drawn[0] + drawn[1]


@cache
def static_files() -> dict[str, bytes]:
    folder = files("dapl.report") / "static"
    return {name: (folder / name).read_bytes() for name in _STATIC}


def write_single_file(report: Report, path: Path) -> Path:
    """Everything in one HTML file."""
    if path.is_dir():
        raise DaplError(f"{path}: is a folder; --single-file writes one file, name it with --out FILE.html.")
    write_text(path, render(report.data, Embedded(report.images)))
    return path


def write_folder(report: Report, folder: Path) -> Path:
    """index.html and what it needs; takes the place of an older report at once. Returns the page."""
    with replacing_folder(folder, check_folder) as fresh:
        for name, content in report.images.items():
            write_bytes(fresh / "images" / name, content)
        for name, content in static_files().items():
            write_bytes(fresh / name, content)
        write_text(fresh / _MARKER, json.dumps(report.data, ensure_ascii=False))  # megabytes, which no person reads
        write_text(fresh / "index.html", render(report.data, Linked()))
    return folder / "index.html"


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than an older report."""
    if folder.exists() and not folder.is_dir():
        raise DaplError(f"{folder}: is a file; name a folder with --out, or add --single-file.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARKER).is_file():
        raise DaplError(f"{folder}: exists and is not a report; name a new folder with --out.")
