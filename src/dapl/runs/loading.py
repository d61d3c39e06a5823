"""Open a finished run: its model, ready to predict, and what is known of its prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.models.build import build_model
from dapl.models.contract import PrototypeModel
from dapl.models.weights import first_not_finite
from dapl.runs.checkpoint import load_checkpoint, records_of, restore_model
from dapl.runs.run import Run, open_run
from dapl.runs.schemas import PrototypeRecord


@dataclass(frozen=True)
class LoadedRun:
    """A finished run in memory.

    >>> load_run("runs/birds")                            # doctest: +SKIP
    LoadedRun('runs/birds', Dapl: 10 classes, 100 prototypes, 2 of them removed)
    """

    run: Run
    config: Config
    model: PrototypeModel
    """In evaluation mode, on the CPU."""
    classes: list[str]
    """Names in the order of the logits."""
    records: list[PrototypeRecord]
    """Where each prototype came from, by its number."""

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.run.folder)!r}, {type(self.model).__name__}: {self.model.extra_repr()})"


def load_run(run: Run | Path | str, which: Literal["best", "last"] = "best", config: Config | None = None) -> LoadedRun:
    """Open a run with its config, its model and what is known of its prototypes.

    ``config`` replaces the run's own where only data or runtime differ.

    >>> load_run("runs/cub20").model    # doctest: +SKIP
    """
    run, config = open_run(run, config)
    file = run.best if which == "best" else run.last
    checkpoint = load_checkpoint(file)
    classes = run.class_names()
    model = build_model(config.model, len(classes), pretrained=False)
    restore_model(model, checkpoint.model, file)
    if (broken := first_not_finite(checkpoint.model)) is not None:
        raise DaplError(
            f"{file}: {broken} has values that are not finite, so that the model says nothing; train anew with a lower "
            "learning rate, or restore it from a copy."
        )
    records = records_of(checkpoint, model, file)
    return LoadedRun(run, config, model.eval().requires_grad_(False), classes, records)
