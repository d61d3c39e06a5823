"""What a comparison and a sweep share: runs that are trained once, numbers that are measured once, mean ± deviation.

A process may be killed at any moment and started again: it goes on where it stood. Several may work in one folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapl.common.errors import BrokenError, DaplError, LockedError, MissingError
from dapl.common.files import write_json
from dapl.common.reading import checked, file_digest, read_json
from dapl.common.tables import Spread, mean_and_deviation
from dapl.config import Config
from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, code_digest, one_of
from dapl.metrics.registry import chosen
from dapl.runs.run import Run
from dapl.runs.schemas import KnownEvaluation

if TYPE_CHECKING:
    from dapl.batches.run_data import Split

_NOT_THE_RESULT = ("runtime", "cache")
"""Sections that say where and how fast, not what: a run may go on with others."""


def run_or_resume(config: Config, folder: Path, quiet: bool = False) -> Run:
    """The finished run of ``config`` in ``folder``: trained if there is none, gone on with if it was interrupted.

    A process that finds another one training the same run waits for it. A run of another config is refused.

    >>> run = run_or_resume(load_config(Path("configs/cub20.yaml")), Path("runs/cub20"))  # doctest: +SKIP
    >>> measured(run, "validation", "accuracy,coverage")["coverage"]  # doctest: +SKIP
    0.69
    """
    found = run_or_leave(config, folder, quiet, wait=math.inf)
    assert found is not None
    return found


def run_or_leave(config: Config, folder: Path, quiet: bool = False, wait: float = 0) -> Run | None:
    """The same, but None where another process is training the run, for ``wait`` seconds from now on.

    >>> run_or_leave(load_config(Path("configs/cub20.yaml")), Path("runs/cub20"))  # doctest: +SKIP
    """
    from dapl.training.trainer import train

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DaplError("many runs are not started by torchrun; start the command itself and give --devices.")
    if folder.exists() and not folder.is_dir():
        raise DaplError(f"{folder}: is a file; name another folder.")
    run = Run(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(run.locked("training", wait=wait))
        except LockedError:
            return None
        if run.config_file.is_file():
            refuse_other_config(folder, "run", run.config(), config, "Name another folder, or remove this one.")
        if is_finished(run):
            return run
        if not run.last.exists():
            _remove_beginnings(run)
        return train(config, folder, resume=run.last.exists(), quiet=quiet)


def is_being_trained(folder: Path) -> bool:
    """Whether another process has the run in this moment."""
    if not folder.is_dir():
        return False
    try:
        with Run(folder).locked("looking"):
            return False
    except LockedError:
        return True


def is_finished(run: Run) -> bool:
    """Whether every stage of the run's schedule is done."""
    from dapl.runs.checkpoint import load_checkpoint

    if not run.last.exists():
        return False
    return load_checkpoint(run.last).position.stage >= len(run.config().schedule)


def refuse_other_config(folder: Path, what: str, there: Config, here: Config, advice: str) -> None:
    """Refuses a folder that was made by another config, and says where the two differ."""
    found = differences(there, here)
    if found:
        more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
        raise DaplError(f"{folder}: holds a {what} of another config: {'; '.join(found[:5])}{more}. {advice}")


def differences(there: Config, here: Config) -> list[str]:
    """'field: there …, here …' for every field that decides a result and is not the same in both."""
    left, right = (flat_fields(config) for config in (there, here))
    absent = "absent"
    return [
        f"{name}: there {left.get(name, absent)}, here {right.get(name, absent)}"
        for name in dict.fromkeys((*left, *right))
        if left.get(name, absent) != right.get(name, absent)
    ]


def flat_fields(config: Config) -> dict[str, Any]:
    """Dotted name → value of the fields that decide a result."""
    found: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            value = dict(enumerate(value))
        if not isinstance(value, dict):
            found[prefix] = value
            return
        for key, inner in value.items():
            walk(f"{prefix}.{key}" if prefix else str(key), inner)

    walk("", config.model_dump(mode="json", exclude=set(_NOT_THE_RESULT)))
    return found


def _remove_beginnings(run: Run) -> None:
    """What a process left that was killed before its first checkpoint: there is nothing in it to go on with."""
    if not run.is_free() and not run.config_file.exists():  # the first file of a run
        strange = next(name for name in os.listdir(run.folder) if not run.is_passing(name))
        raise DaplError(f"{run.folder}: exists and is not a run (it has {strange}); name another folder.")
    run.clear()


# --- numbers --------------------------------------------------------------------------------------------------------


def measured(
    run: Run,
    split: Split = "validation",
    metrics: Sequence[str] | str | None = None,
    protocol: EvaluationProtocol | None = None,
    config: Config | None = None,
    quiet: bool = True,
) -> dict[str, float]:
    """Number of each metric that could be had; see `evaluation_of`."""
    numbers = evaluation_of(run, split, metrics, protocol, config, quiet)["numbers"]
    return {name: number["value"] for name, number in numbers.items() if number["value"] is not None}


def evaluation_of(
    run: Run,
    split: Split = "validation",
    metrics: Sequence[str] | str | None = None,
    protocol: EvaluationProtocol | None = None,
    config: Config | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """An evaluation as JSON has it; measured once, kept in metrics/<split>.json of the run.

    What `dapl evaluate` wrote there stays as it is. ``config`` replaces the run's own where only data, caches or
    runtime differ. Another checkpoint or protocol, or other code of metrics, is measured anew.

    >>> sorted(evaluation_of(Run.open("runs/cub20"), "test")["numbers"]["coverage"])  # doctest: +SKIP
    ['high', 'low', 'value']
    """
    one_of("split", split, SPLITS)
    names, file = chosen(metrics), run.evaluation_folder / f"{split}.json"
    config = config or run.config()
    protocol = protocol or EvaluationProtocol(tau=config.data.tau)
    key = {
        "protocol": protocol.to_json(),
        "checkpoint": _digest(run.best),
        "code": code_digest(),
    }
    known = _known(file, key)
    if known is None or not names <= set(known["metrics"]):
        wanted = sorted(names | set(known["metrics"])) if known else sorted(names)
        from dapl.evaluation import evaluate

        result = evaluate(run.folder, protocol, split, wanted, config, quiet, files=False, chance=False)
        known = {"key": key, "metrics": wanted, "evaluation": result.to_json()}
        write_json(file, known)
    return known["evaluation"]


def _known(file: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """An earlier measurement of the same model under the same protocol; None where there is none that can be read."""
    try:
        found = read_json(file, "")
        checked(found, KnownEvaluation, file, "")
    except (MissingError, BrokenError):
        return None
    return found if found["key"] == key else None


def _digest(file: Path) -> str:
    if not file.exists():
        raise DaplError(f"{file}: no such checkpoint; the run is not finished, `dapl train --resume RUN`.")
    return file_digest(file)


def over_seeds(found: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of each number that every seed has."""
    names = [name for name in (found[0] if found else ()) if all(name in numbers for numbers in found)]
    return {name: mean_and_deviation([numbers[name] for numbers in found]) for name in names}
