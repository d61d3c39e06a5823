"""SIGKILL at random moments: of training, which must end in the same bits, and of every other command, run again after.

A process that is killed says nothing and cleans up nothing; all that may be lost is the work since the last checkpoint.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.material import Material, contents
from faults.results import Tally
from faults.running import Case, Crew, Fault, Outcome

TIMES = ("seconds", "images_per_second")
"""What differs between two runs of the same seed."""


def campaign(material: Material, crew: Crew, trainings: int, others: int, seed: int) -> Iterator[Tally]:
    rng = random.Random(f"{seed}/kills")
    yield _trainings(material, crew, "kills of training", trainings, 1, rng)
    two = max(1, trainings // 16)
    yield _trainings(material, crew, "kills of training with --devices 2", two, 2, rng)
    yield _other_commands(material, crew, others, rng)


def _words(material: Material, out: Path, devices: int) -> list[str]:
    return ["train", str(material.config), "--out", str(out), "--devices", str(devices)]


def _trainings(material: Material, crew: Crew, name: str, count: int, devices: int, rng: random.Random) -> Tally:
    """Killed once or twice, then resumed: the same weights, the same log, nothing left over."""
    tally = Tally(name)
    plain = crew.one(Case(name, lambda folder: _words(material, folder / "run", devices), (0,), 900))
    if plain.faults:
        tally.add(plain.faults)
        return tally
    reference, whole = plain.folder / "run", plain.took
    identical = 0

    def killed(moment: float) -> Case:
        return Case(
            f"{name} at {moment:.2f} s",
            lambda folder: _words(material, folder / "run", devices),
            (0,),
            900,
            kill_after=moment,
        )

    first = crew.run((killed(rng.uniform(0.02, 1.0) * whole) for _ in range(count)), keep=True)
    for outcome in list(first):
        faults = list(outcome.faults)
        run = outcome.folder / "run"
        if not faults:
            faults += _go_on(crew, material, run, devices, outcome)
        if not faults:
            faults += same_run(reference, run, outcome.case.label)
            identical += not faults
        tally.add(faults)
        shutil.rmtree(outcome.folder, ignore_errors=True)
    shutil.rmtree(plain.folder, ignore_errors=True)
    tally.note = f"{identical} of {count} end in the same bits"
    return tally


def _go_on(crew: Crew, material: Material, run: Path, devices: int, before: Outcome) -> list[Fault]:
    """What a person would do: resume; and where there is nothing to resume, start again in the same place."""
    begun = (run / "config.yaml").exists()
    words = ["train", "--resume", str(run)] if begun else _words(material, run, devices)
    outcome = crew.one(
        Case(f"{before.case.label}, {words[0]} {words[1]}", lambda folder: words, (0, 2), 900), keep=False
    )
    if outcome.faults or outcome.code == 0:
        return outcome.faults
    again = crew.one(
        Case(f"{before.case.label}, again", lambda folder: _words(material, run, devices), (0,), 900), keep=False
    )
    return [("lost", f"{before.case.label}: {outcome.said.strip()[-200:]}")] if begun else again.faults


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


def _other_commands(material: Material, crew: Crew, count: int, rng: random.Random) -> Tally:
    """Killed, then run again: it ends well, and no file of the run is broken in between or gone after."""
    tally = Tally("kills of other commands")
    commands: dict[str, Callable[[Path, Path], list[str]]] = {
        "evaluate": lambda run, out: ["evaluate", str(run), "--metrics", "accuracy,coverage", "--no-chance"],
        "report": lambda run, out: ["report", str(run), "--images", "1"],
        "explain": lambda run, out: ["explain", str(run), str(material.image), "--out", str(out)],
        "export": lambda run, out: ["export", str(run), "--format", "hub"],
        "masks": lambda run, out: ["masks", str(out.parent / "data"), "--quiet", "--refine", "none"],
        "chance": lambda run, out: ["chance", str(material.config), "--json", str(out), "--quiet", "--prototypes", "2"],
        "compare": lambda run, out: ["compare", str(run), "--out", str(out), "--no-chance"],
        "sweep": lambda run, out: ["sweep", str(material.config), "--grid", "model.heads=1,2", "--out", str(out)],
    }
    took = {}
    for name, words in commands.items():
        outcome = crew.one(Case(f"{name} to its end", _on_copy(material, words), (0,), 900), keep=False)
        tally.add(outcome.faults)
        took[name] = outcome.took
    names = [name for name in commands if took[name] < 60]
    chosen = [(names[number % len(names)], rng.uniform(0.02, 1.0)) for number in range(count)]
    cases = [
        Case(
            f"{name} killed at {share:.2f}",
            _on_copy(material, commands[name]),
            (0,),
            900,
            kill_after=share * took[name],
        )
        for name, share in chosen
    ]
    for outcome in list(crew.run(cases, keep=True)):
        name = outcome.case.label.split()[0]
        run, faults = outcome.folder / "run", list(outcome.faults)
        faults += _whole(run, material, outcome.case.label)
        if not faults:
            again = Case(
                f"{name} again after {outcome.case.label}",
                lambda folder, name=name, place=outcome.folder: commands[name](place / "run", place / "out"),
                (0,),
                900,
            )
            faults += crew.one(again, keep=False).faults
        faults += [] if faults else leftovers(outcome.folder, outcome.case.label)
        tally.add(faults)
        shutil.rmtree(outcome.folder, ignore_errors=True)
    return tally


def _on_copy(material: Material, words: Callable[[Path, Path], list[str]]) -> Callable[[Path], list[str]]:
    def work(folder: Path) -> list[str]:
        shutil.copytree(material.run, folder / "run")
        shutil.copytree(material.folder, folder / "data", ignore=shutil.ignore_patterns("masks"))
        return words(folder / "run", folder / "out")

    return work


def _whole(run: Path, material: Material, label: str) -> list[Fault]:
    """Every file that the run had is there and can be read, whatever the kill cut short."""
    if not (run / "checkpoints").exists() or len(contents(run)) < len(material.files()):
        return []  # killed while its folder was being copied
    faults: list[Fault] = []
    for name in material.files():
        path = run / name
        if name.startswith("report/"):
            continue  # replaced as a whole
        if not path.exists():
            faults.append(("lost", f"{label}: {name}"))
        elif path.suffix == ".json":
            try:
                json.loads(path.read_text())
            except ValueError:
                faults.append(("half-written", f"{label}: {name}"))
    return faults
