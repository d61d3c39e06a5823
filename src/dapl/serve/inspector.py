"""Questions about pictures: the model is asked once for each, and every further question is answered from that."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dapl.api import Classifier
from dapl.data.sample import Sample
from dapl.data.transforms import fit
from dapl.explain.evidence import Explanation, Seen, explanations, logits_of, see
from dapl.explain.local import LocalExplanation, localise
from dapl.explain.parts import PictureFacts, facts_of
from dapl.serve import answers
from dapl.serve.encode import attention_png, heat_png, jpeg
from dapl.serve.refusal import Refusal
from dapl.serve.views import class_view, ranking
from dapl.training.records import PrototypeRecord

REMEMBERED = 48
"""Pictures that can be asked about again."""
log = logging.getLogger("dapl.serve")


@dataclass
class Held:
    """One picture that was seen."""

    id: str
    seen: Seen
    facts: PictureFacts | None
    name: str | None
    label: int | None
    photo: bytes
    """JPEG, as the model sees it."""
    overlays: dict[str, bytes] = field(default_factory=dict)
    """PNG by ``heat-<prototype>`` or ``attention-<prototype>``."""

    def url(self, name: str) -> str:
        return f"/api/pictures/{self.id}/{name}"


@dataclass(frozen=True)
class PatchImage:
    content: bytes
    view: answers.Patch


class Inspector:
    """All but `photo` and `overlay` must run in one thread."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self.missing_patches = False
        """Whether training pictures were asked for and are not at hand."""
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._lock = threading.Lock()
        self._patches: dict[int, PatchImage | None] = {}

    # --- pictures -----------------------------------------------------------------------------------------------

    def look_at(self, sample: Sample, parts: Sequence[str], picture_id: str | None = None) -> Held:
        """One pass. ``sample``: fitted to the model's size; ``picture_id``: None makes one that is hard to guess."""
        image = sample.image.as_subclass(Tensor)
        seen = see(self.classifier.model, image.unsqueeze(0))
        facts = facts_of(sample, parts) if sample.label >= 0 else None
        held = Held(
            picture_id or secrets.token_urlsafe(16), seen, facts, sample.name or None,
            sample.label if sample.label >= 0 else None, jpeg(image),
        )  # fmt: skip
        with self._lock:
            self._held[held.id] = held
            while len(self._held) > REMEMBERED:
                self._held.popitem(last=False)
        return held

    def fitted(self, sample: Sample) -> Sample:
        return fit(sample, self.classifier.image_size, self.classifier.fit)

    def remembered(self, picture_id: str) -> Held | None:
        with self._lock:
            if picture_id in self._held:
                self._held.move_to_end(picture_id)
            return self._held.get(picture_id)

    # --- questions ----------------------------------------------------------------------------------------------

    def answer(self, held: Held, classes: Sequence[int], top: int, switched_off: Sequence[int]) -> answers.Answer:
        model, known = self.classifier.model, self.classifier.known
        self._check(classes, switched_off)
        found = explanations(
            model, held.seen, known, classes=[list(dict.fromkeys(classes))] if classes else None, top=top,
            switched_off=switched_off, facts=[held.facts],
        )[0]  # fmt: skip
        local = self._localised(found, held)
        before = logits_of(model, held.seen)[0]
        return answers.Answer(
            picture=answers.Picture(id=held.id, name=held.name, label=held.label, image=held.url("photo.jpg")),
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
