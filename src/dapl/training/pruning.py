"""Prototypes that are taken away: by pruning (decision 7, and ProtoPNet's rule), by ProtoPShare's merging, and by hand.

Pruning removes prototypes that look at background, or whose nearest patches are of other classes. Merging makes one
prototype, of all their classes, of those that answer alike on the training images. What a person marked as bad is left
out of a new run by ``dapl train --from RUN --drop-marked`` (`without_marked`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapl.batches.sources import Batch, features_of, grid_masks
from dapl.common.errors import DaplError
from dapl.common.files import replacing_folder
from dapl.config import Config, LastLayerStage, PruneStage, Stage
from dapl.metrics.functional import background_bias, region_background_share
from dapl.metrics.functional.regions import model_regions
from dapl.models.contract import PrototypeModel
from dapl.processes.interface import Processes
from dapl.runs.checkpoint import Checkpoint, Position, load_checkpoint, save_checkpoint
from dapl.runs.marks import to_drop
from dapl.runs.run import Run
from dapl.runs.schemas import PrototypeRecord

MasksOf = Callable[[Tensor], Tensor]
"""Foreground masks in pixels of the images at some indices: uint8 B×S×S."""


@torch.no_grad()
def foreground_shares(
    model: PrototypeModel,
    batches: Iterable[Batch],
    masks_of: MasksOf,
    processes: Processes,
    bias_of: str = "region",
    percentile: float = 95.0,
) -> Tensor:
    """1 − B̄ of each prototype over the images of its class in which it has a region: P, nan where there is none.

    ``region``: share of the activation region's pixels; ``map``: of the raw map, the literal B of equation 5.
    """
    model.eval()
    sums = torch.zeros(len(model.prototypes), dtype=torch.double, device=processes.device)
    counts = torch.zeros_like(sums)
    for batch in batches:
        masks = masks_of(batch.indices).to(processes.device)
        batch = batch.to(processes.device)
        with processes.autocast():
            embedding = model.embed(features_of(model, batch)).float()
        named, counted = model.prototypes_of(batch.labels)  # B×M
        maps = model.maps(embedding, named)
        if bias_of == "map":
            bias = background_bias(maps, grid_masks(masks, maps.shape[-2:]))
        else:
            bias = region_background_share(model_regions(model, maps, masks.shape[-1], percentile), masks.bool())
        counted = counted & ~bias.isnan()  # a flat map, or one that is 0 everywhere, lies nowhere
        sums.index_add_(0, named[counted], 1 - bias[counted].double())
        counts.index_add_(0, named[counted], torch.ones_like(bias[counted], dtype=torch.double))
    return (processes.sum(sums) / processes.sum(counts)).float()  # 0/0 is nan: no evidence


@torch.no_grad()
def own_among_nearest(
    batches: Iterable[tuple[Tensor, Tensor]], own_of: Callable[[Tensor], Tensor], nearest: int
) -> Tensor:
    """How many of the k training images nearest to a prototype are of its classes, long P.

    batches: (B×P, the distance to the nearest patch of each image, and B labels); ``own_of`` (`Prototypes.of_images`)
    says from labels which prototypes are of the class of each image, bool B×P. Of images that are equally far, the
    first ones count. Only the k best are kept from batch to batch.
    """
    best: tuple[Tensor, Tensor] | None = None
    for distances, labels in batches:
        own = own_of(labels)
        if best is not None:
            distances, own = torch.cat((best[0], distances)), torch.cat((best[1], own))
        order = distances.argsort(dim=0, stable=True)[:nearest]
        best = distances.gather(0, order), own.gather(0, order)
    if best is None:
        raise DaplError("there are no training images to compare the prototypes with.")
    return best[1].sum(0)


@torch.no_grad()
def prune(model: PrototypeModel, shares: Tensor, threshold: float) -> Tensor:
    """Remove what has a share below the threshold; returns bool P, what was removed now.

    A prototype without evidence (nan) stays, and a class never loses its last prototype: its best one stays.
    """
    prototypes = model.prototypes
    before = prototypes.kept.clone()
    kept = before & ~(shares < threshold)
    shares = torch.where(before, shares.nan_to_num(nan=1.0), -torch.inf)
    table, own = prototypes.counted(before)
    lost = own.any(1) & ~(own & kept[table]).any(1)
    best = torch.where(own, shares[table], -torch.inf).argmax(1)
    kept[table[lost, best[lost]]] = True
    prototypes.kept.copy_(kept)
    return before & ~kept


Plan = list[tuple[int, list[int]]]
"""(the prototype that stays, those that become it)."""


def plan_merge(responses: Iterable[Tensor], kept: Tensor, share: float) -> Plan:
    """Which prototypes become one. responses: B×P in batches, the squared distance of every training image's nearest
    patch; one batch at a time is in memory, beside a number for each pair of prototypes.

    Two prototypes are as far apart as their columns are: Σ_x (r_xp − r_xq)². A pair may merge when that is at most the
    k-th smallest distance of a prototype to its nearest neighbour, k = share of those that are kept. Greedy, in the
    order of their numbers: each takes in all that are near enough and still there.
    """
    alive = kept.nonzero().flatten()
    if len(alive) < 2:
        return []
    squares = torch.zeros(len(alive), len(alive), dtype=torch.double)
    for rows in responses:
        columns = rows[:, alive.cpu()].T.double()
        squares += torch.cdist(columns, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    squares.fill_diagonal_(torch.inf)
    number = max(1, round(share * len(alive)))
    near = squares <= squares.amin(1).sort().values[number - 1]
    gone = torch.zeros(len(alive), dtype=torch.bool)
    plan: Plan = []
    for i in range(len(alive)):
        if gone[i]:
            continue
        taken = near[i] & ~gone
        taken[: i + 1] = False  # one before i that is near would have taken i in
        if taken.any():
            gone |= taken
            plan.append((int(alive[i]), alive[taken.to(alive.device)].tolist()))
    return plan


@torch.no_grad()
def merge(model: PrototypeModel, records: Sequence[PrototypeRecord], plan: Plan) -> None:
    """Weights are summed, classes united; what was merged is removed, not renumbered."""
    for stays, others in plan:
        model.absorb(stays, others)
        classes = [name for index in (stays, *others) for name in records[index].classes]
        records[stays].classes = sorted(dict.fromkeys(classes))
        for index in others:
            records[index].kept = False
            records[index].reason = f"merged into prototype {stays}"


_KEPT = "prototypes.kept"


def without_marked(folder: Path, out: Path, overrides: dict[str, Any] | None = None) -> Config:
    """Make the run ``out``: the best model of the run ``folder`` without what is marked, about to tune its last layer.

    All that is left is to go on with it: ``train(config, out, resume=True)``. The folder appears in one piece, so that
    a run that was killed never goes on with the prototypes that it was to lose.
    """
    source = Run.open(folder)
    _check_free(out)
    config = _config_to_tune(source, overrides or {})
    checkpoint = load_checkpoint(source.best)
    start = _without_dropped(checkpoint, to_drop(folder, checkpoint.facts["prototypes"]))
    with replacing_folder(out, _check_free) as new:
        made = Run.create(new, config)
        save_checkpoint(made.last, start)
        save_checkpoint(made.best, start)  # of a system without a last layer it is the result
    return config


def _check_free(out: Path) -> None:
    if not Run(out).is_free():
        raise DaplError(f"{out}: exists already; name a new folder with --out.")


def _config_to_tune(source: Run, overrides: dict[str, Any]) -> Config:
    config = source.config(overrides)
    stages = [stage for stage in config.schedule if stage.stage == "last_layer"]
    stage: Stage = stages[-1] if stages else LastLayerStage()
    if config.model.system == "pixpnet":
        stage = PruneStage(threshold=0.0)  # plain sums, nothing to tune: what is left is only measured, none removed
    return config.model_copy(update={"schedule": [stage], "start": str(source.folder.resolve())})


def _without_dropped(checkpoint: Checkpoint, dropped: dict[int, str]) -> Checkpoint:
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
