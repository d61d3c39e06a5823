"""The command line: parse, call, print. Nothing heavy is imported before one needs it."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence

from dapl.cli.data import add_masks, add_prepare
from dapl.cli.experiments import add_compare, add_sweep
from dapl.cli.options import joined, overrides_of
from dapl.cli.runs import add_evaluate, add_explain, add_export, add_report, add_serve
from dapl.cli.train import add_train
from dapl.common.errors import DaplError

COMMANDS = (
    add_train,
    add_evaluate,
    add_explain,
    add_report,
    add_serve,
    add_export,
    add_compare,
    add_sweep,
    add_prepare,
    add_masks,
)
"""Each puts its commands into the parser, in the order of ``dapl --help``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``dapl``; returns the exit code: 0, 2 where the user has to put something right, 128 + signal."""
    known, rest = _parser().parse_known_args(joined(sys.argv[1:] if arguments is None else arguments))
    if sys.stderr.isatty():  # the libraries take seconds, in which a person should not wonder
        print(f"dapl {known.command}: loading …", file=sys.stderr, flush=True)
    try:
        code: int = known.call(known, overrides_of(rest, known))
        sys.stdout.flush()
        return code
    except DaplError as error:
        print(f"dapl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"dapl: interrupted{known.when_interrupted}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _reader_left():  # some other pipe broke, which is an error
            raise
        return 141


def _reader_left() -> bool:
    """Whether standard output is what broke: `dapl … | head`, the reader has seen enough."""
    output, poll = sys.stdout.fileno(), select.poll()
    poll.register(output, 0)
    left = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # or the flush at exit fails once more
    return left


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dapl",
        description="Image classifiers that show their reasons: train, measure and look at prototype models.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command(commands)
    return parser
