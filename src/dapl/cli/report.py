"""``dapl report``: a page to look at every prototype of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command, only
from dapl.errors import DaplError


def add(commands: Any) -> None:
    report = command(
        commands, "report", _report, "Make a page of a finished run: numbers, curves and every prototype.",
        takes_fields=True,
    )  # fmt: skip
    report.add_argument("run", type=Path, help="run directory")
    report.add_argument("--out", type=Path, help="folder to make (RUN/report), or the file with --single-file "
                        "(RUN/report.html); an older report is replaced")  # fmt: skip
    report.add_argument("--single-file", action="store_true", help="put everything into one HTML file")
    report.add_argument("--pictures", type=int, default=3, metavar="N",
                        help="pictures of its class that each prototype is shown on (3)")  # fmt: skip


def _report(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.run import Run

    only(overrides, ("runtime", "cache", "data"), "a report")
    if arguments.pictures < 1:
        raise DaplError(f"--pictures: is {arguments.pictures}; each prototype must be shown on one picture or more.")
    config = Run.open(arguments.run).config(overrides)

    from dapl.report.collect import collect
    from dapl.report.page import check_folder, write_folder, write_single_file

    out = arguments.out or arguments.run / ("report.html" if arguments.single_file else "report")
    if not arguments.single_file:
        check_folder(out)
    report = collect(arguments.run, config, arguments.pictures)
    page = write_single_file(report, out) if arguments.single_file else write_folder(report, out)
    size = out.stat().st_size if out.is_file() else sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(f"report       {page}  ({size / 1e6:.1f} MB)")
    return 0
