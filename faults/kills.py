"""SIGKILL at random moments: of training, which must end in the same bits, and of every other command, run again after.

A process that is killed says nothing and cleans up nothing; all that may be lost is the work since the last checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

from faults.commands import commands, lay_out, serving
from faults.material import Material, contents, start_devices
from faults.results import Tally
from faults.running import Case, Crew, Fault, Outcome

TIMES = ("seconds", "images_per_second")
"""What differs between two runs of the same seed."""


def _words(material: Material, out: Path, devices: int) -> list[str]:
    return ["train", str(material.config), "--out", str(out), "--devices", str(devices)]


def trainings(
    material: Material, crew: Crew, count: int, seed: int, devices: int = 1, start: Literal["fork", "spawn"] = "fork"
) -> Tally:
    """Killed, then resumed: the same weights, the same log, nothing left over."""
    name = "kills of train" + (f" --devices {devices}" if devices > 1 else "")
    name += ", each process a new interpreter" if start == "spawn" else ""
    tally, rng = Tally(name), random.Random(f"{seed}/{name}")

    def train(words: list[str]) -> list[str]:
        start_devices(start)
        return words

    plain = crew.one(Case(name, lambda folder: train(_words(material, folder / "run", devices)), (0,), 900))
    if plain.faults:
        tally.add(plain.faults)
        return tally

    def killed(moment: float) -> Case:
        words = lambda folder: train(_words(material, folder / "run", devices))  # noqa: E731
        return Case(f"{name} at {moment:.2f} s", words, (0,), 900, kill_after=moment)

    def resumed(killed: Outcome) -> Case:
        """What a person would do: resume; and where there is nothing to resume, start again in the same place."""
        run = killed.folder / "run"
        begun = (run / "config.yaml").exists()
        words = ["train", "--resume", str(run)] if begun else _words(material, run, devices)
        label = f"{killed.case.label}, {'resumed' if begun else 'begun again'}"
        check = lambda done: same_run(plain.folder / "run", run, label)  # noqa: E731
        return Case(label, lambda folder: train(words), (0,), 900, check=check)

    first = list(crew.run(map(killed, _moments(rng, plain.took, count)), keep=True))
    for outcome in first:
        tally.add(outcome.faults, cases=0)
    for outcome in crew.run(resumed(one) for one in first if not one.faults):
        tally.add(outcome.faults)
    for outcome in (plain, *first):
        shutil.rmtree(outcome.folder, ignore_errors=True)
    identical = tally.cases - len(tally.examples)
    tally.note = "; ".join(filter(None, (f"{identical} of {count} end in the same bits", _through(first))))
    return tally


def same_run(expected: Path, found: Path, label: str) -> list[Fault]:
    """Checkpoints by their bits, logs without times, no temporary file."""
    faults: list[Fault] = []
    for name in ("last", "best"):
        file = Path("checkpoints") / f"{name}.safetensors"
        if not (found / file).exists() or not _same_tensors(expected / file, found / file):
            faults.append(("lost", f"{label}: {file} differs"))
    if _log(expected) != _log(found):
        faults.append(("lost", f"{label}: metrics.jsonl differs"))
    faults += leftovers(found, label)
    return faults


def leftovers(folder: Path, label: str) -> list[Fault]:
    return [("half-written", f"{label}: {path.name}") for path in folder.rglob("*.tmp")]


def _same_tensors(one: Path, other: Path) -> bool:
    import safetensors.torch
    import torch

    first, second = (safetensors.torch.load_file(path) for path in (one, other))
    return first.keys() == second.keys() and all(
        torch.equal(tensor.nan_to_num(), second[name].nan_to_num()) for name, tensor in first.items()
    )


def _log(run: Path) -> list[Any]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def other_commands(material: Material, crew: Crew, count: int, seed: int, names: Collection[str]) -> Iterator[Tally]:
    """Each is killed, then run again: it ends well, and no file of the run is broken in between or missing after."""
    for name in names:
        yield _killed(name, material, crew, count, random.Random(f"{seed}/kills of {name}"))


def _killed(name: str, material: Material, crew: Crew, count: int, rng: random.Random) -> Tally:
    def case(label: str, again_in: Path | None = None, **options: Any) -> Case:
        """A new place for the first time, that of a killed one ``again_in``."""
        prepare = (lambda folder: lay_out(material, folder)) if again_in is None else (lambda folder: None)
        to_its_end = options.get("kill_after") is None

        def work(folder: Path) -> list[str] | int:
            place = again_in or folder
            os.chdir(place)
            return serving(place, stop=to_its_end)(folder) if name == "serve" else commands(material)[name](place)

        return Case(f"{name} {label}", work, _CODES.get(name, (0,)), 900, prepare=prepare, **options)

    tally = Tally(f"kills of {name}")
    plain = crew.one(case("to its end"))
    expected = names_in(plain.folder)
    tally.add(plain.faults, cases=0)
    last = plain.took + (1.0 if name == "serve" else 0.0)  # it would not end by itself
    cases = (case(f"killed at {moment:.2f} s", kill_after=moment) for moment in _moments(rng, last, count))
    first = list(crew.run(cases, keep=True)) if not plain.faults else []
    for outcome in first:
        outcome.faults += whole(outcome.folder / "run", material, outcome.case.label)
        tally.add(outcome.faults, cases=0)

    def check(place: Path, label: str) -> list[Fault]:
        gone = sorted(expected - names_in(place))
        return leftovers(place, label) + ([("lost", f"{label}: no {gone[:3]}")] if gone else [])

    again = (
        case(
            f"{killed.case.label.removeprefix(name)}, again",
            killed.folder,
            check=lambda done, killed=killed: check(killed.folder, done.case.label),
        )
        for killed in first
        if not killed.faults
    )
    for outcome in crew.run(again):
        tally.add(outcome.faults)
    for outcome in (plain, *first):
        shutil.rmtree(outcome.folder, ignore_errors=True)
    tally.note = _through(first)
    return tally


_CODES = {"masks": (0, 1), "prepare check": (0, 1), "init": (0, 2)}
"""Of commands that may leave something out, or do not write over what is there."""


def _moments(rng: random.Random, last: float, count: int) -> list[float]:
    return [rng.uniform(0.02, 1.0) * last for _ in range(count)]


def _through(killed: list[Outcome]) -> str:
    ended = sum(outcome.code != -signal.SIGKILL for outcome in killed)
    return f"{ended} ended before the kill came" if ended else ""


def names_in(folder: Path) -> set[str]:
    """Files that a command makes by names that are always the same."""
    return {name for name in contents(folder) if "tensorboard/" not in name and not name.startswith("cache/")}


def whole(run: Path, material: Material, label: str) -> list[Fault]:
    """Every file that the run had is there, JSON can be read, and checkpoints have their bits, whatever the kill cut
    short."""
    faults: list[Fault] = []
    for name, content in material.files().items():
        path = run / name
        if name.startswith(("report/", "tensorboard/")):
            continue  # replaced as a whole; not copied
        if not path.exists():
            faults.append(("lost", f"{label}: {name}"))
        elif name.startswith("checkpoints/") or name == "config.yaml":
            faults += [("lost", f"{label}: {name} changed")] if path.read_bytes() != content else []
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text())
            except ValueError:
                faults.append(("half-written", f"{label}: {name}"))
    return faults
