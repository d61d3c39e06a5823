"""``dapl train --from RUN --drop-marked``: a new run without the prototypes that a person marked as bad."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dapl.common.errors import DaplError
from dapl.config import Config, LastLayerStage, PruneStage, Stage
from dapl.runs.checkpoint import Checkpoint, Position, load_checkpoint, save_checkpoint
from dapl.runs.marks import to_drop
from dapl.runs.run import Run

_KEPT = "prototypes.kept"


def without_marked(folder: Path, out: Path, overrides: dict[str, Any] | None = None) -> Config:
    """Make the run ``out``: the best model of the run ``folder`` without what is marked, about to tune its last layer.

    All that is left is to go on with it: ``train(config, out, resume=True)``. The folder appears in one piece, so that
    a run that was killed never goes on with the prototypes that it was to lose.
    """
    source, target = Run.open(folder), Run(out)
    if not target.is_free():
        raise DaplError(f"{out}: exists already; name a new folder with --out.")
    config = _config(source, overrides or {})
    checkpoint = load_checkpoint(source.best)
    start = _without(checkpoint, to_drop(folder, checkpoint.facts["prototypes"]))
    making = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        made = Run.create(making, config)
        save_checkpoint(made.last, start)
        save_checkpoint(made.best, start)  # of a system without a last layer it is the result
        if out.exists():
            out.rmdir()  # empty, or it would not be free
        os.replace(making, out)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return config


def _config(source: Run, overrides: dict[str, Any]) -> Config:
    config = source.config(overrides)
    stages = [stage for stage in config.schedule if stage.stage == "last_layer"]
    stage: Stage = stages[-1] if stages else LastLayerStage()
    if config.model.system == "pixpnet":
        stage = PruneStage(threshold=0.0)  # plain sums, nothing to tune: what is left is only measured, none removed
    return config.model_copy(update={"schedule": [stage], "start": str(source.folder.resolve())})


def _without(checkpoint: Checkpoint, dropped: dict[int, str]) -> Checkpoint:
    kept = checkpoint.model[_KEPT].clone()
    kept[torch.tensor(list(dropped))] = False
    records = [
        record | {"kept": False, "reason": f"marked as bad: {dropped[record['index']]}".removesuffix(": ")}
        if record["index"] in dropped
        else record
        for record in checkpoint.facts["prototypes"]
    ]
    facts = checkpoint.facts | {"best": None, "epoch_sums": {}, "prototypes": records}
    return replace(checkpoint, position=Position(), model={**checkpoint.model, _KEPT: kept}, optimizer={}, facts=facts)
