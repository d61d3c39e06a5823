"""Why an image got its label: which prototypes spoke for a class, how much, and where they are active.

Pure: a model and pixels in, plain data out. Every system of the zoo gives logit_c = Σ_j score_j · weight[j, c], so that
the contribution of prototype j to class c is score_j · weight[j, c], and contributions add up to the logit. The fields
of `Reason` are what the JSON file, the page and the web API say about a prototype: they are named and described here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.explain.draw import OVERLAY_SIDE, head_colour, is_dashed
from dapl.explain.parts import ImageFacts, ModelRecords, heat_of, locate, slots_of, squares_of
from dapl.explain.patches import Box, Patch, PatchSource, close_up_of
from dapl.metrics.naming import Parts, background_share, background_warning, plain_name
from dapl.models.contract import Output, PrototypeModel
from dapl.runs.outlines import Ends
from dapl.runs.schemas import PrototypeRecord


def doc(text: str) -> dict[str, str]:
    """Metadata of a field that says what it means; the schema of the web API repeats it."""
    return {"description": text}


@dataclass(frozen=True)
class ModelPass:
    """One model pass over B images, enough for any number of explanations of them."""

    images: Tensor
    """uint8 B×3×S×S."""
    output: Output


@dataclass(frozen=True)
class Source:
    """The training patch that a prototype is."""

    image: str = field(metadata=doc("Its name within the data set."))
    box: list[int] | None
    location: list[int] | None = field(metadata=doc("[row, column] on the feature grid."))
    foreground_share: float | None = field(metadata=doc("Share of the patch that lies on the object."))
    region_foreground: float | None = field(metadata=doc("The same of its regions, mean over validation images."))
    grounded: bool | None = field(metadata=doc("False where no patch of the class had enough foreground."))

    @classmethod
    def of(cls, record: PrototypeRecord | None) -> Source | None:
        """None for a prototype that was not projected."""
        if record is None or record.image is None:
            return None
        return cls(*_SOURCE(record))


_SOURCE = attrgetter(*(one.name for one in fields(Source)))


@dataclass(frozen=True)
class Reason:
    """What one prototype says for (or against) one class."""

    prototype: int
    of: tuple[str, ...] = field(metadata=doc("The classes that it belongs to; several after merging."))
    own: bool = field(metadata=doc("Whether the explained class is one of them."))
    head: int = field(metadata=doc("The attention head that it meets; 0 where a system has none."))
    similarity: float = field(metadata=doc("Similarity to the nearest patch of the image."))
    weight: float = field(metadata=doc("What one unit of similarity is worth for this class."))
    contribution: float = field(metadata=doc("similarity · weight, or 0 while it is switched off."))
    switched_off: bool
    location: tuple[int, int] = field(metadata=doc("(row, column) of the nearest patch on the feature grid."))
    place: tuple[float, float] = field(metadata=doc("The same as (x, y) in pixels of the image."))
    box: Box | None = field(
        metadata=doc(
            "Left, top, right, bottom of its region in the image, the last two exclusive (of a head that sees a square "
            "and no more: that square); null where its map is flat, so that there is no region."
        )
    )
    outline: str | None = field(metadata=doc("Outline of its region in pixels of the image, as path data of SVG."))
    view: Box = field(metadata=doc("Bounds of the close-up: the region with some of what is beside it."))
    colour: str = field(metadata=doc("Of its head; of its place in the class where a system has no heads."))
    dashed: bool = field(metadata=doc("Whether its lines are dashed, because all colours are taken."))
    part: str | None = field(metadata=doc("Its name: the parts that it is on, with shares; null: none is clear."))
    parts: Parts = field(metadata=doc("The same as pairs: the share of the images in which it is on the part."))
    here: str | None = field(metadata=doc("The part that most of its region lies on in this image, where known."))
    foreground: float | None = field(metadata=doc("Share of the region on the object in this image, where known."))
    on_object: float | None = field(metadata=doc("Share of its regions on the object, over the images measured."))
    background: bool = field(metadata=doc("Whether more than half of it lies off the object, by `on_object`."))
    same_spot: tuple[int, ...] = field(metadata=doc("Prototypes of the class that look at the same spot."))
    source: Source | None

    def facts(self) -> dict[str, Any]:
        """The fields above, by name."""
        return {name: getattr(self, name) for name in _REASON}


_REASON = tuple(one.name for one in fields(Reason))


@dataclass(frozen=True)
class Evidence(Reason):
    """A `Reason` with its maps, which are on the CPU."""

    map: Tensor
    """H×W: similarity at every location."""
    heat: Tensor
    """h×h: the same on the image, as the system itself shows its maps, and as fine as a page draws it."""
    attention: Tensor | None
    """H×W, sums to 1: from where that patch took its values; None for systems without attention."""
    record: PrototypeRecord | None
    cropped: bool = False
    """Whether the box is all that the head saw of the image."""
    ends: Ends | None = None
    """The leftmost and the rightmost point of the outline, where there is one."""
    bounds: Box | None = None
    """Of the outline."""
    in_crop: float | None = None
    """Share of the region that lies in the crop, of a head that saw a crop and no more."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, without what follows from others."""
        values = self.facts() | {"map": _rounded(self.map), "attention": _rounded(self.attention)}
        values["source"] = None if self.source is None else asdict(self.source)
        left_out = ("own", "place", "view", "colour", "dashed")
        return {name: value for name, value in values.items() if name not in left_out}


@dataclass(frozen=True)
class Rest:
    """The prototypes with a weight for the class that are not listed."""

    prototypes: int
    contribution: float


@dataclass(frozen=True)
class ClassEvidence:
    """Why a class got its logit: Σ contribution of rows + rest = logit."""

    index: int
    name: str
    logit: float
    probability: float
    rows: list[Evidence]
    """Strongest first: by |similarity · weight|, whether switched off or not, so that rows stay where they are."""
    rest: Rest

    @property
    def total(self) -> float:
        """The sum of what is shown."""
        return sum(row.contribution for row in self.rows) + self.rest.contribution

    @property
    def background(self) -> float | None:
        """How much of what speaks for the class lies off the object: in this image, else as it was measured."""
        known = [row.on_object if row.foreground is None else row.foreground for row in self.rows]
        weights = [max(0.0, row.contribution) for row in self.rows]
        return background_share([None if share is None else 1 - share for share in known], weights)

    @property
    def warning(self) -> str | None:
        """What must be said beside the label where the reasons rest on background."""
        return background_warning(self.background)

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.name,
            "index": self.index,
            "logit": self.logit,
            "probability": self.probability,
            "off_object": self.background,
            "warning": self.warning,
            "prototypes": [row.to_json() for row in self.rows],
            "rest": asdict(self.rest),
        }


@dataclass(frozen=True)
class Explanation:
    """Why one image got its label."""

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
    name: str = "image"
    about: str = ""
    """The model in a few words."""
    patches: PatchSource = field(default_factory=PatchSource)
    seen: str = ""
    """Which part of the image file the model saw; empty where it saw all of it, or that is not known."""

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

    @property
    def strongest(self) -> float:
        """The largest |contribution| that is listed, which bars are drawn against."""
        return max((abs(row.contribution) for e in self.classes for row in e.rows), default=0.0) or 1.0

    @property
    def with_attention(self) -> bool:
        return any(row.attention is not None for evidence in self.classes for row in evidence.rows)

    def close_up(self, row: Evidence) -> Patch | None:
        """The training patch of a prototype with some of what is beside it, or, of a head that sees a crop, that crop
        and no pixel more; None where it is not at hand."""
        patch = None if row.record is None else self.patches.patch(row.record)
        return None if patch is None else patch.cut() if row.cropped else patch.close_up()

    @property
    def warning(self) -> str | None:
        """What must be said beside the prediction; None where nothing must."""
        shown = next((evidence for evidence in self.classes if evidence.index == self.predicted), None)
        return None if shown is None else shown.warning

    @property
    def with_crops(self) -> bool:
        """Whether the heads saw crops, and nothing else of the image."""
        return any(row.cropped for evidence in self.classes for row in evidence.rows)

    def role(self, evidence: ClassEvidence) -> str:
        """Why a class is explained."""
        roles = {self.runner_up: "runner-up", self.predicted: "predicted"}
        return roles.get(evidence.index, "asked for")

    def notes(self, row: Evidence) -> tuple[list[str], list[str], list[str]]:
        """What is said of a prototype beside its numbers: its head and part, whose it is, and what is the matter."""
        head = [f"head {row.head}"] if self.heads > 1 else []
        part = [row.part] if row.part else [f"here {plain_name(row.here)}"] if row.here else []
        whose = [] if row.own else [f"of {', '.join(row.of)}"]
        matter = {"background": row.background, "switched off": row.switched_off}
        return head + part, whose, [text for text, so in matter.items() if so]


@torch.no_grad()
def run_pass(model: PrototypeModel, images: Tensor) -> ModelPass:
    """The one pass over images, uint8 B×3×S×S."""
    if len(model.prototypes) == 0:
        raise DaplError(
            "this model has no prototypes, so there is nothing that explains its answer; take a run of another system."
        )
    return ModelPass(images, model(images.to(model.prototypes.vectors.device)))


def logits_of(model: PrototypeModel, done: ModelPass, switched_off: Collection[int] = ()) -> Tensor:
    """B×C, float64 on the CPU: the sum of the contributions of all prototypes that are not switched off."""
    return _logits(model, done.output.scores.double().cpu(), model.class_weights().double().cpu(), switched_off)


def _logits(model: PrototypeModel, scores: Tensor, weights: Tensor, switched_off: Collection[int]) -> Tensor:
    """Scores B×P and weights P×C, float64; neither is changed."""
    silent = list(switched_off)
    check_index(silent, "prototype", len(model.prototypes))
    if silent:
        scores = scores.index_fill(1, torch.tensor(silent), 0)
    return scores @ weights


def check_index(chosen: Collection[int], kind: str, count: int) -> None:
    """Refuse a class or prototype that there is not."""
    for index in chosen:
        if not 0 <= index < count:
            raise DaplError(f"there is no {kind} {index}; the model has {count}, counted from 0.")


def explain(
    model: PrototypeModel,
    image: Tensor,
    known: ModelRecords,
    *,
    classes: Sequence[int] | None = None,
    top: int = 10,
    switched_off: Collection[int] = (),
    facts: ImageFacts | None = None,
    among: Sequence[int] | None = None,
) -> Explanation:
    """One image, uint8 3×S×S: one model pass. As `explanations` otherwise."""
    done = run_pass(model, image.unsqueeze(0))
    chosen = None if classes is None else [classes]
    (found,) = explanations(
        model, done, known, classes=chosen, top=top, switched_off=switched_off, facts=[facts], among=among
    )
    return found


@torch.no_grad()
def explanations(
    model: PrototypeModel,
    done: ModelPass,
    known: ModelRecords,
    *,
    classes: Sequence[Sequence[int]] | None = None,
    top: int = 10,
    switched_off: Collection[int] = (),
    facts: Sequence[ImageFacts | None] | None = None,
    among: Sequence[int] | None = None,
) -> list[Explanation]:
    """Explain each image of a pass, without another pass.

    Args:
        classes: for each image the classes to explain; None: the predicted one and the runner-up.
        top: prototypes listed per class.
        switched_off: prototypes that are taken out of the sum, a counterfactual; the model is left as it is.
        facts: what is annotated on each image, where that is known.
        among: no other prototypes are listed.
    """
    if top < 1:
        raise DaplError(f"top is {top}; at least one prototype must be listed.")
    weights, scores = model.class_weights().double().cpu(), done.output.scores.double().cpu()
    logits = _logits(model, scores, weights, switched_off)
    silent = tuple(sorted(set(switched_off)))
    # A few numbers at a time from here on, for which NumPy takes a fraction of the time of torch.
    of_classes, of_images = weights.numpy(), scores.numpy()
    found = []
    for row in range(len(done.images)):
        shown = _two_best(logits[row]) if classes is None else list(classes[row])
        check_index(shown, "class", len(known.classes))
        own_weights = {c: of_classes[:, c] for c in shown}
        every = {c: of_images[row] * own_weights[c] for c in shown}
        listed = {c: _strongest(every[c], own_weights[c], top, among) for c in shown}
        everyone = sorted({j for rows in listed.values() for j in rows})
        common = _common_fields(model, done, row, everyone, known, None if facts is None else facts[row])
        probabilities = logits[row].softmax(0)
        evidence = []
        for c in shown:
            contributions = every[c]
            contributions[list(silent)] = 0
            rows = [
                Evidence(
                    own=known.classes[c] in common[j]["of"],
                    weight=weight,
                    contribution=contribution,
                    switched_off=j in silent,
                    **common[j],
                )
                for j, weight, contribution in zip(
                    listed[c], own_weights[c][listed[c]].tolist(), contributions[listed[c]].tolist(), strict=True
                )
            ]
            left = own_weights[c] != 0
            left[listed[c]] = False
            rest = Rest(int(np.count_nonzero(left)), float(torch.from_numpy(contributions[left]).sum()))
            evidence.append(
                ClassEvidence(c, known.classes[c], float(logits[row, c]), float(probabilities[c]), rows, rest)
            )
        groups = model.prototypes.groups
        found.append(Explanation(done.images[row], known.classes, logits[row], probabilities, evidence, groups, silent))
    return found


def _common_fields(
    model: PrototypeModel,
    done: ModelPass,
    row: int,
    listed: list[int],
    known: ModelRecords,
    facts: ImageFacts | None,
) -> dict[int, dict[str, Any]]:
    """For each listed prototype the fields of `Evidence` that are the same whatever the class, on image ``row``."""
    if not listed:
        return {}
    prototypes, side = model.prototypes, int(done.images.shape[-1])
    named = torch.tensor([listed], device=prototypes.vectors.device)
    locations = done.output.locations[row : row + 1].gather(1, named)
    embedding = done.output.embedding[row : row + 1].float()
    attention = model.evidence_maps(embedding, named, locations)
    maps = model.maps(embedding, named)[0]
    squares = squares_of(model, embedding, 0, named[0])
    found, heat = locate(model, maps, side, facts, squares), heat_of(model, maps, side, OVERLAY_SIDE)
    scores, heads = done.output.scores[row].tolist(), prototypes.group_of.tolist()
    slots, places = slots_of(model), locations[0].tolist()
    height, width = maps.shape[-2:]
    # To look into a tensor takes as long as to fill half of these fields: they are taken apart at once.
    own_maps, own_heat = maps.cpu().unbind(), heat.unbind()
    own_attention = [None] * len(listed) if attention is None else attention[0].cpu().unbind()
    common = {}
    for m, (j, classes) in enumerate(zip(listed, prototypes.classes_of(listed), strict=True)):
        y, x = divmod(places[m], width)
        record, said = known.record(j), known.described(j)
        box, outline = found.boxes[m], found.outlines[m]
        cropped = squares is not None and box is not None
        common[j] = {
            "prototype": j,
            "of": tuple(known.classes[c] for c in classes),
            "head": heads[j],
            "similarity": scores[j],
            "location": (y, x),
            "place": ((x + 0.5) * side / width, (y + 0.5) * side / height),
            "box": box,
            "outline": None if outline is None else outline.path,
            "view": box if cropped else close_up_of(None if outline is None else outline.main, side),
            "colour": head_colour(slots[j]),
            "dashed": is_dashed(slots[j]),
            "part": said.name,
            "parts": said.parts,
            "here": found.parts[m],
            "foreground": found.foreground[m],
            "on_object": said.on_object,
            "background": said.background,
            "same_spot": said.same_spot,
            "source": Source.of(record),
            "map": own_maps[m],
            "heat": own_heat[m],
            "attention": own_attention[m],
            "record": record,
            "cropped": cropped,
            "ends": None if outline is None else outline.ends,
            "bounds": None if outline is None else outline.bounds,
            "in_crop": found.in_crop[m],
        }
    return common


def _two_best(logits: Tensor) -> list[int]:
    """The predicted class and the runner-up; ties to the lower index, as argmax has it."""
    return logits.argsort(descending=True, stable=True)[:2].tolist()


def _strongest(
    contributions: np.ndarray, weights: np.ndarray, top: int, among: Sequence[int] | None = None
) -> list[int]:
    """Prototypes with a weight for the class, all or among these, by |contribution|; ties to the lower index.

    Shapes: contributions and weights P.
    """
    weighed = np.flatnonzero(weights)
    if among is not None:
        weighed = np.intersect1d(weighed, among)
    return weighed[np.argsort(-np.abs(contributions[weighed]), kind="stable")[:top]].tolist()


def _rounded(values: Tensor | None) -> list[list[float]] | None:
    return None if values is None else [[round(value, 5) for value in row] for row in values.tolist()]
