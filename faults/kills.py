"""SIGKILL at random moments: of training, which must end in the same bits, and of every other command, run again after.

A process that is killed says nothing and cleans up nothing; all that may be lost is the work since the last checkpoint.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.material import Material, contents
from faults.results import Tally
from faults.running import Case, Crew, Fault, Outcome

TIMES = ("seconds", "images_per_second")
"""What differs between two runs of the same seed."""


def _words(material: Material, out: Path, devices: int) -> list[str]:
    return ["train", str(material.config), "--out", str(out), "--devices", str(devices)]


def trainings(material: Material, crew: Crew, count: int, seed: int, devices: int = 1) -> Tally:
    """Killed, then resumed: the same weights, the same log, nothing left over."""
    name = "kills of training" + (f" with --devices {devices}" if devices > 1 else "")
    tally, rng = Tally(name), random.Random(f"{seed}/{name}")
    plain = crew.one(Case(name, lambda folder: _words(material, folder / "run", devices), (0,), 900))
    if plain.faults:
        tally.add(plain.faults)
        return tally

    def killed(moment: float) -> Case:
        words = lambda folder: _words(material, folder / "run", devices)  # noqa: E731
        return Case(f"{name} at {moment:.2f} s", words, (0,), 900, kill_after=moment)

    def resumed(killed: Outcome) -> Case:
        """What a person would do: resume; and where there is nothing to resume, start again in the same place."""
        run = killed.folder / "run"
        begun = (run / "config.yaml").exists()
        words = ["train", "--resume", str(run)] if begun else _words(material, run, devices)
        label = f"{killed.case.label}, {'resumed' if begun else 'begun again'}"
        return Case(label, lambda folder: words, (0,), 900, lambda done: same_run(plain.folder / "run", run, label))

    cases = (killed(rng.uniform(0.02, 1.0) * plain.took) for _ in range(count))
    first = list(crew.run(cases, keep=True))
    for outcome in first:
        tally.add(outcome.faults, cases=0)
    for outcome in crew.run(resumed(one) for one in first if not one.faults):
        tally.add(outcome.faults)
    for outcome in (plain, *first):
        shutil.rmtree(outcome.folder, ignore_errors=True)
    identical = tally.cases - len(tally.examples)
    ended = sum(outcome.code == 0 for outcome in first)
    tally.note = f"{identical} of {count} end in the same bits" + (f"; {ended} were through before" if ended else "")
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


def other_commands(material: Material, crew: Crew, count: int, seed: int) -> Tally:
    """Killed, then run again: it ends well, and no file of the run is broken in between or gone after."""
    tally, rng = Tally("kills of other commands"), random.Random(f"{seed}/commands")
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

    def again(killed: Outcome) -> Case:
        words = commands[killed.case.label.split()[0]](killed.folder / "run", killed.folder / "out")
        label = f"{killed.case.label}, again"
        return Case(label, lambda folder: words, (0,), 900, lambda done: leftovers(killed.folder, label))

    first = list(crew.run(cases, keep=True))
    for outcome in first:
        outcome.faults += _whole(outcome.folder / "run", material, outcome.case.label)
        tally.add(outcome.faults, cases=0)
    for outcome in crew.run(again(one) for one in first if not one.faults):
        tally.add(outcome.faults)
    for outcome in first:
        shutil.rmtree(outcome.folder, ignore_errors=True)
    tally.note = f"each of {', '.join(names)}"
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
