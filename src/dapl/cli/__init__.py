"""The command line: parse, call, print. Nothing heavy is imported before one needs it."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
from collections.abc import Sequence
from typing import Any

from dapl.cli import data, experiments, options, runs, train
from dapl.cli.options import joined, overrides_of
from dapl.common.errors import DaplError, is_text, nearest, printable, said_by_system

COMMANDS = (
    *(train.demo, train.init, train.train),
    *(runs.evaluate, runs.interventions, runs.explain, runs.report, runs.serve, runs.export),
    *(experiments.compare, experiments.sweep),
    *(data.chance, data.masks, data.cache),
    *(options.fields, options.completion),
)
"""In the order of ``dapl --help``; ``dapl prepare`` has commands of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``dapl``; returns the exit code: 0, 2 where the user has to put something right, 128 + signal."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    parser = _parser()
    names, flags = _names_and_flags(parser, words)
    if words and not words[0].startswith("-") and words[0] not in names:
        print(f"dapl: there is no command '{words[0]}'{nearest(words[0], names)}", file=sys.stderr)
        return 2
    known, rest = parser.parse_known_args(joined(words, flags), argparse.Namespace(words=words, parser=parser))
    if sys.stderr.isatty():  # the libraries take seconds, in which a person should not wonder
        print(f"dapl {known.command}: loading …", file=sys.stderr, flush=True)
    try:
        _refuse_odd_names(words)
        code: int = known.call(known, overrides_of(rest, known))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"dapl: interrupted{known.when_interrupted}", file=sys.stderr)
        return 130
    except (DaplError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            return 141
        print(f"dapl: {_sentence(error)}", file=sys.stderr)
        _give_up_output()
        return 2


def _refuse_odd_names(words: Sequence[str]) -> None:
    """Paths go into configs, tables and pages, all of which are text."""
    for word in (*words, os.getcwd()):
        if not is_text(word):
            raise DaplError(f"{printable(word)}: this name is not text in UTF-8; rename the file or folder.")


def _sentence(error: DaplError | OSError | MemoryError) -> str:
    """What the user has to put right. Anything else that is raised is a mistake of ours, and shows its traceback."""
    if isinstance(error, OSError):
        return said_by_system(error, error.filename or "a file or the standard output")
    if isinstance(error, MemoryError):
        return f"not enough memory ({error or 'no more is said'}); make batches, images or models smaller."
    return str(error)


def _reader_left() -> bool:
    """Whether standard output is what broke: `dapl … | head`, the reader has seen enough."""
    output, poll = sys.stdout.fileno(), select.poll()
    poll.register(output, 0)
    left = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if left:
        _discard(output)
    return left


def _names_and_flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], set[str]]:
    """The commands of a parser, and the flags that the command of these words declares."""
    choices = _commands(parser)
    names = list(choices)
    while words and words[0] in choices:
        parser, words = choices[words[0]], words[1:]
        choices = _commands(parser)
    return names, {flag for action in parser._actions for flag in action.option_strings}


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(groups[0].choices) if groups else {}


class _Version(argparse.Action):
    """Prints the version; only then is it looked up, which takes a while."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        from importlib.metadata import version

        print(f"dapl {version('dapl')}")
        parser.exit()


def _give_up_output() -> None:
    """What cannot be printed, on a full disk say, is let go, or the flush at exit fails once more."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _discard(output: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dapl",
        description="Image classifiers that show their reasons: train, measure and look at prototype models.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command(commands)
    text = "Make a data set out of raw files, or look one over."
    prepare = commands.add_parser("prepare", help=text, description=text, allow_abbrev=False)
    kinds = prepare.add_subparsers(title="what to prepare", metavar="WHAT", required=True)
    for command in (data.faceforensics, data.check):
        command(kinds)
    return parser
