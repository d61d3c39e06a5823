"""Disks that are full or read-only, and two of everything at once."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults.commands import commands, lay_out
from faults.kills import leftovers
from faults.material import Material, contents
from faults.results import Tally
from faults.running import Case, Crew, Fault, Outcome

_SIZE = 24 << 20


@contextmanager
def disk(place: Path) -> Iterator[bool]:
    """A small file system of its own at ``place``; False where that is not allowed."""
    place.mkdir(parents=True)
    mounted = os.geteuid() == 0 and not _mount("-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(place))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
        shutil.rmtree(place, ignore_errors=True)


def _mount(*words: str) -> int:
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode


def full(material: Material, crew: Crew, levels: int, seed: int) -> Tally:
    """Each command with less and less room: it ends well or with a sentence, and what was there before is whole."""
    rng = random.Random(f"{seed}/full")
    rooms = [
        (name, 0 if level == 0 else rng.choice([1, 4, 20, 60, 200, 900]) << 10)
        for name in commands(material)
        for level in range(levels)
    ]
    return _on_disks(Tally("full disks"), material, crew, rooms)


def read_only(material: Material, crew: Crew) -> Tally:
    return _on_disks(Tally("read-only disks"), material, crew, [(name, None) for name in commands(material)])


def _on_disks(tally: Tally, material: Material, crew: Crew, rooms: list[tuple[str, int | None]]) -> Tally:
    """``rooms``: commands, and the bytes that are free for each; None for a disk that is read-only."""
    disks: dict[str, tuple[Path, ExitStack, dict[str, bytes]]] = {}
    words = commands(material)

    def cases() -> Iterator[Case]:
        for number, (name, free) in enumerate(rooms):
            stack, place = ExitStack(), crew.root / f"disk-{name}-{number}"
            mounted = stack.enter_context(disk(place))
            if free is None and not mounted:
                tally.note = "needs root: not tried"
                stack.close()
                return
            lay_out(material, place, caches=False)
            state = "on a read-only disk" if free is None else f"with {free >> 10} kB"
            label = f"{number}: {name} {state}"
            disks[label] = place, stack, contents(place / "run")
            if free is None:
                _mount("-o", "remount,ro", str(place))
            elif mounted:
                _fill(place, free)
            else:
                tally.note = "no file system could be mounted: files of a limited size instead"
            yield Case(
                label,
                lambda folder, name=name, place=place: words[name](place),
                (0, 1, 2) if name in ("masks", "prepare check") else (0, 2),
                300,
                file_limit=None if mounted or free is None else max(free, 1024),
            )

    for outcome in crew.run(cases()):
        place, stack, before = disks.pop(outcome.case.label)
        with stack:
            tally.add(outcome.faults + _intact(place, before, outcome), outcome.refused)
    return tally


def _fill(place: Path, free: int) -> None:
    """Leave this many bytes."""
    room = shutil.disk_usage(place).free - free
    with (place / "filler").open("wb") as stream:
        for _ in range(max(0, room) // 4096):
            try:
                stream.write(bytes(4096))
            except OSError:
                return


def _intact(place: Path, before: dict[str, bytes], outcome: Outcome) -> list[Fault]:
    """Refused: all that was there is as it was. Done: what is there is whole."""
    faults: list[Fault] = []
    after = contents(place / "run")
    for name, content in before.items():
        if name not in after:
            faults.append(("lost", f"{outcome.case.label}: {name}"))
        elif name.endswith((".json", ".jsonl")) and after[name] != content:
            for line in after[name].decode().splitlines() if name.endswith("l") else [after[name].decode()]:
                try:
                    json.loads(line)
                except ValueError:
                    faults.append(("half-written", f"{outcome.case.label}: {name}"))
                    break
        elif name.startswith("checkpoints/") and outcome.refused and after[name] != content:
            faults.append(("lost", f"{outcome.case.label}: {name} changed"))
    return faults + leftovers(place, outcome.case.label)


def twice(material: Material, crew: Crew, rounds: int) -> Tally:
    """Two of the same command started together: one of them at least does its work, and nothing is broken."""
    tally, pair = Tally("two of everything at once"), Crew(crew.root / "pairs", 2, crew.patience)
    for name, words in commands(material).items():
        for number in range(rounds):
            place = crew.root / f"twice-{name}-{number}"
            lay_out(material, place, caches=False)
            before = contents(place / "run")
            cases = [
                Case(
                    f"{name} beside itself ({which})",
                    lambda folder, words=words, place=place: words(place),
                    (0, 1, 2),
                    600,
                )
                for which in ("one", "other")
            ]
            outcomes = list(pair.run(cases))
            faults = [fault for outcome in outcomes for fault in outcome.faults]
            if not faults and all(outcome.code == 2 for outcome in outcomes):
                faults.append(("lost", f"{name}: both were refused: {outcomes[0].said.strip()[-200:]}"))
            faults += [] if faults else _intact(place, before, outcomes[0])
            tally.add(faults, any(outcome.refused for outcome in outcomes))
            shutil.rmtree(place, ignore_errors=True)
    return tally
