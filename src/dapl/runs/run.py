"""A run directory, the hand-over between commands: what is in it and where. Imports no torch.

config.yaml            the resolved config
environment.json       versions, seed, processor, threads
data.json              class and part names, number of images of each split
model.json             number of parameters, and what else is known of the model (PixPNet's receptive field)
checkpoints/           last.safetensors (with optimizer, for resuming), best.safetensors (by validation)
prototypes.json        where each prototype came from, kept or removed and why
prototypes.png         contact sheet
metrics.jsonl          one line per epoch and stage
tensorboard/           the same as curves
metrics.json           what `dapl evaluate` measured: the full result, and results of other protocols beside it
metrics/               the same by class and by part (CSV), and plots; prototypes.json says where each prototype looks;
                       <split>.json as a sweep or comparison measured it
interventions.json     what `dapl interventions` measured last; interventions/ holds its drawings
.lock                  while a process trains it: which one, where and since when
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dapl.common.errors import BrokenError, DaplError, MissingError, WriteError, said_by_system
from dapl.common.files import (
    append_line,
    expand_path,
    is_cache,
    is_leftover,
    refusing,
    remove,
    sweep_all,
    sync,
    write_json,
    write_text,
)
from dapl.common.locks import LOCK, locked
from dapl.common.reading import checked, read_as, read_json, read_text, refuse_links_out
from dapl.config import CacheConfig, Config, dump_config, load_config
from dapl.config.reading import read_yaml
from dapl.runs.provenance import machine, versions
from dapl.runs.schemas import (
    DataFile,
    EnvironmentFile,
    EvaluationFile,
    LogLine,
    PrototypeLook,
    PrototypesFile,
    looks_from_json,
)

_LINE = TypeAdapter(LogLine)
_WRITING_LOCK = ".writing.lock"
_RESULTS_LOCK = ".results.lock"


class Run:
    """Paths and small files of one run directory.

    >>> run = Run.open("runs/cub20")                      # doctest: +SKIP
    >>> run.config().model.system                         # doctest: +SKIP
    'dapl'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file = folder / "config.yaml"
        self.last = folder / "checkpoints" / "last.safetensors"
        self.best = folder / "checkpoints" / "best.safetensors"
        self.prototypes_file = folder / "prototypes.json"
        self.sheet_file = folder / "prototypes.png"
        self.metrics_file = folder / "metrics.jsonl"
        self.tensorboard = folder / "tensorboard"
        self.evaluation_file = folder / "metrics.json"
        self.evaluation_folder = folder / "metrics"
        self.looks_file = folder / "metrics" / "prototypes.json"
        self.interventions_file = folder / "interventions.json"
        self.interventions_folder = folder / "interventions"
        self.data_file = folder / "data.json"
        self.model_file = folder / "model.json"
        self.environment_file = folder / "environment.json"

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """A small table for a notebook; what the run has not got yet is left out."""
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self.summary().items()
        )
        return f"<table><caption>{escape(str(self.folder))}</caption>{rows}</table>"

    def summary(self) -> dict[str, str]:
        """What a person wants to know first: system, backbone, data, classes, prototypes and the latest numbers."""
        config = self.config()
        found = {"system": config.model.system, "backbone": config.model.backbone.name, "data": config.data.name}
        if self.data_file.is_file():
            found["classes"] = str(len(self.class_names()))
        if self.prototypes_file.is_file():
            kept = [record["kept"] for record in self.read_prototypes()]
            found["prototypes"] = f"{sum(kept)} of {len(kept)} kept"
        measured = [entry["validation"] for entry in self.logged() if entry.get("validation")]
        if measured:
            found["validation"] = f"accuracy {measured[-1]['accuracy']:.1%}"
        evaluation = self.evaluation()
        if evaluation:
            values = {name: evaluation["numbers"].get(name, {}) for name in ("accuracy", "coverage", "diversity")}
            shown = [
                f"{name} {number['value']:.3f}" for name, number in values.items() if number.get("value") is not None
            ]
            found[str(evaluation["protocol"].get("split", "test"))] = ", ".join(shown)
        return found

    @classmethod
    def create(cls, folder: Path, config: Config) -> Run:
        """A new run; a folder that already holds something else is refused."""
        run = cls(folder)
        run.check_free()
        write_text(run.config_file, dump_config(config))
        run.write_environment(config)
        return run

    def check_free(self) -> None:
        """Refuse a folder that holds a run or something else."""
        if self.config_file.exists():
            raise DaplError(
                f"{self.folder}: holds a run already; `dapl train --resume {self.folder}` goes on with it, "
                "--out names another folder."
            )
        if not self.is_free():
            raise DaplError(f"{self.folder}: exists and is not a run; name a new folder with --out.")

    def write_environment(self, config: Config) -> None:
        write_json(self.environment_file, _environment(config))

    def is_free(self) -> bool:
        """Whether nothing is there yet: a run can be made. What a process was killed over does not count."""
        try:
            if not self.folder.is_dir():
                return not self.folder.exists()
        except OSError as error:  # a name that is too long
            raise WriteError(said_by_system(error, self.folder, "cannot be made a folder")) from error
        return all(map(self.is_passing, os.listdir(self.folder)))

    @staticmethod
    def is_passing(name: str) -> bool:
        """Whether a file of this name is a lock or what a process was about to write: nothing of the run itself."""
        return name in (LOCK, _WRITING_LOCK, _RESULTS_LOCK) or is_leftover(name)

    def locked(self, doing: str, wait: float = 0.0) -> AbstractContextManager[None]:
        """Only one process at a time makes, trains or clears a run; ``doing`` is what another one is told."""
        return locked(self.folder / LOCK, doing, wait)

    def locked_for_writing(self) -> AbstractContextManager[None]:
        """For the process that writes checkpoints and log, where another one (``locked``) has started it.

        Should that one be killed, this one may still be at its last write when the run is resumed.
        """
        return locked(self.folder / _WRITING_LOCK, "training", wait=60)

    def locked_for_results(self) -> AbstractContextManager[None]:
        """While the numbers of an evaluation, its tables and plots are exchanged, which belong together."""
        return locked(self.folder / _RESULTS_LOCK, "writing numbers", wait=60)

    def clear(self) -> None:
        """Remove everything but the locks. Only who holds the run's lock may do so."""
        for name in os.listdir(self.folder):
            if name not in (LOCK, _WRITING_LOCK):
                remove(self.folder / name)

    @classmethod
    def open(cls, folder: Path | str | Run) -> Run:
        """The run of a directory, which must be one.

        >>> Run.open("runs/cub20").config().model.head_dim    # doctest: +SKIP
        16
        """
        run = folder if isinstance(folder, Run) else cls(Path(folder))
        if not run.config_file.is_file():
            raise DaplError(f"{run.folder}: not a run directory (it has no config.yaml); `dapl train` makes one.")
        refuse_links_out(run.folder, frozenset(path.name for path in vars(run).values()) | _FOLDERS)
        return run

    def config(self, overrides: dict[str, Any] | None = None) -> Config:
        """As the run was trained, with some fields overridden.

        Whoever made the run chose ``cache.folder``, and may be somebody else: unless the caller names it, only a folder
        is written to that was made a cache on this machine; the default takes the place of any other.
        """
        if "base" in read_yaml(self.config_file):
            raise BrokenError(f"{self.config_file}: base: the config of a run stands alone; take the line out.")
        config = load_config(self.config_file, overrides)
        if "cache.folder" in (overrides or {}) or "cache" in (overrides or {}):
            return config
        default = CacheConfig().folder
        with suppress(DaplError):  # a variable of another machine
            if config.cache.folder == default or is_cache(expand_path(config.cache.folder, "cache.folder")):
                return config
        return config.model_copy(update={"cache": config.cache.moved_to(default)})

    def class_names(self) -> list[str]:
        """Names in the order of the logits, as the run was trained."""
        return self._data().classes

    def image_counts(self) -> dict[str, int]:
        """Images of each split, as the run was trained."""
        return self._data().images

    def _data(self) -> DataFile:
        return read_as(self.data_file, DataFile, self._advice(self.data_file))

    def environment(self) -> dict[str, Any]:
        """Versions, seed and processor that the run was started with; {} where the file is gone."""
        try:
            found = read_json(self.environment_file, "delete it; nothing is computed from it")
        except MissingError:
            return {}
        checked(found, EnvironmentFile, self.environment_file, "delete it; nothing is computed from it")
        return found

    def model_facts(self) -> dict[str, Any]:
        """Number of parameters and what else the model said of itself; {} where the file is gone."""
        try:
            return read_as(self.model_file, dict[str, Any], "delete it; nothing is computed from it")
        except MissingError:
            return {}

    def log(self, entry: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        append_line(self.metrics_file, json.dumps(entry, ensure_ascii=False))

    def sync_log(self) -> None:
        """Before a checkpoint: a resume that starts from it counts on the lines of what came before."""
        if self.metrics_file.exists():
            with refusing(self.metrics_file):
                sync(self.metrics_file)

    def logged(self) -> list[dict[str, Any]]:
        """The lines so far; a line that is none, as a kill or a disk may leave it, is passed over."""
        entries = []
        try:
            text = read_text(self.metrics_file, "move it away; nothing is computed from it")
        except MissingError:
            return []
        for line in text.split("\n"):
            try:
                entry = json.loads(line)
                _LINE.validate_python(entry)
            except (ValueError, ValidationError, RecursionError):
                continue
            entries.append(entry)
        return entries

    def forget_log(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Before resuming: drop the lines of what is about to be done again."""
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in self.logged() if keep(entry)]
        if self.metrics_file.exists():
            write_text(self.metrics_file, "".join(lines))

    def sweep(self) -> None:
        """Before resuming: remove what a killed process was about to write."""
        sweep_all(self.folder)

    def evaluation(self) -> dict[str, Any]:
        """What `dapl evaluate` wrote into metrics.json; {} where the run was not evaluated."""
        try:
            return evaluation_in(self.evaluation_file, f"`dapl evaluate {self.folder}` writes it anew")
        except MissingError:
            return {}

    def looks(self) -> list[PrototypeLook]:
        """Where each prototype looks, as `dapl evaluate` measured it; [] where it did not."""
        try:
            return looks_from_json(read_json(self.looks_file, "measure anew"))
        except (MissingError, BrokenError, LookupError, TypeError):
            return []  # only names are lost, and `dapl evaluate` writes them anew

    def read_prototypes(self) -> list[dict[str, Any]]:
        """prototypes.json, each as a `PrototypeRecord` has it."""
        found = read_as(self.prototypes_file, PrototypesFile, self._advice(self.prototypes_file))
        return [asdict(record) for record in found.prototypes]

    def _advice(self, path: Path) -> str:
        if not path.exists():
            return f"the run was not finished, `dapl train --resume {self.folder}`"
        return "restore it from a copy or train anew"


def evaluation_in(path: Path, advice: str) -> dict[str, Any]:
    """An evaluation as `Evaluation.to_json` gave it, with all its fields, checked by `EvaluationFile`.

    >>> evaluation_in(Path("runs/cub20/metrics.json"), "measure anew")["numbers"]["accuracy"]["value"]  # doctest: +SKIP
    0.82
    """
    found = read_json(path, advice)
    checked(found, EvaluationFile, path, advice)
    protocol = found["protocol"]
    protocol["images"] = protocol.get("images", protocol.get("pictures", 0))  # the key of older runs
    return found


_FOLDERS = frozenset(("checkpoints", "report", "report.html", "export", "explanations", "marks.json"))
"""What else commands write into a run, beside the files that `Run` names."""


def open_run(run: Run | Path | str, config: Config | Mapping[str, Any] | None = None) -> tuple[Run, Config]:
    """A run and the config to read it with: its own, its own with some fields overridden, or another in its place.

    Another one may differ in data, caches and runtime only: model and classes are those of the run.

    >>> import tempfile
    >>> from dapl.config import load_config
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> _ = Run.create(folder, load_config())
    >>> run, config = open_run(folder, {"runtime.devices": 2})
    >>> run.config().runtime.devices, config.runtime.devices
    (1, 2)
    """
    run = Run.open(run)
    return run, config if isinstance(config, Config) else run.config(dict(config or {}))


def _environment(config: Config) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        **machine(),
        "seed": config.seed,
        "versions": versions(),
    }
