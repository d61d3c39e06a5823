"""Runs the command of a program and writes down what its parts took; needs nothing that the program does not bring.

    python timed.py REPORT.json MODULE:FUNCTION LEFT_OUT TIMED -- ARGUMENTS …

LEFT_OUT and TIMED name functions as ``module:qualified.name``, several with commas, ``-`` for none. What is left out
does nothing; what is timed is reported as the processor seconds of each of its calls, beside those of the whole command
(with its imports, which happen when and as the program itself does them) and the most memory that it had.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def find(name: str, module: Any) -> tuple[Any, str]:
    """What holds the function in its module, and its name there."""
    *outer, last = name.partition(":")[2].split(".")
    holder = module
    for part in outer:
        holder = getattr(holder, part)
    return holder, last


class Replacing(importlib.abc.MetaPathFinder):
    """Replaces functions of a module as soon as the program has loaded it."""

    def __init__(self, by: dict[str, Callable[[Callable], Callable]]) -> None:
        self.by = by
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        wanted = [function for function in self.by if function.partition(":")[0] == name]
        if not wanted:
            return None
        sys.meta_path.remove(self)  # or it would be asked again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_replace(module: Any) -> None:
                load(module)
                for function in wanted:
                    holder, attribute = find(function, module)
                    setattr(holder, attribute, self.by[function](getattr(holder, attribute)))

            spec.loader.exec_module = load_and_replace  # type: ignore[method-assign]
        return spec


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

    left, timed = ([] if text == "-" else text.split(",") for text in (left_out, to_time))
    Replacing(
        {name: lambda function: lambda *arguments, **named: None for name in left}
        | {name: functools.partial(timing, name) for name in timed}
    )
    if not command.startswith("dapl."):
        # A torchvision whose compiled operators do not fit this torch loads only with what dapl declares for it.
        with contextlib.suppress(ImportError):
            importlib.import_module("dapl.common.operators")
    holder, attribute = find(command, importlib.import_module(command.partition(":")[0]))
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
