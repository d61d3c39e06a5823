"""``dapl train --from RUN --drop-marked``: a new run without the prototypes that a person marked as bad."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dapl.common.errors import DaplError
from dapl.common.files import replacing_folder
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
    source = Run.open(folder)
    _check_free(out)
    config = _config(source, overrides or {})
    checkpoint = load_checkpoint(source.best)
    start = _without(checkpoint, to_drop(folder, checkpoint.facts["prototypes"]))
    with replacing_folder(out, _check_free) as new:
        made = Run.create(new, config)
        save_checkpoint(made.last, start)
        save_checkpoint(made.best, start)  # of a system without a last layer it is the result
    return config


def _check_free(out: Path) -> None:
    if not Run(out).is_free():
        raise DaplError(f"{out}: exists already; name a new folder with --out.")


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
