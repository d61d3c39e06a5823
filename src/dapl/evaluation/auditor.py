"""`audit`: Coverage, Diversity and background bias of any prototype model, on any of our data sets (docs/audit.md)."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dapl.batches.pixels import AnnotationReader, Annotations
from dapl.common.errors import DaplError
from dapl.common.progress import Reporter
from dapl.data.sample import Dataset
from dapl.data.transforms import Fit
from dapl.evaluation.evaluator import needs_parts, summarise
from dapl.evaluation.files import write_files
from dapl.evaluation.ground_truth import GroundTruth, part_facts, part_mode
from dapl.evaluation.measurements import Measurements, Rows
from dapl.evaluation.passes import keep
from dapl.evaluation.protocol import EvaluationProtocol
from dapl.evaluation.result import Evaluation
from dapl.evaluation.views import BatchView
from dapl.metrics.registry import chosen, data_gives, missing_needs
from dapl.models.prototypes import class_table
from dapl.runs.provenance import versions


class PrototypeMaps(typing.Protocol):
    """What a model must give to be audited. P prototypes, C classes; M is the most prototypes that a class has.

    May also have ``logits(images) -> B×C``, for accuracy and calibration (another pass), and ``kept``, bool P, the
    prototypes that were not pruned.

    >>> import torch
    >>> class Brightness:
    ...     # Two prototypes, one per class: where the image is bright, and where it is dark.
    ...     membership = torch.eye(2, dtype=torch.bool)
    ...     def maps(self, images, labels):
    ...         bright = images.float().mean(1) / 255
    ...         return torch.where(labels[:, None, None] == 0, bright, 1 - bright).unsqueeze(1)
    >>> Brightness().maps(torch.zeros(3, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1])).shape
    torch.Size([3, 1, 8, 8])
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

    >>> from dapl.data.toybirds import ToyBirds
    >>> class Middle:
    ...     # One prototype per class, which is active in the middle of every image.
    ...     membership = torch.eye(2, dtype=torch.bool)
    ...     def maps(self, images, labels):
    ...         middle = torch.hann_window(9, periodic=False)
    ...         return torch.outer(middle, middle).expand(len(images), 1, 9, 9)
    >>> birds = ToyBirds(classes=2, images_per_class=2, size=40)
    >>> found = audit(Middle(), birds, size=40, metrics="coverage,background_bias", quiet=True)
    >>> sorted(found.numbers), found.protocol["images"]
    (['background_bias', 'coverage', 'precision', 'recall'], 4)
    """
    protocol = protocol or EvaluationProtocol()
    _check(model, dataset, protocol)
    names, possible, missing = _reachable(model, dataset, metrics)
    images = _Images(dataset, size, fit, protocol, needs_parts(possible), batch, workers, torch.device(device))
    _, kept = class_table(model.membership.bool().to(images.device), _kept(model).to(images.device))
    rows = Rows(len(dataset))
    with Reporter(quiet).track("auditing", len(dataset)) as advance, torch.no_grad():
        for indices, labels, pixels, truth in images:
            keep(rows, _AuditView(model, pixels, indices, labels, kept[labels], truth, protocol, size), names)
            advance(len(indices))
    measured = Measurements(
        names=possible,
        protocol=protocol,
        classes=dataset.classes,
        parts=dataset.parts if possible & {"coverage", "diversity"} else (),
        part_names=dataset.parts,
        labels=images.labels,
        images=rows,
        scoped=rows,
        kept=kept.cpu(),
    )
    facts = part_facts(protocol, images.mode) | {
        "image_size": size,
        "fit": fit,
        "data": name,
        "split": "audit",
        "images": len(dataset),
        "checkpoint": type(model).__name__,
        "metrics": sorted(names),
        "versions": versions(),
    }
    counts = {"prototypes": len(model.membership), "prototypes_kept": int(_kept(model).sum())}
    result = summarise(measured, facts, missing, counts)
    if out is not None:
        write_files(Path(out) / "metrics.json", Path(out) / "metrics", result, measured)
    return result


def _reachable(
    model: PrototypeMaps, dataset: Dataset, metrics: Sequence[str] | str | None
) -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
    """The metrics that the model allows, those of them that the data allows, and why others are missing.

    What was not asked for by name and is out of a foreign model's reach is left out without a word.
    """
    names = chosen(metrics) - {"prototypes"}
    gives = {"maps", "logits"} if hasattr(model, "logits") else {"maps"}
    beyond = missing_needs(names, gives | {"parts", "points", "masks"})
    names -= beyond.keys()
    missing = missing_needs(names, gives | data_gives(dataset.parts, dataset.has_masks))
    return names, names - missing.keys(), missing if metrics is None else missing | beyond


def _kept(model: PrototypeMaps) -> Tensor:
    """bool P."""
    kept = getattr(model, "kept", None)
    return torch.ones(len(model.membership), dtype=torch.bool) if kept is None else kept


class _AuditView(BatchView):
    """A batch as a foreign model sees it."""

    def __init__(
        self,
        model: PrototypeMaps,
        images: Tensor,
        indices: Tensor,
        labels: Tensor,
        kept: Tensor,
        truth: GroundTruth,
        protocol: EvaluationProtocol,
        size: int,
    ) -> None:
        super().__init__(indices, labels, kept, truth, protocol, size)
        self.model, self.images = model, images

    @cached_property
    def logits(self) -> Tensor:
        return self.model.logits(self.images)  # type: ignore[attr-defined]

    @cached_property
    def maps(self) -> Tensor:
        return _checked(self.model.maps(self.images, self.labels), *self.kept.shape)


class _Images:
    """The data set in batches of (indices, labels, images, ground truth)."""

    def __init__(
        self,
        dataset: Dataset,
        size: int,
        how: Fit,
        protocol: EvaluationProtocol,
        with_parts: bool,
        batch: int,
        workers: int,
        device: torch.device,
    ) -> None:
        self.size, self.protocol, self.device = size, protocol, device
        self.labels = torch.tensor(list(dataset.labels))
        samples = AnnotationReader(dataset, size, how)
        self.loader = DataLoader(samples, batch, num_workers=workers, generator=torch.Generator())
        self.mode = part_mode(protocol, samples.exact, dataset.has_masks) if with_parts else None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, GroundTruth]]:
        start = 0
        for images, masks, keypoints, visible, boxes, packed in self.loader:
            rows = torch.arange(start, start + len(images))
            start += len(images)
            points = Annotations(keypoints, visible, boxes, packed.numpy() if packed.numel() else None, self.size)
            objects = masks if masks.numel() else None
            truth = GroundTruth(self.protocol, self.mode, self.device, partial(_same, points), partial(_same, objects))
            yield rows, self.labels[rows].to(self.device), images.to(self.device), truth


def _same(value: typing.Any) -> typing.Any:
    return value


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
