"""Commands in forked processes of one interpreter that has everything loaded: a command then takes milliseconds.

A process that has threads cannot be forked safely, so there is one loop here that starts children and watches them.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

Fault = tuple[str, str]
"""Its kind (one of `results.FAULTS`) and what happened."""
Work = Callable[[Path], "list[str] | int"]
"""Called in the child, in an empty folder: the words of a command, or the exit code of what it did itself."""


def _no_check(outcome: Outcome) -> list[Fault]:
    return []


@dataclass
class Case:
    """One command, what it may end with, and what must hold afterwards."""

    label: str
    work: Work
    codes: tuple[int, ...] = (0, 2)
    seconds: float = 60.0
    check: Callable[[Outcome], list[Fault]] = _no_check
    kill_after: float | None = None
    """Seconds after which it gets SIGKILL, which is then how it should end."""
    seed: int = 0
    file_limit: int | None = None
    """Bytes that a file may have: a full disk, where none can be mounted."""


@dataclass
class Outcome:
    case: Case
    folder: Path
    code: int
    """Minus the number of the signal that ended it."""
    said: str
    hung: bool
    killed: bool
    took: float
    faults: list[Fault] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        return self.code == 2

    def judge(self) -> None:
        """What any command must keep to, then what this one must."""
        if self.hung:
            self.faults.append(("hang", f"{self.case.label}: {self.took:.0f} s"))
        elif self.killed and self.code == -signal.SIGKILL:
            pass
        elif "Traceback (most recent call last)" in self.said:
            self.faults.append(("traceback", f"{self.case.label}: {_last_line(self.said)}"))
        elif self.code not in self.case.codes:
            self.faults.append(("exit code", f"{self.case.label}: {self.code}: {_last_line(self.said)}"))
        elif self.code == 2 and (not _last_line(self.said) or _TEMPORARY.search(_last_line(self.said))):
            self.faults.append(("no sentence", f"{self.case.label}: {_last_line(self.said)}"))
        if not self.faults:
            self.faults += self.case.check(self)


_TEMPORARY = re.compile(r"\.tmp\b")
"""A name that nobody knows is no help in a sentence."""


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "")[-300:]


@dataclass
class _Child:
    case: Case
    pid: int
    folder: Path
    started: float
    killed: bool = False


def _child(case: Case, folder: Path, said: Path) -> None:
    """Never returns."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        stream = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        os.chdir(folder)
        random.seed(case.seed)
        if case.file_limit is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (case.file_limit, resource.RLIM_INFINITY))
        code = _command(case.work(folder))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 71
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _command(words: list[str] | int) -> int:
    if isinstance(words, int):
        return words
    from dapl.cli import main

    return main(words)


class Crew:
    """So many children at a time, each in a folder of its own below ``root``."""

    def __init__(self, root: Path, workers: int = 2, patience: float = 1.0) -> None:
        """``patience``: times that a case may take longer, on a machine that does other things too."""
        self.root, self.workers, self.patience, self._number = root, workers, patience, 0

    def run(self, cases: Iterable[Case], keep: bool = False) -> Iterator[Outcome]:
        """In the order in which they end; folders are removed after they were looked at, unless ``keep``."""
        waiting, running = iter(cases), list[_Child]()
        exhausted = False
        while True:
            while not exhausted and len(running) < self.workers:
                case = next(waiting, None)
                if case is None:
                    exhausted = True
                    break
                running.append(self._start(case))
            if not running:
                return
            for child in list(running):
                outcome = self._look(child)
                if outcome is not None:
                    running.remove(child)
                    outcome.judge()
                    yield outcome
                    if not keep:
                        _clear(child.folder)
            time.sleep(0.003)

    def one(self, case: Case, keep: bool = True) -> Outcome:
        return next(iter(self.run([case], keep)))

    def _start(self, case: Case) -> _Child:
        self._number += 1
        folder = self.root / f"{self._number:05d}"
        folder.mkdir(parents=True)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _child(case, folder, self.root / f"{self._number:05d}.said")
        return _Child(case, pid, folder, time.monotonic())

    def _look(self, child: _Child) -> Outcome | None:
        took, hung = time.monotonic() - child.started, False
        done, status = os.waitpid(child.pid, os.WNOHANG)
        if not done:
            if child.case.kill_after is not None and took >= child.case.kill_after and not child.killed:
                child.killed = True
                os.kill(child.pid, signal.SIGKILL)  # itself only: what it started has to notice
            elif took > child.case.seconds * self.patience:
                hung = True
                end_group(child.pid)
                _, status = os.waitpid(child.pid, 0)
            if not hung:
                return None
        if not _group_ends(child.pid):
            hung = True
        said = self.root / f"{child.folder.name}.said"
        text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
        said.unlink(missing_ok=True)
        return Outcome(child.case, child.folder, os.waitstatus_to_exitcode(status), text, hung, child.killed, took)


def end_group(pid: int) -> None:
    """The child and what it started; each child leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _group_ends(pid: int, seconds: float = 40.0) -> bool:
    """Whether everything that a child started is gone soon after it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return True
        if time.monotonic() > deadline:
            end_group(pid)
            return False
        time.sleep(0.01)


def _clear(folder: Path) -> None:
    for inside, _, _ in os.walk(folder):
        os.chmod(inside, 0o755)
    shutil.rmtree(folder, ignore_errors=True)
