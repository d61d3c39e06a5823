"""What the commands share: how a command is declared, and fields of a config as flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from dapl.common.errors import DaplError

Call = Callable[[argparse.Namespace, dict[str, Any]], int]
"""Parsed arguments and overrides of fields in, exit code out."""

_SHORT = {
    "devices": "runtime.devices",
    "nodes": "runtime.nodes",
    "accelerator": "runtime.accelerator",
    "precision": "runtime.precision",
}
"""Flags that may be written without their section."""


def command(
    commands: Any,
    name: str,
    call: Call,
    text: str,
    *,
    takes_fields: bool = False,
    own_help: bool = False,
    when_interrupted: str = "",
) -> argparse.ArgumentParser:
    """Declare a command. ``takes_fields``: it understands ``--section.field value``."""
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False, add_help=not own_help)
    parser.set_defaults(command=name, call=call, takes_fields=takes_fields, when_interrupted=when_interrupted)
    return parser


def joined(words: Sequence[str]) -> list[str]:
    """``--model.head_dim 8`` as one word, or argparse would take the 8 for a config."""
    joined: list[str] = []
    for word in words:
        name = joined[-1].removeprefix("--") if joined and joined[-1].startswith("--") else ""
        is_field = "." in name or name in (*_SHORT, "seed", "schedule")
        if is_field and "=" not in name and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def overrides_of(rest: Sequence[str], known: argparse.Namespace) -> dict[str, Any]:
    """``--model.head_dim 8 --seed=1`` → {"model.head_dim": 8, "seed": 1}; values are YAML."""
    import yaml

    overrides: dict[str, Any] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise DaplError(f"unexpected argument '{word}'; fields of the config are given as --section.field value.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise DaplError(f"--{name} needs a value.")
            value = words.pop(0)
        try:
            overrides[_SHORT.get(name, name)] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise DaplError(f"--{name}: '{value}' is not a YAML value.") from error
    if overrides and not known.takes_fields:
        name = known.command
        raise DaplError(f"dapl {name} takes no --{next(iter(overrides))}; `dapl {name} --help` lists what it takes.")
    return overrides


def only(overrides: dict[str, Any], sections: Sequence[str], what: str) -> None:
    for name in overrides:
        if name.split(".")[0] not in sections:
            raise DaplError(f"--{name}: {what} takes only fields of {' and '.join(sections)}.")
