"""What trivial maps get on the same images under the same protocol, so that a number of a model can be judged.

The maps of `dapl.evaluation.trivial` go through the pass of an audit and are measured by every metric that needs
nothing but maps and annotations, whichever these are. The numbers depend on the data, the protocol and the number of
prototypes alone, so they are measured once and kept in the cache. No image is decoded where the caches are there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapl.batches.pixels import base_rows
from dapl.batches.run_data import RunData, Split
from dapl.batches.sources import Batch
from dapl.common.errors import BrokenError, DaplError, MissingError, WriteError
from dapl.common.files import write_json
from dapl.common.progress import Reporter
from dapl.common.reading import read_as
from dapl.config import Config
from dapl.data.sample import Dataset
from dapl.evaluation.ground_truth import GroundTruth, SplitGroundTruth
from dapl.evaluation.measurements import Measurements, Rows
from dapl.evaluation.measures import coverage_curves, numbers
from dapl.evaluation.passes import keep
from dapl.evaluation.protocol import SPLITS, EvaluationProtocol, code_digest, one_of
from dapl.evaluation.result import Chance
from dapl.evaluation.trivial import TRIVIAL, Trivial, TrivialBatch
from dapl.evaluation.views import BatchView
from dapl.metrics.registry import METRICS, data_gives
from dapl.processes.launch import make_processes

PROTOTYPES = 10
"""Per class, where no model says how many: those of the paper's systems."""
_BATCH = 8
"""Images at once: maps have the size of the images, and those of a few stay in the processor's cache."""
_REASONS = {
    "masks": "the data has no foreground masks",
    "points": "the data has no part annotations",
}
NO_SOURCES = "scope projection is about the images that prototypes come from, and trivial maps come from none"


def chance(
    config: Config,
    protocol: EvaluationProtocol | None = None,
    split: Split = "test",
    prototypes: int = PROTOTYPES,
    quiet: bool = False,
) -> Chance:
    """What trivial maps get on a split of the data of ``config``, ``prototypes`` of them per class.

    >>> chance(load_config(Path("configs/cub20.yaml"))).rows["smooth noise in the mask"]["coverage"]  # doctest: +SKIP
    0.976
    """
    one_of("split", split, SPLITS)
    if prototypes < 1:
        raise DaplError(f"prototypes: {prototypes} per class is none; give 1 or more.")
    run_data = RunData(config, make_processes(config), Reporter(quiet))
    return chance_of(run_data, split, protocol or EvaluationProtocol(tau=config.data.tau), prototypes)


def chance_of(
    run_data: RunData,
    split: Split,
    protocol: EvaluationProtocol,
    prototypes: int,
    metrics: frozenset[str] | None = None,
) -> Chance:
    """The same for data that is open already; the first of several processes measures, and the others return nothing.

    All of them must call it: what is not in the caches yet is put there by all together. Of ``metrics`` only; where the
    numbers of all are known already, these.
    """
    dataset = run_data.dataset(split)
    everything = reachable(dataset)
    names = everything if metrics is None else everything & metrics
    if protocol.scope == "projection" or not names:
        reason = NO_SOURCES if protocol.scope == "projection" else "the data has neither parts nor foreground masks"
        return Chance(prototypes, missing={one.name: reason for one in TRIVIAL})
    for some in dict.fromkeys((everything, names)):
        file = run_data.folder / f"{chance_key(run_data, split, protocol, prototypes, some)}-chance.json"
        known = _read(file) if run_data.config.cache.pixels else None
        if known is not None:
            return known
    truth = SplitGroundTruth(run_data, split, protocol)
    run_data.images(split)
    if run_data.processes.global_rank > 0:
        return Chance(prototypes)
    found = measure_chance(truth, names, prototypes)
    if run_data.config.cache.pixels:
        with suppress(WriteError):  # a folder that can only be read: it is measured again next time
            write_json(file, found.to_json())
    return found


def reachable(dataset: Dataset) -> frozenset[str]:
    """The metrics that need maps, and of annotations only what the data has; none where it has none at all."""
    annotated = data_gives(dataset.parts, dataset.has_masks)
    gives = {"maps"} | annotated
    return frozenset(one.name for one in METRICS if annotated and "maps" in one.needs and gives.issuperset(one.needs))


def chance_key(
    run_data: RunData, split: Split, protocol: EvaluationProtocol, prototypes: int, metrics: frozenset[str]
) -> str:
    """Names the numbers: the same key, the same numbers. Intervals are no part of them."""
    (base, rows), data = base_rows(run_data.dataset(split)), run_data.config.data
    options = {
        name: value for name, value in protocol.to_json().items() if name not in ("resamples", "ece_bins", "control")
    }
    said = [
        code_digest(),
        base.fingerprint,
        list(rows),
        data.image_size,
        data.fit,
        options,
        prototypes,
        sorted(metrics),
    ]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=12).hexdigest()


def _read(file: Path) -> Chance | None:
    try:
        return read_as(file, Chance, "")
    except (MissingError, BrokenError):
        return None


class _TrivialView(BatchView):
    """A batch as a trivial row sees it: annotations, and maps of no model."""

    def __init__(self, row: Trivial, batch: TrivialBatch, labels: Tensor, protocol: EvaluationProtocol) -> None:
        kept = torch.ones(len(labels), batch.prototypes, dtype=torch.bool)
        super().__init__(batch.indices, labels, kept, batch.truth, protocol, batch.size)
        self.row, self.batch = row, batch

    @cached_property
    def maps(self) -> Tensor:
        return self.row.maps(self.batch).expand(*self.kept.shape, self.size, self.size)


def measure_chance(truth: SplitGroundTruth, names: frozenset[str], prototypes: int) -> Chance:
    """The numbers of these metrics, measured anew whatever the cache holds."""
    run_data, dataset = truth.run_data, truth.run_data.dataset(truth.split)
    labels = torch.tensor(list(dataset.labels))
    gives = data_gives(dataset.parts, dataset.has_masks)
    possible = [one for one in TRIVIAL if gives.issuperset(one.needs)]
    rows = {one.name: Rows(len(labels)) for one in possible}

    def fill(batch: TrivialBatch, one: Trivial) -> None:
        keep(rows[one.name], _TrivialView(one, batch, labels[batch.indices], truth.protocol), names)

    # Most of the time goes into numpy and torch, which let other threads work; each row of chance is filled by one.
    with (
        run_data.reporter.track(f"chance on {truth.split}", len(labels)) as advance,
        ThreadPoolExecutor(min(os.cpu_count() or 1, len(possible))) as threads,
    ):
        for batch in trivial_batches(truth, torch.arange(len(labels)), prototypes):
            list(threads.map(partial(fill, batch), possible))
            advance(len(batch.indices))
    found: dict[str, dict[str, float]] = {}
    curves: dict[str, list[float]] = {}
    for name, filled in rows.items():
        measured = Measurements(
            names=names,
            protocol=replace(truth.protocol, resamples=1),  # no interval is shown
            classes=dataset.classes,
            parts=(),
            labels=labels,
            images=filled,
            scoped=filled,
            kept=torch.ones(len(dataset.classes), prototypes, dtype=torch.bool),
            part_names=dataset.parts,
        )
        found[name] = {key: one.value for key, one in numbers(measured).items() if one.value == one.value}
        if "coverage" in names:
            curve = coverage_curves(measured)
            curves |= {"tau": curve["tau"], name: curve["coverage"]}
    missing = {one.name: _REASONS[need] for one in TRIVIAL for need in one.needs if need not in gives}
    return Chance(prototypes, found, curves, missing)


def trivial_batches(truth: SplitGroundTruth, rows: Tensor, prototypes: int) -> Iterator[TrivialBatch]:
    """What the annotations say of these rows of the split (long n), a few images at once.

    On the CPU: there is no model whose device would be the better place.
    """
    run_data, protocol = truth.run_data, truth.protocol
    masks = partial(run_data.pixel_masks, truth.split) if truth.has_masks else lambda indices: None
    parts, size = tuple(run_data.dataset(truth.split).parts), run_data.config.data.image_size
    for indices in rows.split(_BATCH):
        points = partial(truth.points, Batch(indices, indices))
        known = GroundTruth(protocol, truth.mode, torch.device("cpu"), points, partial(masks, indices))
        _ = known.points, known.masks, known.visible  # made here, for all threads
        yield TrivialBatch(indices, known, parts, prototypes, size, 1 - protocol.percentile / 100, protocol.seed)


def prototypes_per_class(kept: Any) -> int:
    """How many prototypes a class has, on the whole; kept: bool C×M.

    >>> prototypes_per_class(torch.tensor([[True, True, True], [True, False, True]]))
    3
    """
    return max(1, int(kept.sum(1).float().mean().add(0.5)))
