"""Folders made by somebody else: nothing of them runs, leads out of them, or is written to elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from faults.inputs import command
from faults.material import Material, contents, picture
from faults.results import Tally
from faults.running import Case, Crew, Fault, Outcome

SECRET = "the-secret-outside"
SCRIPT = "<script>alert('pwned')</script>"
_COMMANDS = ("explain", "evaluate", "report", "export", "resume")


def campaign(material: Material, crew: Crew) -> Tally:
    tally = Tally("hostile folders")
    for outcome in crew.run(_cases(material)):
        tally.add(outcome.faults, outcome.refused)
    return tally


def _cases(material: Material) -> Iterator[Case]:
    tricks: dict[str, Callable[[Path, Path], None]] = {
        "links": _links,
        "cache elsewhere": _cache_elsewhere,
        "names that are scripts": _scripts,
        "a link in place of a folder": _linked_folders,
        "marks elsewhere": lambda run, outside: (run / "marks.json").symlink_to(outside / "secret.json"),
    }
    for trick, play in tricks.items():
        for name in _COMMANDS:

            def work(folder: Path, play: Callable[[Path, Path], None] = play, name: str = name) -> list[str]:
                shutil.copytree(material.run, folder / "run")
                outside = folder / "outside"
                outside.mkdir()
                (outside / "secret.json").write_text(json.dumps({"format": SECRET}))
                picture(5).save(outside / "secret.png")
                play(folder / "run", outside)
                return command(name, folder / "run", material, folder / "out")

            yield Case(f"{name}, {trick}", work, (0, 2), 180, check=_stayed_inside)


def _links(run: Path, outside: Path) -> None:
    """Every small file of the run is a link to the secret."""
    for path in (run / "data.json", run / "prototypes.json", run / "metrics.json", run / "environment.json"):
        path.unlink(missing_ok=True)
        path.symlink_to(outside / "secret.json")


def _linked_folders(run: Path, outside: Path) -> None:
    for name in ("report", "export", "metrics", "explanations", "tensorboard"):
        shutil.rmtree(run / name, ignore_errors=True)
        (run / name).symlink_to(outside)


def _cache_elsewhere(run: Path, outside: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["cache"]["folder"] = str(outside / "cache")
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def _scripts(run: Path, outside: Path) -> None:
    data = json.loads((run / "data.json").read_text())
    data["classes"] = [f"{SCRIPT}{number}" for number, _ in enumerate(data["classes"])]
    (run / "data.json").write_text(json.dumps(data))


def _stayed_inside(outcome: Outcome) -> list[Fault]:
    """Nothing new outside of the run and of what was asked for, the secret nowhere else, and no script in a page."""
    faults: list[Fault] = []
    known = {"secret.json", "secret.png"}
    new = sorted(set(contents(outcome.folder / "outside")) - known)
    if new:
        faults.append(("wrote outside", f"{outcome.case.label}: {new[:3]}"))
    for path in outcome.folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or "outside" in path.parts:
            continue
        content = path.read_bytes()
        if SECRET.encode() in content:
            faults.append(("lost", f"{outcome.case.label}: {path.name} holds what lies outside"))
        if path.suffix in (".html", ".md") and b"<script>alert('pwned')" in content:
            faults.append(("wrote outside", f"{outcome.case.label}: {path.name} holds a script"))
    return faults
