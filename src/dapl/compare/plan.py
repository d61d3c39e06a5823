"""What a comparison consists of: rows, each one system with its runs, one a seed. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapl.config import Config, load_config
from dapl.errors import DaplError
from dapl.experiments import differences
from dapl.run import Run


@dataclass(frozen=True)
class Planned:
    """One run of a row."""

    folder: Path
    config: Config
    made: bool = False
    """It was named as a run and is taken as it is; else it is trained where it is missing."""


@dataclass
class Entry:
    """One row of the table: a config, and its runs by seed."""

    name: str
    runs: list[Planned] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return self.runs[0].config


def plan(sources: Sequence[Path], out: Path, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[Entry]:
    """Rows in the order of the arguments. Runs whose configs differ in the seed alone are one row.

    A config whose ``start`` names another config of the comparison (by its file name without ending) starts from that
    one's run of the same seed.
    """
    if not sources:
        raise DaplError("dapl compare needs runs or configs, e.g. `dapl compare configs/cub20/*.yaml`.")
    entries: list[Entry] = []
    stems = [path.stem for path in sources if not path.is_dir()]
    for stem in stems:
        if stems.count(stem) > 1:
            raise DaplError(f"two configs are called {stem}, and their runs would be one; rename one of the files.")
    for path in sources:
        if path.is_dir():
            _add_run(entries, path)
        else:
            runs = [_of_config(path, out, seed, stems, overrides) for seed in seeds]
            entries.append(Entry(path.stem, runs))
    check_same_data(entries)
    return entries


def _add_run(entries: list[Entry], folder: Path) -> None:
    config = Run.open(folder).config()
    planned = Planned(folder, config, made=True)
    for entry in entries:
        if not differences(entry.config.model_copy(update={"seed": config.seed}), config):
            entry.runs.append(planned)
            return
    entries.append(Entry(folder.name, [planned]))


def _of_config(path: Path, out: Path, seed: int, stems: Sequence[str], overrides: Mapping[str, Any]) -> Planned:
    config = load_config(path, {**overrides, "seed": seed})
    if config.start is not None and config.start in stems:
        if config.start == path.stem:
            raise DaplError(f"{path}: start: names this config itself.")
        config = config.model_copy(update={"start": str(run_folder(out, config.start, seed))})
    return Planned(run_folder(out, path.stem, seed), config)


def run_folder(out: Path, name: str, seed: int) -> Path:
    return out / "runs" / f"{name}-seed{seed}"


def in_order(entries: Sequence[Entry]) -> list[Planned]:
    """Every run, those that others start from before these."""
    waiting = [planned for entry in entries for planned in entry.runs]
    ordered: list[Planned] = []
    folders = {str(planned.folder) for planned in waiting}
    while waiting:
        done = {str(planned.folder) for planned in ordered}
        ready = [p for p in waiting if p.config.start not in folders or p.config.start in done]
        if not ready:
            raise DaplError(f"start: {waiting[0].folder.name} and what it starts from wait for each other.")
        ordered += ready
        waiting = [planned for planned in waiting if planned not in ready]
    return ordered


def check_same_data(entries: Sequence[Entry]) -> None:
    """Numbers on different pictures cannot stand in one table."""
    first = entries[0].config.data.model_dump(mode="json")
    for entry in entries[1:]:
        other = entry.config.data.model_dump(mode="json")
        for name in dict.fromkeys((*first, *other)):
            if first.get(name) != other.get(name) and name not in ("image_size", "fit"):
                raise DaplError(
                    f"{entry.name} is on other data than {entries[0].name}: data.{name} is {other.get(name)} there and "
                    f"{first.get(name)} here; a table needs the same pictures."
                )
