"""What a person sees while a run goes on: bars with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
_SECONDS_BETWEEN_LINES = 15.0


class Reporter:
    """Prints to standard error, so that standard output stays free for results; silent when ``quiet``."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def line(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def track(self, what: str, total: int) -> Iterator[Advance]:
        """Yields a function to call with the number of things just done."""
        if self.quiet or total == 0:
            yield lambda count: None
        elif sys.stderr.isatty():
            with _bar(what, total) as advance:
                yield advance
        else:
            yield self._lines(what, total)

    def _lines(self, what: str, total: int) -> Advance:
        started = last = time.monotonic()
        done = 0

        def advance(count: int) -> None:
            nonlocal done, last
            done += count
            now = time.monotonic()
            if now - last >= _SECONDS_BETWEEN_LINES and done < total:
                last = now
                left = (now - started) / done * (total - done)
                self.line(f"  {what}: {done}/{total}, {done / (now - started):.1f}/s, {left:.0f} s left")

        return advance


@contextmanager
def _bar(what: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
