"""What the commands share: how a command is declared, and fields of a config as flags.

``dapl fields`` lists these fields; ``dapl completion`` is what a shell needs to complete commands and flags.
"""

from __future__ import annotations

import argparse
import difflib
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from dapl.common.errors import DaplError, nearest, needing

Call = Callable[[argparse.Namespace, dict[str, Any]], int]
"""Parsed arguments and overrides of fields in, exit code out."""

_SHORT = {name: f"runtime.{name}" for name in ("devices", "nodes", "accelerator", "precision")}
"""Flags that may be written without their section."""
SHELLS = ("bash", "zsh", "fish")
_NARROW, _WIDE = 40, 120
"""Columns of a terminal that the list of fields keeps to."""

Command = Callable[[Any], None]
"""A command of ``dapl``, which puts itself into a parser's commands."""
Row = tuple[str, Any, str]
"""``("--flag METAVAR", kind, help)``, an option or argument of a command; `command` says what a kind is."""


SPLIT: Row = ("--split NAME", "test", "test, validation or train")
PROTOCOL: tuple[Row, ...] = (
    ("--tau SHARE", float, "share of a part that a region must cover (default: 0.5 for faces, else 0.2)"),
    ("--region NAME", "percentile", "size of regions by percentile, by the object's area or by the map's mass"),
    ("--percentile P", 95.0, "percentile of its map that bounds a region"),
    ("--region-share SHARE", float, "of the object's area or of the map's mass (default: 0.1 of object, 0.2 of mass)"),
    ("--part-mode MODE", "auto", "exact: part masks of the data; disc, clipped, voronoi, point: from keypoints"),
    ("--radius SHARE", float, "radius of the discs, a share of --radius-of (default: 0.12 of box, 0.08 of image)"),
    ("--radius-of WHAT", "box", "box: √(area of the object's box); image: its side"),
    ("--scope NAME", "image", "image: mean over images; dataset: pooled; projection: prototypes on their sources"),
)
"""How maps become numbers: the options of a command that measures."""


def protocol_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options of `PROTOCOL` say, by the names of `EvaluationProtocol`; τ only where it is given."""
    names = [flag.split()[0].removeprefix("--").replace("-", "_") for flag, _, _ in PROTOCOL]
    return {name: getattr(arguments, name) for name in names if name != "tau" or arguments.tau is not None}


def command(
    text: str,
    *rows: Row,
    fields: Sequence[str] | None = None,
    when_interrupted: str = "",
    own_help: bool = False,
    epilog: str = "",
) -> Callable[[Call], Command]:
    """Makes a function the command of its name, with one row for each option or argument.

    The kind of a row is a type; or a default, which gives the type; or a tuple of choices, the default first; or False
    for a switch; or [] for a flag that may be repeated. ``name+`` takes one value or more, ``name?`` one or none. After
    a slash stands an older spelling of a flag, which still works and is not shown.

    ``fields``: the sections of a config of which it understands ``--section.field value``; empty for all of them.
    """

    def declare(call: Call) -> Command:
        def add(commands: Any) -> None:
            about: dict[str, Any] = {"help": text, "description": text, "epilog": epilog, "add_help": not own_help}
            parser: argparse.ArgumentParser = commands.add_parser(call.__name__, allow_abbrev=False, **about)
            parser.set_defaults(command=parser.prog.removeprefix("dapl "), call=call)
            parser.set_defaults(fields=fields, when_interrupted=when_interrupted, format_help=parser.format_help)
            for row in rows:
                _declare(parser, *row)

        return add

    return declare


_LARGEST = 10**6
"""No option counts more than a million of anything: it is said before something is allocated."""


def _whole_number(text: str) -> int:
    value = int(text) if len(text) <= 20 else _LARGEST + 1
    if abs(value) > _LARGEST:
        raise argparse.ArgumentTypeError(f"is {text[:40]}, and {_LARGEST:,} is the largest that makes sense")
    return value


def _number(text: str) -> float:
    value = float(text)
    if not abs(value) <= _LARGEST:  # true for nan as well
        raise argparse.ArgumentTypeError(f"is {text[:40]}; give a number up to {_LARGEST:,}")
    return value


_whole_number.__name__, _number.__name__ = "int", "float"  # as argparse names them in its messages
_TYPES: dict[type, Callable[[str], Any]] = {int: _whole_number, float: _number}


def _declare(parser: argparse.ArgumentParser, names: str, kind: Any, text: str) -> None:
    names, _, metavar = names.partition(" ")
    name, *older = names.split("/")
    how: dict[str, Any] = {"metavar": metavar} if metavar else {}
    if kind is False:
        how |= {"action": "store_true"}
    elif kind == []:
        how |= {"action": "append", "default": []}
    elif isinstance(kind, type):
        how |= {"type": _TYPES.get(kind, kind)}
    else:
        choices = {"choices": kind} if isinstance(kind, tuple) else {}
        default = kind[0] if isinstance(kind, tuple) else kind
        how |= {"type": _TYPES.get(type(default), type(default)), "default": default, **choices}
        text += " (default: %(default)s)"
    if name[-1] in "+?":
        how |= {"nargs": name[-1]}
    parser.add_argument(name.rstrip("+?"), **how, help=text)
    for old in older:
        dest = name.removeprefix("--").replace("-", "_")
        parser.add_argument(old, **{**how, "dest": dest, "default": argparse.SUPPRESS}, help=argparse.SUPPRESS)


def joined(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """``--model.head_dim 8`` as one word, or argparse would take the 8 for a config.

    ``flags``: those that the command declares itself; any other is a field.
    """
    joined: list[str] = []
    for word in words:
        name = joined[-1].removeprefix("--") if joined and joined[-1].startswith("--") else ""
        is_field = bool(name) and f"--{name}" not in flags
        if is_field and "=" not in name and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def overrides_of(rest: Sequence[str], known: argparse.Namespace) -> dict[str, Any]:
    """``--model.head_dim 8 --seed=1`` → {"model.head_dim": 8, "seed": 1}; values are YAML."""
    from dapl.common.reading import parse_yaml

    overrides: dict[str, Any] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise DaplError(f"unexpected argument '{word}'; fields of the config are given as --section.field value.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                _refuse_foreign({_SHORT.get(name, name): "VALUE"}, known)
                raise DaplError(f"--{name} needs a value.")
            value = words.pop(0)
        try:
            overrides[_SHORT.get(name, name)] = parse_yaml(value, f"--{name}")
        except DaplError as error:
            raise DaplError(f"--{name}: '{value[:60]}' is not a YAML value.") from error
    _refuse_foreign(overrides, known)
    return overrides


def _refuse_foreign(overrides: dict[str, Any], known: argparse.Namespace) -> None:
    """Refuse flags that are neither the command's own nor fields that it understands."""
    if overrides and known.fields is None:
        name = known.command
        raise DaplError(f"dapl {name} takes no --{next(iter(overrides))}; `dapl {name} --help` lists what it takes.")
    if known.fields:
        only(overrides, known.fields, f"dapl {known.command}")
    elif overrides:
        _refuse_bare(overrides)


def _refuse_bare(overrides: dict[str, Any]) -> None:
    """``--epochs 3`` names no field; the fields that end so are what was meant."""
    from dapl.config import Config, describe_fields

    for name, value in overrides.items():
        if "." in name or name in Config.model_fields:
            continue
        meant = dict.fromkeys(field for field, _, _ in describe_fields() if field.rpartition(".")[2] == name)
        if not meant:
            fields = [field for field, _, _ in describe_fields() if " " not in field]
            leaves = {field.rpartition(".")[2]: field for field in reversed(fields)}  # the first of a name counts
            near = difflib.get_close_matches(name, leaves, n=1)
            meaning = f"did you mean --{leaves[near[0]]}? " if near else ""
            raise DaplError(f"--{name}: is no field of a config; {meaning}`dapl fields` lists them.")
        stages = " (n: which stage of the schedule, from 0)" if any("<n>" in field for field in meant) else ""
        example = next(iter(meant)).replace("<n>", "0")
        raise DaplError(
            f"--{name}: say which; fields of that name are {', '.join(f'--{field}' for field in meant)}{stages}, e.g. "
            f"--{example} {value}."
        )


def only(overrides: dict[str, Any], sections: Sequence[str], what: str) -> None:
    for name in overrides:
        if name.split(".")[0] not in sections:
            raise DaplError(f"--{name}: {what} takes only fields of {', '.join(sections[:-1])} and {sections[-1]}.")


def names_of(flag: str, text: str, known: Sequence[str]) -> list[str]:
    """``html, png`` → ["html", "png"]: each of them known, and taken once."""
    names = list(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
    for name in names:
        if name not in known:
            raise DaplError(f"{flag}: '{name}' is not known{nearest(name, known)}")
    if not names:
        raise DaplError(f"{flag}: nothing is named; known: {', '.join(known)}.")
    return names


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
    with needing("dapl completion needs shtab", "completion"):
        import shtab
    print(shtab.complete(arguments.parser, arguments.shell))
    return 0
