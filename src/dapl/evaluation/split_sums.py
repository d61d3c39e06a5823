"""What is known of a whole split beside its numbers: who is taken for whom, and where each prototype looks.

The sums come from the rows that an evaluation leaves behind, so that matrices, names of parts and numbers agree; of
heads that see crops they are of the regions as pictures draw them (`dapl.metrics.functional.regions.shown_regions`).
They are kept in the run; where they are missing, or of another model, one more pass over the split makes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from dapl.batches.pixels import AnnotationReader, base_rows
from dapl.batches.run_data import RunData, Split
from dapl.common.errors import BrokenError, MissingError, WriteError
from dapl.common.files import write_json
from dapl.common.progress import Reporter
from dapl.common.reading import file_digest, read_json
from dapl.data.sample import Dataset
from dapl.evaluation.ground_truth import SplitGroundTruth, part_facts, part_mode
from dapl.evaluation.measurements import Rows
from dapl.evaluation.passes import measure_split
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.metrics.functional import assign
from dapl.metrics.naming import SAME_FROM
from dapl.models.contract import PrototypeModel
from dapl.runs.loading import LoadedRun
from dapl.runs.schemas import PrototypeLook, looks_to_json

_VERSION = 4  # raise when the same key would give other sums


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
        self.shared = torch.zeros(classes, prototypes, parts)
        """C×M×K: Σ share of the image that region and part have in common, over the images of ``part_seen``."""
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

    def heads_shared(self) -> Tensor:
        """K×M over all classes: mean share of the image that the regions of a head and a part have in common."""
        return (self.shared.sum(0) / self.part_seen.sum(0)).T

    def heads_overlap(self) -> Tensor:
        """M×M over all classes; NaN on the diagonal."""
        return _without_diagonal(self.iou.sum(0) / self.pairs.sum(0))


def sums_of(model: PrototypeModel, rows: Rows, labels: Tensor, parts: int, tau: float) -> SplitSums:
    """The rows of every image of a split, added up by class; ``parts``: K."""
    sums = _empty(model, parts)
    found = {name: rows.columns.get(f"drawn_{name}", column) for name, column in rows.columns.items()}
    sums.confusion.index_put_((labels, found["predicted"]), torch.ones(len(labels)), accumulate=True)
    if "ious" in found:
        kept = found["kept"]
        both = (kept.unsqueeze(2) & kept.unsqueeze(1)).float()
        sums.iou.index_add_(0, labels, found["ious"] * both)
        sums.pairs.index_add_(0, labels, both)
    if "region_share" in found:
        shares = found["region_share"]
        sums.foreground.index_add_(0, labels, (1 - shares).nan_to_num(0.0))
        sums.seen.index_add_(0, labels, (~shares.isnan()).float())
    if "overlap" in found:
        visible = found["visible"]
        assigned = assign(found["overlap"], tau, visible, found["kept"])
        sums.on_part.index_add_(0, labels, assigned.float())
        could = (visible.unsqueeze(1) & found["kept"].unsqueeze(2)).float()
        sums.part_seen.index_add_(0, labels, could)
        sums.shared.index_add_(0, labels, found["overlap"].float() * found["part_areas"].float().unsqueeze(1) * could)
    return sums


def looks_of(sums: SplitSums, model: PrototypeModel, parts: Sequence[str]) -> list[PrototypeLook]:
    """Where each prototype looks, over the images of all of its classes; ``parts``: the names of the K parts."""
    prototypes = model.prototypes
    table, counts = (one.cpu() for one in prototypes.by_class())
    found = [_Pooled(len(parts)) for _ in range(len(prototypes))]
    overlaps = sums.overlaps()
    for label, place in counts.nonzero().tolist():
        pooled = found[int(table[label, place])]
        pooled.add(sums, label, place)
        near = (overlaps[label, place] >= SAME_FROM) & counts[label]
        pooled.same |= set(table[label][near].tolist())
    return [
        PrototypeLook(
            j,
            on_object=_ratio(one.foreground, one.seen),
            parts={name: share for k, name in enumerate(parts) if (share := _ratio(one.on_part[k], one.part_seen[k]))},
            shared={name: area for k, name in enumerate(parts) if (area := _ratio(one.shared[k], one.part_seen[k], 6))},
            same_spot=sorted(one.same - {j}),
        )
        for j, one in enumerate(found)
    ]


class _Pooled:
    """The sums of one prototype over its classes."""

    def __init__(self, parts: int) -> None:
        self.foreground, self.seen = 0.0, 0.0
        self.on_part, self.part_seen, self.shared = torch.zeros(parts), torch.zeros(parts), torch.zeros(parts)
        self.same: set[int] = set()

    def add(self, sums: SplitSums, label: int, place: int) -> None:
        self.foreground += float(sums.foreground[label, place])
        self.seen += float(sums.seen[label, place])
        self.on_part += sums.on_part[label, place]
        self.part_seen += sums.part_seen[label, place]
        self.shared += sums.shared[label, place]


def _ratio(part: float | Tensor, whole: float | Tensor, digits: int = 4) -> float | None:
    return round(float(part) / float(whole), digits) if float(whole) > 0 else None


def _empty(model: PrototypeModel, parts: int) -> SplitSums:
    return SplitSums(model.classes, model.prototypes.by_class()[0].shape[1], parts)


def keep_sums(loaded: LoadedRun, run_data: RunData, split: Split, protocol: EvaluationProtocol, rows: Rows) -> None:
    """Write down the sums and looks of what an evaluation measured, where it kept all that they need."""
    dataset = run_data.dataset(split)
    if len(loaded.model.prototypes) and _kept_names(rows, dataset) >= _NEEDED:
        labels = torch.tensor(list(dataset.labels))
        sums = sums_of(loaded.model, rows, labels, len(dataset.parts), protocol.tau)
        _write(loaded, run_data, split, protocol, sums)


_NEEDED = {"predicted", "ious", "region_share", "overlap"}


def _kept_names(rows: Rows, dataset: Dataset) -> set[str]:
    """What is in the rows, or cannot be had from this data."""
    never = ({"region_share"} if not dataset.has_masks else set()) | ({"overlap"} if not len(dataset.parts) else set())
    return {name for name in _NEEDED if name in rows} | never


def _write(loaded: LoadedRun, run_data: RunData, split: Split, protocol: EvaluationProtocol, sums: SplitSums) -> None:
    key = _key(loaded.run.best, run_data, split, protocol)
    write_json(_file(loaded), {"key": key} | {name: values.tolist() for name, values in vars(sums).items()})
    looks = looks_of(sums, loaded.model, run_data.dataset(split).parts)
    write_json(loaded.run.looks_file, looks_to_json(looks, split))


def _file(loaded: LoadedRun) -> Path:
    return loaded.run.evaluation_folder / "split_sums.json"


def cached_sums(
    loaded: LoadedRun, run_data: RunData, split: Split, protocol: EvaluationProtocol, reporter: Reporter
) -> SplitSums:
    """The sums of a run, or those of before where model, data and protocol are still the same."""
    model, dataset, file = loaded.model, run_data.dataset(split), _file(loaded)
    key = _key(loaded.run.best, run_data, split, protocol)
    sums = _empty(model, len(dataset.parts))
    try:
        values = read_json(file, "")
        if values["key"] == key:
            before = {name: torch.tensor(values[name]).float().view_as(zeros) for name, zeros in vars(sums).items()}
            vars(sums).update(before)
            return sums
    except (MissingError, BrokenError, ValueError, KeyError, TypeError, RuntimeError):
        pass  # not there, or not what we write: it is only a shortcut
    has_prototypes = len(model.prototypes) > 0
    names = {"accuracy", "diversity", "region_background_share"} if has_prototypes else {"accuracy"}
    truth = SplitGroundTruth(run_data, split, protocol, with_parts=has_prototypes)
    rows = measure_split(model, truth, names, reporter, doing="looking over")
    sums = sums_of(model, rows, torch.tensor(list(dataset.labels)), len(dataset.parts), protocol.tau)
    with suppress(WriteError):  # a run that can only be read: they are made again next time
        _write(loaded, run_data, split, protocol, sums)
    return sums


def _key(checkpoint: Path, run_data: RunData, split: Split, protocol: EvaluationProtocol) -> str:
    """A key of all that decides the sums; a choice that the protocol leaves to the data stands in it as it was made."""
    dataset, data = run_data.dataset(split), run_data.config.data
    exact = AnnotationReader(base_rows(dataset)[0], data.image_size, data.fit).exact if len(dataset.parts) else False
    mode = part_mode(protocol, exact, dataset.has_masks) if len(dataset.parts) else None
    parts = part_facts(protocol, mode)
    regions = protocol.region, protocol.percentile, protocol.share_of_region, protocol.tau, protocol.radius_of
    facts = (_VERSION, regions, parts, split, dataset.fingerprint, list(dataset.names), data.image_size, data.fit)
    return hashlib.blake2b(f"{facts!r}{file_digest(checkpoint)}".encode(), digest_size=12).hexdigest()


def _without_diagonal(values: Tensor) -> Tensor:
    own = torch.eye(values.shape[-1], dtype=torch.bool)
    return values.masked_fill(own, torch.nan)
