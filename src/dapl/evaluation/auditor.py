"""`audit`: Coverage, Diversity and background bias of any prototype model, on any of our data sets (docs/audit.md)."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dapl.batches.cache import Annotated, Annotations
from dapl.batches.sources import grid_masks
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.data.sample import Dataset
from dapl.data.transforms import Fit
from dapl.evaluation.evaluator import summarise, wanted_parts, what_is_missing, what_to_look_for
from dapl.evaluation.files import write_files
from dapl.evaluation.passes import Wanted, look, tried_thresholds
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.evaluation.result import Evaluation
from dapl.evaluation.rows import Answers, CompanionRows, Looks
from dapl.evaluation.scenes import Scene, part_mode, part_radius, parts_of
from dapl.evaluation.summary import Measured
from dapl.metrics.functional import activation_regions
from dapl.metrics.registry import chosen, needing
from dapl.models.prototypes import class_table
from dapl.runs.run import versions

NO_LOGITS = "the model has no `logits` method to predict with"
NEGATIVE = "the maps hold negative values, of which no share can be taken; let `maps` give similarities from 0 up"


NOT_IN_AN_AUDIT = "an audit has only maps; it needs the model's scores, vectors or training images"
_NOT_IN_AN_AUDIT = frozenset({"stability", "purity", "faithfulness", "sparsity"})


class PrototypeMaps(typing.Protocol):
    """What a model must give to be audited. P prototypes, C classes; M is the most prototypes that a class has.

    May also have ``logits(images) -> B×C``, for accuracy and calibration (another pass), and ``kept``, bool P, the
    prototypes that were not pruned.
    """

    membership: Tensor
    """bool P×C: whose prototype each is."""

    def maps(self, images: Tensor, labels: Tensor) -> Tensor:
        """Activation of the prototypes of each image's class, in ascending order of their index: B×M×H×W, any H, W.

        images: uint8 B×3×S×S, RGB; labels: long B. Rows of a class with fewer than M prototypes end in anything finite.
        """


def audit(
    model: PrototypeMaps,
    dataset: Dataset,
    protocol: EvaluationProtocol | None = None,
    *,
    size: int = 224,
    fit: Fit = "stretch",
    metrics: Sequence[str] | str | None = None,
    out: Path | None = None,
    batch: int = 64,
    workers: int = 0,
    device: str | torch.device = "cpu",
    name: str = "data",
    quiet: bool = False,
) -> Evaluation:
    """Measure ``model`` on every image of ``dataset``, brought to size×size as ``fit`` says; one pass.

    Classes of the data set and of the model must be the same, in the same order. With ``out``, metrics.json, tables and
    plots go there. ``name`` is what they call the data.
    """
    protocol, names = protocol or EvaluationProtocol(), chosen(metrics) - {"prototypes"}
    _check(model, dataset, protocol)
    missing = what_is_missing(names, dataset.parts, dataset.has_masks)
    logits: Callable[[Tensor], Tensor] | None = getattr(model, "logits", None)
    out_of_reach = dict.fromkeys(_NOT_IN_AN_AUDIT & names, NOT_IN_AN_AUDIT)
    if logits is None:
        out_of_reach |= dict.fromkeys(needing(names, "logits"), NO_LOGITS)
    names -= out_of_reach.keys()
    missing |= {} if metrics is None else out_of_reach
    possible = names - missing.keys()
    wanted = what_to_look_for(names, possible)
    images = _ImageSource(dataset, size, fit, protocol, wanted, batch, workers, torch.device(device))
    with Reporter(quiet).track("auditing", len(dataset)) as advance:
        measured = _measure(model, logits, images, wanted, possible, advance)
    negative = _negative(measured)
    missing |= dict.fromkeys(negative, NEGATIVE)
    measured = replace(measured, names=possible - negative)
    facts = {
        "part_mode": images.mode,
        "radius": None if images.mode is None else part_radius(protocol, images.mode),
        "image_size": size,
        "fit": fit,
        "data": name,
        "split": "audit",
        "images": len(dataset),
        "checkpoint": type(model).__name__,
        "metrics": sorted(names),
        "versions": versions(),
    }
    result = summarise(measured, facts, missing, _counts(model))
    if out is not None:
        write_files(Path(out) / "metrics.json", Path(out) / "metrics", result, measured)
    return result


class _ImageSource:
    """The data set in batches of (indices, labels, images, scene without its grid)."""

    def __init__(
        self,
        dataset: Dataset,
        size: int,
        how: Fit,
        protocol: EvaluationProtocol,
        wanted: Wanted,
        batch: int,
        workers: int,
        device: torch.device,
    ) -> None:
        self.dataset, self.size, self.protocol, self.device = dataset, size, protocol, device
        self.labels = torch.tensor(list(dataset.labels))
        samples = Annotated(dataset, size, how)
        self.loader = DataLoader(samples, batch, num_workers=workers, generator=torch.Generator())
        self.mode: str | None = None
        if wanted.points and dataset.parts:
            self.mode = part_mode(protocol, samples.reader.exact, dataset.has_masks)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Scene]]:
        start = 0
        for images, masks, keypoints, visible, boxes, packed in self.loader:
            rows = torch.arange(start, start + len(images))
            start += len(images)
            objects = masks.to(self.device) if masks.numel() else None
            scene = Scene(None, None, objects, None)
            if self.mode is not None:
                exact = packed.numpy() if packed.numel() else None
                points = Annotations(keypoints, visible, boxes, exact, self.size)
                parts, counts = parts_of(points, objects, self.mode, self.protocol, self.device)
                scene = replace(scene, parts=parts, visible=counts, points=points)
            yield rows, self.labels[rows].to(self.device), images.to(self.device), scene


@torch.no_grad()
def _measure(
    model: PrototypeMaps,
    logits: Callable[[Tensor], Tensor] | None,
    source: _ImageSource,
    wanted: Wanted,
    possible: frozenset[str],
    advance: Callable[[int], None],
) -> Measured:
    membership, protocol, dataset = model.membership.bool().to(source.device), source.protocol, source.dataset
    kept = getattr(model, "kept", None)
    kept = torch.ones(len(membership), dtype=torch.bool) if kept is None else kept
    table, counts = class_table(membership, kept.to(source.device))
    thresholds, count, parts = tried_thresholds(protocol.tau), len(dataset), len(dataset.parts)
    answers = Answers.empty(count)
    looks = Looks.empty(count, table.shape[1], parts, len(thresholds))
    companions = CompanionRows.empty(count, table.shape[1], parts)
    for rows, labels, images, scene in source:
        if logits is not None and wanted.answers:
            answers.add(rows, logits(images), labels)
        if wanted.maps:
            maps = _checked(model.maps(images, labels), len(rows), table.shape[1])
            if scene.masks is not None and wanted.masks:
                scene = replace(scene, grid=grid_masks(scene.masks, maps.shape[-2:]))
            regions = activation_regions(maps, source.size, protocol.percentile) if wanted.regions else None
            looks.add(rows, look(maps, regions, counts[labels], scene, wanted), protocol.tau, thresholds)
            companions.add(rows, maps, regions, counts[labels], scene, wanted.companions)
        advance(len(rows))
    named_parts = dataset.parts if wanted_parts(possible) else ()
    return Measured(
        answers,
        looks if wanted.maps else None,
        source.labels,
        dataset.classes,
        named_parts,
        protocol,
        possible,
        companions,
        counts.cpu(),
    )


def _negative(measured: Measured) -> frozenset[str]:
    """The metrics that found no map to take a share of."""
    if measured.looks is None or measured.companions is None:
        return frozenset()
    found = {"background_bias": ~measured.looks.bias.isnan(), "oirr": measured.companions.oirr[:, 1:] > 0}
    return frozenset(name for name, values in found.items() if name in measured.names and not values.any())


def _checked(maps: Tensor, images: int, prototypes: int) -> Tensor:
    if maps.ndim != 4 or maps.shape[:2] != (images, prototypes):
        raise DaplError(
            f"maps: the model gave {'×'.join(map(str, maps.shape))}, but {images} images and {prototypes} prototypes "
            f"a class are {images}×{prototypes}×height×width."
        )
    return maps.float()


def _check(model: PrototypeMaps, dataset: Dataset, protocol: EvaluationProtocol) -> None:
    if model.membership.ndim != 2 or model.membership.shape[1] != len(dataset.classes):
        shape = "×".join(map(str, model.membership.shape))
        raise DaplError(
            f"membership is {shape}, but must be prototypes × classes, and the data has {len(dataset.classes)} classes."
        )
    if protocol.scope == "projection":
        raise DaplError("scope: an audit does not know where prototypes came from; use image or dataset.")


def _counts(model: PrototypeMaps) -> dict[str, int]:
    number = len(model.membership)
    kept = getattr(model, "kept", None)
    return {"prototypes": number, "prototypes_kept": number if kept is None else int(kept.sum())}
