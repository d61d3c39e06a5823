"""Commands in forked processes of one interpreter that has everything loaded: a command then takes milliseconds.

A process that has threads cannot be forked safely, so there is one loop here that starts children and watches them.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dapl.common.liveness import is_alive, this_process

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
    prepare: Callable[[Path], object] = lambda folder: None
    """Called with the folder before the command starts."""


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


def start(said: Path, work: Callable[[], int]) -> int:
    """A child that does ``work``, and whose exit code it is; what it says goes to a file. Gives the child's number.

    It leads a group of its own, and dies with this process, even where that is killed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        _living.add(pid)
        return pid
    code = 70
    try:
        _living.clear()
        _die_with(parent)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in _STOPPING:
            signal.signal(number, signal.SIG_DFL)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        stream = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # as Python has them
        code = work()
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


def _die_with(parent: int) -> None:
    """The system kills this process when its parent is gone (on Linux; elsewhere a killed one leaves it behind)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:  # already gone
        os._exit(70)


def ended(pid: int, wait: bool = False) -> int | None:
    """The exit code of a child, or minus the number of its signal; None while it runs."""
    done, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def end(pid: int) -> int | None:
    """A child and what it started, at once; None where it had ended before."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _living.discard(pid)
    try:
        return ended(pid, wait=True)
    except ChildProcessError:
        return None


_living: set[int] = set()
"""Children that were started, until they and all that they started have ended."""
_STOPPING = (signal.SIGTERM, signal.SIGHUP)


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A folder to work in, which is gone afterwards with the disks and the children in it: also where the campaign is
    interrupted or told to stop. What one left that was killed is removed by the next.
    """
    for path in parent.glob(f"{_PREFIX}*"):
        if is_alive(path.name.removeprefix(_PREFIX)) is False:
            _remove(path)
    root = parent / f"{_PREFIX}{this_process()}"
    root.mkdir()
    before = {number: signal.signal(number, _stop) for number in _STOPPING}
    try:
        yield root
    finally:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave half of it
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
        for pid in tuple(_living):
            end(pid)
        _remove(root)
        for number, handler in {signal.SIGINT: interrupt, **before}.items():
            signal.signal(number, handler)


_PREFIX = "dapl-faults-"


def _remove(folder: Path) -> None:
    """With the disks that are mounted below it."""
    with suppress(OSError):
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
        for place in mounts:
            if place.startswith(f"{folder}/"):
                subprocess.run(["umount", "-l", place], check=False, capture_output=True)
    _clear(folder)


def _do(case: Case, folder: Path) -> int:
    os.chdir(folder)
    random.seed(case.seed)
    if case.file_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (case.file_limit, resource.RLIM_INFINITY))
    words = case.work(folder)
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
        try:
            while True:
                while len(running) < self.workers and (case := next(waiting, None)) is not None:
                    running.append(self._start(case))
                if not running:
                    return
                for child in list(running):
                    outcome = self._look(child)
                    if outcome is None:
                        continue
                    running.remove(child)
                    outcome.judge()
                    try:
                        yield outcome
                    finally:
                        if not keep:
                            _clear(child.folder)
                time.sleep(0.003)
        finally:
            for child in running:
                end(child.pid)

    def one(self, case: Case, keep: bool = True) -> Outcome:
        return next(iter(self.run([case], keep)))

    def _start(self, case: Case) -> _Child:
        self._number += 1
        folder = self.root / f"{self._number:05d}"
        folder.mkdir(parents=True)
        case.prepare(folder)
        pid = start(self.root / f"{self._number:05d}.said", lambda: _do(case, folder))
        return _Child(case, pid, folder, time.monotonic())

    def _look(self, child: _Child) -> Outcome | None:
        took, hung = time.monotonic() - child.started, False
        code = ended(child.pid)
        if code is None:
            if child.case.kill_after is not None and took >= child.case.kill_after and not child.killed:
                child.killed = True
                os.kill(child.pid, signal.SIGKILL)  # itself only: what it started has to notice
            elif took > child.case.seconds * self.patience:
                hung = True
                code = end(child.pid)
            if code is None:
                return None
        if not group_ends(child.pid):
            hung = True
        said = self.root / f"{child.folder.name}.said"
        text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
        said.unlink(missing_ok=True)
        return Outcome(child.case, child.folder, code, text, hung, child.killed, took)


def group_ends(pid: int, seconds: float = 40.0) -> bool:
    """Whether everything that a child started is gone soon after it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.killpg(pid, 0)
        except (ProcessLookupError, PermissionError):
            _living.discard(pid)
            return True
        if time.monotonic() > deadline:
            end(pid)
            return False
        time.sleep(0.01)


def _clear(folder: Path) -> None:
    for inside, _, _ in os.walk(folder):
        os.chmod(inside, 0o755)
    shutil.rmtree(folder, ignore_errors=True)
