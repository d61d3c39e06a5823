"""What the page shows of a whole split beside metrics.json: who is taken for whom, and where each prototype looks.

The regions, parts and shares are those of `dapl.evaluation`, so that the matrices here and the numbers there agree. One
pass over the split, on the features that `dapl evaluate` left in the cache where it did; the sums are kept in the run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from dapl.batches.run_data import RunData, Split
from dapl.common.files import write_json
from dapl.common.progress import Reporter
from dapl.evaluation.ground_truth import SplitGroundTruth
from dapl.evaluation.passes import measure_split
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.metrics.functional import assign
from dapl.models.contract import PrototypeModel
from dapl.runs.loading import LoadedRun

_VERSION = 1  # raise when the same key would give other sums


class SplitSums:
    """Sums over the images of each class. C classes, M prototypes per class at most, K parts."""

    def __init__(self, classes: int, prototypes: int, parts: int) -> None:
        self.confusion = torch.zeros(classes, classes)
        """C×C: images of class i that were taken for class j."""
        self.foreground = torch.zeros(classes, prototypes)
        """C×M: Σ share of the region that lies on the object, and over how many images (``seen``)."""
        self.seen = torch.zeros(classes, prototypes)
        self.on_part = torch.zeros(classes, prototypes, parts)
        """C×M×K: images in which the prototype is on the part, and in how many it could be (``part_seen``)."""
        self.part_seen = torch.zeros(classes, prototypes, parts)
        self.iou = torch.zeros(classes, prototypes, prototypes)
        """C×M×M: Σ IoU of the regions of two prototypes, and over how many images (``pairs``)."""
        self.pairs = torch.zeros(classes, prototypes, prototypes)

    def foreground_shares(self) -> Tensor:
        """C×M, NaN where there is none."""
        return self.foreground / self.seen

    def part_shares(self) -> Tensor:
        """C×M×K: how often a prototype is on a part where that can be seen."""
        return self.on_part / self.part_seen

    def overlaps(self) -> Tensor:
        """C×M×M: mean IoU of two prototypes of a class; NaN on the diagonal."""
        return _without_diagonal(self.iou / self.pairs)

    def heads_on_parts(self) -> Tensor:
        """K×M over all classes, as the evaluation draws it."""
        return (self.on_part.sum(0) / self.part_seen.sum(0)).T

    def heads_overlap(self) -> Tensor:
        """M×M over all classes; NaN on the diagonal."""
        return _without_diagonal(self.iou.sum(0) / self.pairs.sum(0))


def _add_split(
    sums: SplitSums,
    model: PrototypeModel,
    run_data: RunData,
    split: Split,
    protocol: EvaluationProtocol,
    reporter: Reporter,
) -> None:
    """Every image of the split, once: the pass of `dapl evaluate`, added up by class."""
    names = {"accuracy", "diversity", "region_background_share"} if len(model.prototypes) else {"accuracy"}
    truth = SplitGroundTruth(run_data, split, protocol, with_parts=len(model.prototypes) > 0)
    rows = measure_split(model, truth, names, reporter, doing="looking over")
    labels = torch.tensor(list(run_data.dataset(split).labels))
    sums.confusion.index_put_((labels, rows["predicted"]), torch.ones(len(labels)), accumulate=True)
    if "ious" in rows:
        kept = rows["kept"]
        both = (kept.unsqueeze(2) & kept.unsqueeze(1)).float()
        sums.iou.index_add_(0, labels, rows["ious"] * both)
        sums.pairs.index_add_(0, labels, both)
    if "region_share" in rows:
        shares = rows["region_share"]
        sums.foreground.index_add_(0, labels, (1 - shares).nan_to_num(0.0))
        sums.seen.index_add_(0, labels, (~shares.isnan()).float())
    if "overlap" in rows:
        visible = rows["visible"]
        assigned = assign(rows["overlap"], protocol.tau, visible, rows["kept"])
        sums.on_part.index_add_(0, labels, assigned.float())
        sums.part_seen.index_add_(0, labels, (visible.unsqueeze(1) & rows["kept"].unsqueeze(2)).float())


def cached_sums(
    loaded: LoadedRun, run_data: RunData, split: Split, protocol: EvaluationProtocol, reporter: Reporter
) -> SplitSums:
    """The sums of a run, or those of before where model, data and protocol are still the same."""
    model, file = loaded.model, loaded.run.evaluation_folder / "split_sums.json"
    key = _key(loaded.run.best, run_data, split, protocol)
    sums = SplitSums(model.classes, model.prototypes.by_class()[0].shape[1], len(run_data.dataset(split).parts))
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["key"] == key:
            before = {name: torch.tensor(values[name]).float().view_as(zeros) for name, zeros in vars(sums).items()}
            vars(sums).update(before)
            return sums
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        pass  # not there, or not what we write: it is only a shortcut
    _add_split(sums, model, run_data, split, protocol, reporter)
    write_json(file, {"key": key} | {name: values.tolist() for name, values in vars(sums).items()})
    return sums


def _key(checkpoint: Path, run_data: RunData, split: Split, protocol: EvaluationProtocol) -> str:
    dataset, data = run_data.dataset(split), run_data.config.data
    facts = (_VERSION, asdict(protocol), split, dataset.fingerprint, list(dataset.names), data.image_size, data.fit)
    hashed = hashlib.blake2b(repr(facts).encode(), digest_size=12)
    hashed.update(checkpoint.read_bytes())
    return hashed.hexdigest()


def _without_diagonal(values: Tensor) -> Tensor:
    own = torch.eye(values.shape[-1], dtype=torch.bool)
    return values.masked_fill(own, torch.nan)
