"""A call in a process of its own that need not import everything anew."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any


class Forked:
    """``Forked(said, main, ["train", …])``: it runs at once, and what it says goes to the file ``said``."""

    def __init__(self, said: Path, call: Callable[..., Any], *arguments: Any) -> None:
        self.said = said
        said.write_text("")
        self.process = multiprocessing.get_context("fork").Process(target=self._run, args=(call, *arguments))
        self.process.start()

    def _run(self, call: Callable[..., Any], *arguments: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests were started in the background
        with self.said.open("w") as stream, redirect_stderr(stream), redirect_stdout(stream):
            sys.exit(call(*arguments))

    def finish(self, code: int = 0) -> str:
        """Wait until it has ended with that code (minus the number of a signal); what it said."""
        self.process.join(900)
        self.process.kill()
        assert self.process.exitcode == code, self.said.read_text()
        return self.said.read_text()
