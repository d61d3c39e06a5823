"""Images as the bytes that are sent.

Test images of a run's data, where the data is at hand.

From evidence to what the API answers.

Questions about images: the model is asked once for each, and every further question is answered from that.
"""

from __future__ import annotations

import base64
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.sample import Dataset, Sample
from dapl.data.transforms import fit
from dapl.explain.classifier import Classifier
from dapl.explain.draw import ATTENTION, jpeg_uri, overlay_uri
from dapl.explain.evidence import ClassEvidence, Evidence, Explanation, Seen, explanations, logits_of, see
from dapl.explain.local import LocalExplanation, localise
from dapl.explain.parts import ImageFacts, facts_of
from dapl.runs.records import PrototypeRecord
from dapl.serve import answers
from dapl.serve.requests import Refusal


def jpeg(image: Tensor) -> bytes:
    """uint8 3×h×w."""
    return _content(jpeg_uri(image, quality=90))


def heat_png(heat: Tensor) -> bytes:
    """S×S: where a prototype is active."""
    return _content(overlay_uri(heat))


def attention_png(attention: Tensor) -> bytes:
    """H×W: from where a place took its values."""
    return _content(overlay_uri(attention, ATTENTION))


def _content(uri: str) -> bytes:
    return base64.b64decode(uri.partition(",")[2])


_KEPT = 512
"""Images that are kept encoded."""
log = logging.getLogger("dapl.serve")


class Examples:
    """The test split, or nothing where it cannot be opened: the page then takes uploads only."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dataset: Dataset | None = None
        self._encoded: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()
        try:
            self.dataset = build_splits(config.data).test
        except DaplError as error:
            log.warning("no examples: %s", error)

    def __len__(self) -> int:
        return 0 if self.dataset is None else len(self.dataset)

    def find(self, label: int | None, start: int, count: int) -> tuple[int, list[int]]:
        """How many there are of a class (None: of all, one of each class in turn), and ``count`` of them."""
        if self.dataset is None:
            return 0, []
        if label is None:
            found = _in_turn(self.dataset)
        else:
            found = [index for index, own in enumerate(self.dataset.labels) if own == label]
        return len(found), found[start : start + count]

    def sample(self, index: int) -> Sample:
        """At the size that the model sees."""
        if self.dataset is None or not 0 <= index < len(self.dataset):
            raise Refusal(404, f"There is no example {index}; there are {len(self)}, counted from 0.")
        data = self.config.data
        try:
            with self._lock:  # one image is decoded at a time, so that memory stays bounded
                return fit(self.dataset[index], data.image_size, data.fit)
        except DaplError as error:
            log.warning("example %d: %s", index, error)
            raise Refusal(404, "The image of this example is not at hand; choose another one.") from None

    def image(self, index: int) -> bytes:
        """JPEG."""
        found = self._encoded.get(index)
        if found is None:
            found = jpeg(self.sample(index).image.as_subclass(Tensor))
            with self._lock:
                self._encoded[index] = found
                while len(self._encoded) > _KEPT:
                    self._encoded.popitem(last=False)
        return found


def _in_turn(dataset: Dataset) -> list[int]:
    """The first of each class, then the second of each, and so on."""
    seen = [0] * len(dataset.classes)
    ranked = []
    for index, label in enumerate(dataset.labels):
        ranked.append((seen[label], label, index))
        seen[label] += 1
    return [index for _, _, index in sorted(ranked)]


_BEST = 5
"""Classes that are ranked whether they are explained or not."""


def ranking(found: Explanation, before: Tensor) -> list[answers.Ranked]:
    """``before``: probabilities with every prototype switched on, C."""
    order = found.logits.argsort(descending=True, stable=True).tolist()
    shown = {*order[:_BEST], int(before.argmax()), *(evidence.class_index for evidence in found.classes)}
    return [
        answers.Ranked(
            index=c,
            name=found.class_names[c],
            logit=float(found.logits[c]),
            probability=float(found.probabilities[c]),
            before=float(before[c]),
        )
        for c in order
        if c in shown
    ]


def class_view(
    evidence: ClassEvidence,
    before: float,
    url: Callable[[str], str],
    patch: Callable[[int], answers.Patch | None],
) -> answers.ClassEvidence:
    """``before``: the logit with every prototype switched on; ``url``: of what belongs to the image."""
    return answers.ClassEvidence(
        index=evidence.class_index,
        name=evidence.class_name,
        logit=evidence.logit,
        probability=evidence.probability,
        before=before,
        rows=[_row(row, url, patch(row.prototype)) for row in evidence.rows],
        rest=answers.Rest(prototypes=evidence.rest.prototypes, contribution=evidence.rest.contribution),
        total=evidence.total,
    )


def source_view(record: PrototypeRecord | None) -> answers.Source | None:
    if record is None or record.image is None:
        return None
    return answers.Source(
        image=record.image,
        box=record.box,
        location=record.location,
        foreground_share=record.foreground_share,
        region_foreground=record.region_foreground,
        grounded=record.grounded,
    )


def _row(row: Evidence, url: Callable[[str], str], patch: answers.Patch | None) -> answers.Row:
    side = row.heat.shape[-1]
    rows, columns = row.map.shape
    return answers.Row(
        prototype=row.prototype,
        of=list(row.class_of),
        own=row.own,
        head=row.head,
        similarity=row.score,
        weight=row.weight,
        contribution=row.contribution,
        switched_off=row.switched_off,
        location=row.location,
        place=((row.location[1] + 0.5) * side / columns, (row.location[0] + 0.5) * side / rows),
        box=row.box,
        part=row.part,
        part_from=row.part_from,
        foreground=row.foreground,
        background=row.background,
        source=source_view(row.record),
        heat=url(f"heat-{row.prototype}.png"),
        attention=None if row.attention is None else url(f"attention-{row.prototype}.png"),
        patch=patch,
    )


REMEMBERED = 48
"""Images that can be asked about again."""
log = logging.getLogger("dapl.serve")


@dataclass
class Held:
    """One image that was seen."""

    id: str
    seen: Seen
    facts: ImageFacts | None
    name: str | None
    label: int | None
    photo: bytes
    """JPEG, as the model sees it."""
    overlays: dict[str, bytes] = field(default_factory=dict)
    """PNG by ``heat-<prototype>`` or ``attention-<prototype>``."""

    def url(self, name: str) -> str:
        return f"/api/images/{self.id}/{name}"


@dataclass(frozen=True)
class PatchImage:
    content: bytes
    view: answers.Patch


class Inspector:
    """All but `photo` and `overlay` must run in one thread."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self.missing_patches = False
        """Whether training images were asked for and are not at hand."""
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._lock = threading.Lock()
        self._patches: dict[int, PatchImage | None] = {}

    # --- images -----------------------------------------------------------------------------------------------

    def look_at(self, sample: Sample, parts: Sequence[str], image_id: str | None = None) -> Held:
        """One pass. ``sample``: fitted to the model's size; ``image_id``: None makes one that is hard to guess."""
        image = sample.image.as_subclass(Tensor)
        seen = see(self.classifier.model, image.unsqueeze(0))
        facts = facts_of(sample, parts) if sample.label >= 0 else None
        held = Held(
            image_id or secrets.token_urlsafe(16),
            seen,
            facts,
            sample.name or None,
            sample.label if sample.label >= 0 else None,
            jpeg(image),
        )
        with self._lock:
            self._held[held.id] = held
            while len(self._held) > REMEMBERED:
                self._held.popitem(last=False)
        return held

    def fitted(self, sample: Sample) -> Sample:
        return fit(sample, self.classifier.image_size, self.classifier.fit)

    def remembered(self, image_id: str) -> Held | None:
        with self._lock:
            if image_id in self._held:
                self._held.move_to_end(image_id)
            return self._held.get(image_id)

    # --- questions ----------------------------------------------------------------------------------------------

    def answer(self, held: Held, classes: Sequence[int], top: int, switched_off: Sequence[int]) -> answers.Answer:
        model, known = self.classifier.model, self.classifier.known
        self._check(classes, switched_off)
        found = explanations(
            model,
            held.seen,
            known,
            classes=[list(dict.fromkeys(classes))] if classes else None,
            top=top,
            switched_off=switched_off,
            facts=[held.facts],
        )[0]
        local = self._localised(found, held)
        before = logits_of(model, held.seen)[0]
        return answers.Answer(
            image=answers.AskedImage(id=held.id, name=held.name, label=held.label, url=held.url("photo.jpg")),
            predicted=local.predicted,
            predicted_before=int(before.argmax()),
            ranking=ranking(local, before.softmax(0)),
            classes=[
                class_view(evidence, float(before[evidence.class_index]), held.url, self._patch_view)
                for evidence in local.classes
            ],
            switched_off=list(local.switched_off),
        )

    def patch(self, prototype: int) -> PatchImage | None:
        """The training patch of a prototype; None where it is not at hand."""
        records = self.classifier.known.records
        if not 0 <= prototype < len(records):
            raise Refusal(404, f"There is no prototype {prototype}; the model has {len(records)}, counted from 0.")
        if prototype not in self._patches:
            self._patches[prototype] = self._draw_patch(records[prototype])
        return self._patches[prototype]

    def _check(self, classes: Sequence[int], switched_off: Sequence[int]) -> None:
        count, prototypes = len(self.classifier.classes), len(self.classifier.model.prototypes)
        for label in classes:
            if not 0 <= label < count:
                raise Refusal(404, f"There is no class {label}; the model has {count}, counted from 0.")
        for prototype in switched_off:
            if not 0 <= prototype < prototypes:
                raise Refusal(404, f"There is no prototype {prototype}; the model has {prototypes}, counted from 0.")

    def _localised(self, found: Explanation, held: Held) -> LocalExplanation:
        """With the parts named and the overlays drawn."""
        annotated = held.facts is not None and held.facts.parts is not None
        patches, name = self.classifier.patches, held.name or ""
        local = localise(found, name, self.classifier.about, patches, with_parts=not annotated)
        for evidence in local.classes:
            for row in evidence.rows:
                if f"heat-{row.prototype}" not in held.overlays:
                    held.overlays[f"heat-{row.prototype}"] = heat_png(row.heat)
                    if row.attention is not None:
                        held.overlays[f"attention-{row.prototype}"] = attention_png(row.attention)
        return local

    def _patch_view(self, prototype: int) -> answers.Patch | None:
        if not self.classifier.known.records:
            return None
        found = self.patch(prototype)
        return None if found is None else found.view

    def _draw_patch(self, record: PrototypeRecord) -> PatchImage | None:
        source = self.classifier.patches
        whole = source.patch(record)
        if source.problem is not None and not self.missing_patches:
            log.warning("%s", source.problem)  # it names files, which is for this side only
            self.missing_patches = True
        if whole is None:
            return None
        near = whole.close_up()
        height, width = near.image.shape[-2:]
        url = f"/api/prototypes/{record.index}/patch.jpg"
        return PatchImage(jpeg(near.image), answers.Patch(image=url, width=width, height=height, box=near.box))
