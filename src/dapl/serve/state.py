"""What is kept of a run while it is served: its examples, the images that were asked about, its report and marks.

The model is asked once per image, and every further question about it is answered from that.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Annotated, Literal

from fastapi import Depends, Request
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.config import Config
from dapl.data.build import build_splits
from dapl.data.sample import Dataset, Sample, Splits
from dapl.data.transforms import fit
from dapl.explain.classifier import Classifier
from dapl.explain.draw import ATTENTION, jpeg, overlay, templates
from dapl.explain.drawings import labels_of
from dapl.explain.evidence import Evidence, ModelPass, check_index, explanations, logits_of, run_pass
from dapl.explain.local import LocalExplanation, ShownPatch, ShownReason, localise
from dapl.explain.parts import ImageFacts, facts_of, seen_of
from dapl.report.collect import Report, collect
from dapl.report.page import Linked, render
from dapl.runs.loading import LoadedRun
from dapl.runs.marks import Marks
from dapl.serve import answers
from dapl.serve.requests import ModelThread, Refusal

REMEMBERED = 48
"""Images that can be asked about again."""
_ENCODED = 512
"""Examples that are kept encoded."""
_BEST = 5
"""Classes that are ranked whether they are explained or not."""
_QUALITY = 90
"""The quality of JPEGs, of 100."""
POLICY = f"{Linked().policy()}; connect-src 'self'"
IMAGE_HEADERS = {"Cache-Control": "private, max-age=3600"}
log = logging.getLogger("dapl.serve")


def check_known(chosen: Sequence[int], kind: str, count: int) -> None:
    """404 for a class or prototype that there is not."""
    try:
        check_index(chosen, kind, count)
    except DaplError as error:
        raise Refusal(404, str(error)[:1].upper() + str(error)[1:]) from None


class Examples:
    """The test split, or nothing where it cannot be opened: the page then takes uploads only."""

    def __init__(self, config: Config, splits: Splits | None = None) -> None:
        self.config = config
        self.dataset: Dataset | None = None
        self.image = lru_cache(_ENCODED)(self._image)
        self._decoding = threading.Lock()
        try:
            self.dataset = (splits or build_splits(config.data)).test
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

    def sample(self, index: int) -> tuple[Sample, str]:
        """At the size that the model sees, and which part of the image that is (`seen_of`)."""
        if self.dataset is None or not 0 <= index < len(self.dataset):
            raise Refusal(404, f"There is no example {index}; there are {len(self)}, counted from 0.")
        data = self.config.data
        try:
            with self._decoding:  # one image is decoded at a time, so that memory stays bounded
                whole = self.dataset[index]
                return fit(whole, data.image_size, data.fit), seen_of(whole, data.fit)
        except DaplError as error:
            log.warning("example %d: %s", index, error)
            raise Refusal(404, "The image of this example is not at hand; choose another one.") from None

    def _image(self, index: int) -> bytes:
        """JPEG."""
        return jpeg(self.sample(index)[0].image.as_subclass(Tensor), _QUALITY)


def _in_turn(dataset: Dataset) -> list[int]:
    """The first of each class, then the second of each, and so on."""
    seen = [count() for _ in dataset.classes]
    ranked = [(next(seen[label]), label, index) for index, label in enumerate(dataset.labels)]
    return [index for _, _, index in sorted(ranked)]


@dataclass
class AskedImage:
    """One image that went through the model."""

    id: str
    done: ModelPass
    facts: ImageFacts | None
    name: str | None
    label: int | None
    photo: bytes
    """JPEG, as the model sees it."""
    seen: str
    """Which part of the image file that is; empty where it is all of it."""
    prefix: str = ""
    """What the addresses of its run begin with."""
    overlays: dict[str, bytes] = field(default_factory=dict)
    """PNG by ``heat-<prototype>`` or ``attention-<prototype>``."""

    def url(self, name: str) -> str:
        return f"{self.prefix}/api/images/{self.id}/{name}"

    def draw(self, name: str, values: Tensor | None, *stops: tuple) -> str | None:
        """The address of an overlay, which is drawn once."""
        if values is None:
            return None
        if name not in self.overlays:
            self.overlays[name] = overlay(values, *stops)
        return self.url(f"{name}.png")


class Inspector:
    """Must run in one thread, but for `remembered`."""

    def __init__(self, classifier: Classifier, prefix: str = "") -> None:
        """``prefix``: of the addresses of its run, where several are served."""
        self.classifier, self.prefix = classifier, prefix
        self.missing_patches = False
        """Whether training images were asked for and are not at hand."""
        self._images, self._lock = OrderedDict[str, AskedImage](), threading.Lock()
        self._patches: dict[int, tuple[bytes, ShownPatch] | None] = {}

    def remembered(self, image_id: str) -> AskedImage | None:
        with self._lock:
            if image_id in self._images:
                self._images.move_to_end(image_id)
            return self._images.get(image_id)

    def ask(self, sample: Sample, parts: Sequence[str] = (), image_id: str | None = None, seen: str = "") -> AskedImage:
        """One pass. ``sample``: fitted to the model's size; ``image_id``: None makes one that is hard to guess;
        ``seen``: which part of the image file that is."""
        image = sample.image.as_subclass(Tensor)
        known = sample.label >= 0
        asked = AskedImage(
            image_id or secrets.token_urlsafe(16),
            run_pass(self.classifier.model, image.unsqueeze(0)),
            facts_of(sample, parts) if known else None,
            sample.name or None,
            sample.label if known else None,
            jpeg(image, _QUALITY),
            seen,
            self.prefix,
        )
        with self._lock:
            self._images[asked.id] = asked
            if len(self._images) > REMEMBERED:
                self._images.popitem(last=False)
        return asked

    def answer(
        self, asked: AskedImage, classes: Sequence[int], top: int, switched_off: Sequence[int]
    ) -> answers.Answer:
        model, known = self.classifier.model, self.classifier.known
        check_known(classes, "class", len(known.classes))
        check_known(switched_off, "prototype", len(model.prototypes))
        chosen = [list(dict.fromkeys(classes))] if classes else None
        found = explanations(
            model, asked.done, known, classes=chosen, top=top, switched_off=switched_off, facts=[asked.facts]
        )[0]
        why = localise(found, asked.name or "", self.classifier.about, self.classifier.patches)
        before = logits_of(model, asked.done)[0]
        return answers.Answer(
            image=answers.AnsweredImage(
                id=asked.id, name=asked.name, label=asked.label, url=asked.url("photo.jpg"), seen=asked.seen
            ),
            predicted=why.predicted,
            predicted_before=int(before.argmax()),
            ranking=_ranking(why, before.softmax(0)),
            classes=[
                answers.ClassAnswer(
                    **vars(evidence)
                    | {"rows": [self._shown(row, asked) for row in evidence.rows], "total": evidence.total},
                    before=float(before[evidence.index]),
                    labels=labels_of(evidence.rows, why.heads, why.image.shape[-1]),
                    notes=why.group_notes(evidence),
                    warning=evidence.warning,
                )
                for evidence in why.classes
            ],
            switched_off=list(why.switched_off),
        )

    def _shown(self, row: Evidence, asked: AskedImage) -> ShownReason:
        patch = self.patch(row.prototype, row.cropped) if self.classifier.known.records else None
        return ShownReason(
            **row.facts(),
            heat=asked.draw(f"heat-{row.prototype}", row.heat) or "",
            attention=asked.draw(f"attention-{row.prototype}", row.attention, ATTENTION),
            patch=None if patch is None else patch[1],
        )

    def patch(self, prototype: int, cropped: bool = False) -> tuple[bytes, ShownPatch] | None:
        """The training patch of a prototype as a JPEG; None where it is not at hand.

        ``cropped``: all that its head saw, and no more; asked for again, it is what was shown before.
        """
        records, source = self.classifier.known.records, self.classifier.patches
        check_known([prototype], "prototype", len(records))
        if prototype not in self._patches:
            whole = source.patch(records[prototype])
            if source.problem is not None and not self.missing_patches:
                log.warning("%s", source.problem)  # it names files, which is for this side only
                self.missing_patches = True
            near = None if whole is None else whole.cut() if cropped else whole.close_up()
            address = f"{self.prefix}/api/prototypes/{prototype}/patch.jpg"
            self._patches[prototype] = (
                None if near is None else (jpeg(near.image, _QUALITY), ShownPatch.of(near, address))
            )
        return self._patches[prototype]


def _ranking(why: LocalExplanation, before: Tensor) -> list[answers.Ranked]:
    """The best classes, those explained and the one that was best; ``before``: probabilities with everything on, C."""
    order = why.logits.argsort(descending=True, stable=True).tolist()
    shown = {*order[:_BEST], int(before.argmax()), *(evidence.index for evidence in why.classes)}
    return [
        answers.Ranked(
            index=c,
            name=why.class_names[c],
            logit=float(why.logits[c]),
            probability=float(why.probabilities[c]),
            before=float(before[c]),
        )
        for c in order
        if c in shown
    ]


class LiveReport:
    """It takes a pass over the test images, so it is made beside everything else, once."""

    def __init__(self, loaded: LoadedRun, prefix: str = "", splits: Splits | None = None) -> None:
        self.loaded, self._splits = loaded, splits
        self.assets = Linked(f"{prefix}/report/images/", f"{prefix}/report/static/", base=prefix)
        self.report: Report | None = None
        self._state: Literal["not asked for", "being made", "made", "failed"] = "not asked for"
        self._lock = threading.Lock()

    def state(self) -> str:
        """Asking starts it."""
        with self._lock:
            if self._state == "not asked for":
                self._state = "being made"
                threading.Thread(target=self._make, name="report", daemon=True).start()
            return self._state

    def html(self) -> str:
        """Only once it is made."""
        assert self.report is not None
        template = templates("dapl.serve", "dapl.report", "dapl.explain").get_template("live_report.html.j2")
        return render(self.report.data, self.assets, template, POLICY)

    def _make(self) -> None:
        try:
            self.report = collect(self.loaded.run.folder, self.loaded.config, splits=self._splits, quiet=True)
        except (DaplError, OSError, MemoryError) as error:
            log.error("the report could not be made: %s", error)
        finally:  # also where it is a mistake of ours, whose traceback goes to the log: the page must not wait for ever
            with self._lock:
                self._state = "failed" if self.report is None else "made"


@dataclass(frozen=True)
class State:
    loaded: LoadedRun
    classifier: Classifier
    inspector: Inspector
    examples: Examples
    marks: Marks
    worker: ModelThread
    report: LiveReport
    prefix: str = ""
    """What all addresses of the run begin with, where several runs are served."""


def _state(request: Request) -> State:
    return request.app.state.dapl


Shared = Annotated[State, Depends(_state)]
"""Type of a route's parameter that takes the state."""


def problems(*statuses: int) -> dict[int | str, dict]:
    """For the schema: the errors that a route can answer with."""
    return {status: {"model": answers.Problem} for status in statuses}
