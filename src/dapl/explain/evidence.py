"""Why an image got its label: which prototypes spoke for a class, how much, and where they looked.

Pure: a model and pixels in, plain data out. Every system of the zoo gives logit_c = Σ_j score_j · weight[j, c], so that
the contribution of prototype j to class c is score_j · weight[j, c], and contributions add up to the logit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.explain.parts import ImageFacts, foreground_shares, name_parts
from dapl.metrics.functional import activation_regions, upsample
from dapl.models.contract import Output, PrototypeModel
from dapl.runs.records import PrototypeRecord, bounding_boxes

BACKGROUND_BELOW = 0.5
"""A prototype is flagged when less of it than this lies on the object."""
PERCENTILE = 95.0
"""The region of a prototype: pixels at or above this percentile of its map (decision 10)."""


@dataclass(frozen=True)
class Known:
    """What is known of a model beside its weights. Lists are in the order of the logits, or of the prototypes."""

    classes: Sequence[str]
    records: Sequence[PrototypeRecord] = ()
    """Where each prototype came from; empty where that is not known."""
    parts: Sequence[str | None] = ()
    """The part that each prototype mostly lies on; empty where that is not known."""


@dataclass(frozen=True)
class Seen:
    """One model pass over B images, enough for any number of explanations of them."""

    images: Tensor
    """uint8 B×3×S×S."""
    features: Tensor
    """B×D0×H×W."""
    output: Output


@dataclass(frozen=True)
class Evidence:
    """One prototype's word for (or against) one class. Tensors are on the CPU; pixels are those of ``image``."""

    prototype: int
    class_of: tuple[str, ...]
    """The classes that it belongs to; several after merging."""
    own: bool
    """Whether the explained class is one of them."""
    head: int
    score: float
    """Similarity to the nearest patch of the image."""
    weight: float
    """What one unit of similarity is worth for this class."""
    contribution: float
    """score · weight, or 0 where the prototype is switched off."""
    switched_off: bool
    location: tuple[int, int]
    """(row, column) of that patch on the feature grid."""
    box: tuple[int, int, int, int]
    """Bounds of the region in pixels: left, top, right, bottom, the last two exclusive."""
    map: Tensor
    """H×W: similarity at every location."""
    heat: Tensor
    """S×S: the same on the image, as the system itself shows its maps."""
    attention: Tensor | None
    """H×W, sums to 1: from where that patch took its values; None for systems without attention."""
    part: str | None
    part_from: str | None
    """``image``: its region lies on this part here; ``prototype``: it mostly does; None without a part."""
    foreground: float | None
    """Share of its region that lies on the object in this image; None where the object is not known."""
    record: PrototypeRecord | None

    @property
    def background(self) -> bool:
        """Whether it looks beside the object: in this image, or in the patch that it is, or mostly."""
        shares = [self.foreground]
        if self.record is not None:
            shares += [self.record.foreground_share, self.record.region_foreground]
        return any(share is not None and share < BACKGROUND_BELOW for share in shares)


@dataclass(frozen=True)
class Rest:
    """The prototypes with a weight for the class that are not listed."""

    prototypes: int
    contribution: float


@dataclass(frozen=True)
class ClassEvidence:
    """Σ contribution of rows + rest = logit."""

    class_index: int
    class_name: str
    logit: float
    probability: float
    rows: list[Evidence]
    """Strongest first: by |score · weight|, whether switched off or not, so that rows stay where they are."""
    rest: Rest

    @property
    def total(self) -> float:
        """The sum of what is shown."""
        return sum(row.contribution for row in self.rows) + self.rest.contribution


@dataclass(frozen=True)
class Explanation:
    """Of one image."""

    image: Tensor
    """uint8 3×S×S, as the model sees it."""
    class_names: Sequence[str]
    logits: Tensor
    """C, float64: what is left when the switched off prototypes are silent."""
    probabilities: Tensor
    """C."""
    classes: list[ClassEvidence]
    """The classes that were asked for; else the predicted one and the runner-up."""
    heads: int
    """Number of heads; 1 where a system has none."""
    switched_off: tuple[int, ...] = ()

    @property
    def predicted(self) -> int:
        return int(self.logits.argmax())

    @property
    def predicted_name(self) -> str:
        return self.class_names[self.predicted]

    @property
    def runner_up(self) -> int | None:
        """The class with the second highest logit; None where there is one class only."""
        return _two_best(self.logits)[1] if len(self.logits) > 1 else None


@torch.no_grad()
def see(model: PrototypeModel, images: Tensor) -> Seen:
    """The one pass. images: uint8 B×3×S×S."""
    if len(model.prototypes) == 0:
        raise DaplError(
            "this model has no prototypes, so there is nothing that explains its answer; take a run of another system."
        )
    features = model.backbone(images.to(model.prototypes.vectors.device))
    return Seen(images, features, model.from_features(features))


def logits_of(model: PrototypeModel, seen: Seen, switched_off: Collection[int] = ()) -> Tensor:
    """B×C, float64 on the CPU: the sum of the contributions of all prototypes that are not switched off."""
    silent = list(switched_off)
    wrong = [j for j in silent if not 0 <= j < len(model.prototypes)]
    if wrong:
        raise DaplError(f"there is no prototype {wrong[0]}; the model has {len(model.prototypes)}, counted from 0.")
    scores = seen.output.scores.double().cpu()
    if silent:
        scores[:, silent] = 0
    return scores @ model.class_weights().double().cpu()


def explain(
    model: PrototypeModel,
    image: Tensor,
    known: Known,
    *,
    classes: Sequence[int] | None = None,
    top: int = 10,
    switched_off: Collection[int] = (),
    facts: ImageFacts | None = None,
) -> Explanation:
    """One image, uint8 3×S×S: one model pass. As `explanations` otherwise."""
    seen = see(model, image.unsqueeze(0))
    chosen = None if classes is None else [classes]
    return explanations(model, seen, known, classes=chosen, top=top, switched_off=switched_off, facts=[facts])[0]


@torch.no_grad()
def explanations(
    model: PrototypeModel,
    seen: Seen,
    known: Known,
    *,
    classes: Sequence[Sequence[int]] | None = None,
    top: int = 10,
    switched_off: Collection[int] = (),
    facts: Sequence[ImageFacts | None] | None = None,
) -> list[Explanation]:
    """Of each image that was seen, without another pass.

    Args:
        classes: for each image the classes to explain; None: the predicted one and the runner-up.
        top: prototypes listed a class.
        switched_off: prototypes that are taken out of the sum, a counterfactual; the model is left as it is.
        facts: what is annotated on each image, where that is known.
    """
    if top < 1:
        raise DaplError(f"top is {top}; at least one prototype must be listed.")
    logits = logits_of(model, seen, switched_off)
    weights, scores = model.class_weights().double().cpu(), seen.output.scores.double().cpu()
    silent = tuple(sorted(set(switched_off)))
    found = []
    for row in range(len(seen.images)):
        shown = _two_best(logits[row]) if classes is None else list(classes[row])
        _check_classes(shown, len(known.classes))
        listed = {c: _strongest(scores[row] * weights[:, c], weights[:, c], top) for c in shown}
        looks = _look(model, seen, row, sorted({j for rows in listed.values() for j in rows}), known, facts)
        probabilities = logits[row].softmax(0)
        evidence = [
            _of_class(c, known, scores[row], weights[:, c], listed[c], looks, silent, logits[row], probabilities)
            for c in shown
        ]
        groups = model.prototypes.groups
        found.append(Explanation(seen.images[row], known.classes, logits[row], probabilities, evidence, groups, silent))
    return found


def on_pixels(model: PrototypeModel, maps: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Maps M×H×W as the system itself shows them on an image, M×S×S, and their regions, bool M×S×S; on the CPU."""
    if type(model).to_pixels is PrototypeModel.to_pixels:  # bicubic, which two matrix products do ten times as fast
        return upsample(maps.cpu(), side), activation_regions(maps.cpu(), side, PERCENTILE)
    heat = model.to_pixels(maps, (side, side)).cpu()
    return heat, activation_regions(heat, None, PERCENTILE)


def _two_best(logits: Tensor) -> list[int]:
    """The predicted class and the runner-up; ties to the lower index, as argmax has it."""
    return logits.argsort(descending=True, stable=True)[:2].tolist()


def _check_classes(chosen: Sequence[int], count: int) -> None:
    for label in chosen:
        if not 0 <= label < count:
            raise DaplError(f"there is no class {label}; the model has {count}, counted from 0.")


def _strongest(contributions: Tensor, weights: Tensor, top: int) -> list[int]:
    """Prototypes with a weight for the class, by |contribution|; ties to the lower index. Both P."""
    order = contributions.abs().masked_fill(weights == 0, -1).argsort(descending=True, stable=True)
    return order[: min(top, int((weights != 0).sum()))].tolist()


@dataclass(frozen=True)
class _Look:
    """Where one prototype looks in one image, whatever the class: fields of `Evidence`."""

    head: int
    class_of: tuple[str, ...]
    location: tuple[int, int]
    box: tuple[int, int, int, int]
    map: Tensor
    heat: Tensor
    attention: Tensor | None
    part: str | None
    part_from: str | None
    foreground: float | None
    record: PrototypeRecord | None


def _look(
    model: PrototypeModel,
    seen: Seen,
    row: int,
    listed: list[int],
    known: Known,
    facts: Sequence[ImageFacts | None] | None,
) -> dict[int, _Look]:
    """All listed prototypes at once on image ``row``."""
    if not listed:
        return {}
    prototypes, side = model.prototypes, int(seen.images.shape[-1])
    named = torch.tensor([listed], device=prototypes.vectors.device)
    locations = seen.output.locations[row : row + 1].gather(1, named)
    attention = model.evidence_maps(seen.features[row : row + 1], named, locations)
    maps = model.maps(seen.output.embedding[row : row + 1].float(), named)
    heat, regions = on_pixels(model, maps[0], side)
    boxes = bounding_boxes(regions.view(torch.uint8)).tolist()  # four times as fast as on booleans
    fact = None if facts is None else facts[row]
    parts = name_parts(regions, fact)
    annotated = fact is not None and fact.parts is not None
    shares = foreground_shares(regions, fact)
    width, heads = maps.shape[-1], prototypes.group_of.tolist()
    looks = {}
    for m, j in enumerate(listed):
        usual = known.parts[j] if known.parts and not annotated else None
        whose = prototypes.membership[j].nonzero().flatten().tolist()
        looks[j] = _Look(
            head=heads[j],
            class_of=tuple(known.classes[c] for c in whose),
            location=divmod(int(locations[0, m]), width),
            box=tuple(boxes[m]),
            map=maps[0, m].cpu(),
            heat=heat[m],
            attention=None if attention is None else attention[0, m].cpu(),
            part=parts[m] or usual,
            part_from="image" if parts[m] else "prototype" if usual else None,
            foreground=shares[m],
            record=known.records[j] if known.records else None,
        )
    return looks


def _of_class(
    label: int,
    known: Known,
    scores: Tensor,
    weights: Tensor,
    listed: list[int],
    looks: dict[int, _Look],
    silent: Collection[int],
    logits: Tensor,
    probabilities: Tensor,
) -> ClassEvidence:
    """scores and weights: P, float64."""
    contributions = scores * weights
    contributions[list(silent)] = 0
    rows = [
        Evidence(
            prototype=j,
            own=known.classes[label] in looks[j].class_of,
            score=float(scores[j]),
            weight=float(weights[j]),
            contribution=float(contributions[j]),
            switched_off=j in silent,
            **vars(looks[j]),
        )
        for j in listed
    ]
    left = weights != 0
    left[listed] = False
    rest = Rest(int(left.sum()), float(contributions[left].sum()))
    return ClassEvidence(label, known.classes[label], float(logits[label]), float(probabilities[label]), rows, rest)
