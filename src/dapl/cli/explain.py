"""``dapl explain``: why a picture got its label."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapl.cli.options import command
from dapl.errors import DaplError, nearest

if TYPE_CHECKING:
    from dapl.api import Classifier
    from dapl.explain.local import LocalExplanation

_FORMATS = ("html", "png", "json")


def add(commands: Any) -> None:
    explain = command(commands, "explain", _explain, "Show why a picture got its label: this looks like that.")
    explain.add_argument("run", type=Path, help="run directory, or a folder that `dapl export` wrote")
    explain.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="picture file, or name of a picture of the run's data",
    )
    explain.add_argument("--class", dest="against", metavar="NAME|INDEX",
                         help="class to explain beside the predicted one (default: the runner-up)")  # fmt: skip
    explain.add_argument("--top", type=int, default=10, metavar="N", help="prototypes listed a class (10)")
    explain.add_argument("--out", type=Path, metavar="DIR", help="folder for the files (default: RUN/explanations)")
    explain.add_argument("--format", default="html", metavar="FORMATS",
                         help="html, png, json, or several with commas (html)")  # fmt: skip


def _explain(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    formats = _formats(arguments.format)
    if arguments.top < 1:
        raise DaplError(f"--top is {arguments.top}; at least one prototype must be listed.")

    import dapl

    model = dapl.load(arguments.run)
    if arguments.against is not None:
        model.class_index(arguments.against)  # a wrong name is said before anything is computed
    out = arguments.out or arguments.run / "explanations"
    taken: set[str] = set()
    for image in arguments.images:
        found = _explained(model, image, arguments.against, arguments.top)
        stem = _free_stem(Path(found.name), taken)
        print(found.text())
        for kind in formats:
            print(f"  {found.save(out / f'{stem}.{kind}')}")
    if model.patches.problem:
        print(f"dapl: {model.patches.problem}", file=sys.stderr)
    return 0


def _explained(model: Classifier, image: str, against: str | None, top: int) -> LocalExplanation:
    known = None
    if not Path(image).exists():
        with suppress(DaplError):  # without the data it can only be a file, and reading that says what is wrong
            known = model.sample(image)
    if known is None:
        return model.explain(Path(image), against, top)
    return model.explain(known[0], against, top, parts=known[1])


def _formats(text: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in _FORMATS:
            raise DaplError(f"--format: '{word}' is not known{nearest(word, _FORMATS)}")
    if not words:
        raise DaplError("--format names no format; give html, png or json.")
    return list(dict.fromkeys(words))


def _free_stem(name: Path, taken: set[str]) -> str:
    """The name of a picture without its ending, and where two pictures have the same, a number more."""
    stem = str(name.with_suffix("")).replace("/", "-").replace("\\", "-") or "picture"
    free, number = stem, 1
    while free in taken:
        number += 1
        free = f"{stem}-{number}"
    taken.add(free)
    return free
