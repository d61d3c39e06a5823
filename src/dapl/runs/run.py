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
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError
from dapl.common.files import write_json, write_text
from dapl.config import Config, dump_config, load_config
from dapl.runs.looks import PrototypeLook, looks_from_json
from dapl.runs.provenance import machine, versions


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
        if run.config_file.exists():
            raise DaplError(
                f"{folder}: holds a run already; `dapl train --resume {folder}` goes on with it, "
                "--out names another folder."
            )
        if not run.is_free():
            raise DaplError(f"{folder}: exists and is not a run; name a new folder with --out.")
        write_text(run.config_file, dump_config(config))
        write_json(run.environment_file, _environment(config))
        return run

    def is_free(self) -> bool:
        """Whether nothing is there yet: a run can be made."""
        return not self.folder.exists() or (self.folder.is_dir() and not any(self.folder.iterdir()))

    @classmethod
    def open(cls, folder: Path | str | Run) -> Run:
        """The run of a directory, which must be one.

        >>> Run.open("runs/cub20").config().model.head_dim    # doctest: +SKIP
        16
        """
        run = folder if isinstance(folder, Run) else cls(Path(folder))
        if not run.config_file.is_file():
            raise DaplError(f"{run.folder}: not a run directory (it has no config.yaml); `dapl train` makes one.")
        return run

    def config(self, overrides: dict[str, Any] | None = None) -> Config:
        return load_config(self.config_file, overrides)

    def class_names(self) -> list[str]:
        """Names in the order of the logits, as the run was trained."""
        return [str(name) for name in self._read_list(self.data_file, "classes")]

    def image_counts(self) -> dict[str, int]:
        """Images of each split, as the run was trained."""
        data = self._read_json(self.data_file)
        return data.get("images") or data.get("pictures", {})  # the key of older runs

    def environment(self) -> dict[str, Any]:
        """Versions, seed and processor that the run was started with; {} where the file is gone."""
        return self._read_json(self.environment_file) if self.environment_file.is_file() else {}

    def log(self, entry: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def logged(self) -> list[dict[str, Any]]:
        """The lines so far; a last line that a kill cut short is left out."""
        if not self.metrics_file.exists():
            return []
        entries = []
        for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
        return entries

    def forget_log(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Before resuming: drop the lines of what is about to be done again."""
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in self.logged() if keep(entry)]
        if self.metrics_file.exists():
            write_text(self.metrics_file, "".join(lines))

    def sweep(self) -> None:
        """Before resuming: remove what a killed process was about to write."""
        for path in self.folder.rglob(".*.tmp"):
            path.unlink(missing_ok=True)

    def evaluation(self) -> dict[str, Any]:
        """What `dapl evaluate` wrote into metrics.json; {} where the run was not evaluated."""
        try:
            found = json.loads(self.evaluation_file.read_text(encoding="utf-8"))
            protocol, _ = found["protocol"], found["numbers"]
            protocol["images"] = protocol.get("images", protocol.get("pictures", 0))  # the key of older runs
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DaplError(f"{self.evaluation_file}: broken; `dapl evaluate {self.folder}` writes it anew.") from error
        return found

    def looks(self) -> list[PrototypeLook]:
        """Where each prototype looks, as `dapl evaluate` measured it; [] where it did not."""
        try:
            return looks_from_json(json.loads(self.looks_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, LookupError, TypeError):
            return []  # only names are lost, and `dapl evaluate` writes them anew

    def read_prototypes(self) -> list[dict[str, Any]]:
        return self._read_list(self.prototypes_file, "prototypes")

    def _read_list(self, path: Path, field: str) -> list[Any]:
        values = self._read_json(path)
        if not isinstance(values, dict) or not isinstance(values.get(field), list):
            raise DaplError(f"{path}: has no list '{field}'; restore it from a copy or train anew.")
        return values[field]

    def _read_json(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DaplError(
                f"{path}: missing; the run was not finished, `dapl train --resume {self.folder}`."
            ) from error
        except ValueError as error:
            raise DaplError(f"{path}: not JSON ({error}); restore it from a copy or train anew.") from error


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
