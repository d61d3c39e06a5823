"""The command line: parse, call, print. Nothing heavy is imported before one needs it."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence

from dapl.cli import data, experiments, runs, train
from dapl.cli.options import joined, overrides_of
from dapl.common.errors import DaplError

COMMANDS = (
    *(train.demo, train.train),
    *(runs.evaluate, runs.interventions, runs.explain, runs.report, runs.serve, runs.export),
    *(experiments.compare, experiments.sweep),
    *(data.chance, data.masks),
)
"""In the order of ``dapl --help``; ``dapl prepare`` has commands of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``dapl``; returns the exit code: 0, 2 where the user has to put something right, 128 + signal."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    known, rest = _parser().parse_known_args(joined(words), argparse.Namespace(words=words))
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
    text = "Make a data set out of raw files, or look one over."
    prepare = commands.add_parser("prepare", help=text, description=text, allow_abbrev=False)
    kinds = prepare.add_subparsers(title="what to prepare", metavar="WHAT", required=True)
    for command in (data.faceforensics, data.check):
        command(kinds)
    return parser
