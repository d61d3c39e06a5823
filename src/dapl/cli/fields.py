"""``dapl fields``, every field of a config, and ``dapl completion``, what a shell needs to complete words."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from dapl.cli.options import command
from dapl.common.errors import DaplError, nearest

SHELLS = ("bash", "zsh", "fish")
_NARROW, _WIDE = 40, 120


@command(
    "List the fields of a config: name, default and meaning. Each is a flag too.",
    ("section?", str, "only these: data, model, model.backbone, loss, …, or of a kind such as parts or locate"),
)
def fields(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.config import describe_fields

    rows = list(describe_fields())
    chosen = rows if arguments.section is None else list(_of_section(rows, arguments.section))
    if not chosen:
        known = dict.fromkeys(word for name, _, _ in rows for word in _words(name))
        raise DaplError(
            f"dapl fields: there is no section '{arguments.section}'{nearest(arguments.section, list(known))}"
        )
    width = min(max(shutil.get_terminal_size().columns, _NARROW), _WIDE)
    for name, default, meaning in chosen:
        print("\n".join(_lines(name, default, meaning, width)))
    return 0


def _words(name: str) -> list[str]:
    """What a row may be asked for by: ``model (parts)`` → parts; ``model.backbone.name`` → model, model.backbone."""
    if name.endswith(")"):
        return [name.rpartition("(")[2].removesuffix(")")]
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _of_section(rows: list[tuple[str, str, str]], section: str) -> Iterator[tuple[str, str, str]]:
    kind = ""
    for row in rows:
        name = row[0]
        if name.endswith(")"):
            kind = name
        elif not name.startswith(kind.partition(" ")[0] + "."):
            kind = ""
        of_kind = bool(kind) and section == kind.rpartition("(")[2].removesuffix(")")
        if of_kind or name == section or name.startswith((f"{section}.", f"{section} (")):
            yield row


def _lines(name: str, default: str, meaning: str, width: int) -> list[str]:
    """A name with its default, then what it means, further right; a kind has an empty line above."""
    if name.endswith(")"):
        return ["", *textwrap.wrap(f"{name}: {meaning}", width, subsequent_indent="  ")]
    head = textwrap.wrap(f"{name} ({default})" if default else name, width, subsequent_indent="    ")
    return [*head, *textwrap.wrap(meaning, width, initial_indent="    ", subsequent_indent="    ")]


@command(
    "Print what a shell needs to complete commands and flags.",
    ("shell", SHELLS, "bash, zsh or fish"),
    epilog='bash: eval "$(dapl completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit. fish: dapl '
    "completion fish > ~/.config/fish/completions/dapl.fish",
)
def completion(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    try:
        import shtab
    except ImportError as error:
        raise DaplError("dapl completion needs shtab; pip install 'dapl[completion]'.") from error
    print(shtab.complete(arguments.parser, arguments.shell))
    return 0
