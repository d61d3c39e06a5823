"""Runs the command of a program and writes down what its parts took; needs nothing that the program does not bring.

    python timed.py REPORT.json MODULE:FUNCTION LEFT_OUT TIMED -- ARGUMENTS …

LEFT_OUT and TIMED name functions as ``module:qualified.name``, several with commas, ``-`` for none. What is left out
does nothing; what is timed is reported as the processor seconds of each of its calls, beside those of the whole command
(with its imports) and the most memory that it had.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def find(name: str) -> tuple[Any, str]:
    """What holds the function, and its name there."""
    module, _, path = name.partition(":")
    holder = importlib.import_module(module)
    *outer, last = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    return holder, last


def replace(names: str, by: Callable[[str, Callable], Callable]) -> None:
    for name in [] if names == "-" else names.split(","):
        holder, attribute = find(name)
        setattr(holder, attribute, by(name, getattr(holder, attribute)))


def main() -> None:
    report, command, left_out, to_time = sys.argv[1:5]
    sys.argv = [command.partition(":")[0], *sys.argv[6:]]
    seconds: dict[str, list[float]] = {}

    def timing(name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                seconds.setdefault(name, []).append(time.process_time() - started)

        return call

    # A torchvision whose compiled operators do not fit this torch loads only with what dapl declares for it.
    with contextlib.suppress(ImportError):
        importlib.import_module("dapl.common.operators")
    replace(left_out, lambda name, function: lambda *arguments, **named: None)
    replace(to_time, timing)
    holder, attribute = find(command)
    try:
        getattr(holder, attribute)()
    except SystemExit as end:
        if end.code:
            raise
    usage = resource.getrusage(resource.RUSAGE_SELF)
    total = usage.ru_utime + usage.ru_stime
    found = {"seconds": seconds, "total": total, "memory_gb": usage.ru_maxrss / 2**20}
    with open(report, "w", encoding="utf-8") as stream:
        json.dump(found, stream)


if __name__ == "__main__":
    main()
