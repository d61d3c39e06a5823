"""One image explained, as an object that saves itself: HTML to look at, PNG to print, JSON to compute with."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from dapl.common.errors import DaplError
from dapl.common.files import replacing, write_json, write_text
from dapl.explain.draw import breakable, percentage, signed, templates
from dapl.explain.drawings import PageDrawings, group_notes, labels_of, overview, view_of
from dapl.explain.evidence import ClassEvidence, Evidence, Explanation, Reason, doc
from dapl.explain.figure import draw_figure
from dapl.explain.patches import Patch, PatchSource
from dapl.metrics.naming import plain_name, share_text

FORMATS = ("html", "png", "json")
JSON_FORMAT, JSON_VERSION = "dapl-explanation", 2
_MOST = 0.9
"""Of a region that lies in its crop to this share nothing needs to be said."""
_BARS = 5
"""Classes whose probability the head of the page shows."""


@dataclass(frozen=True)
class ShownPatch:
    """A close-up of the training image around a prototype's region."""

    image: str = field(metadata=doc("Address of the image."))
    width: int
    height: int
    outline: str | None = field(metadata=doc("Outline of the region in it, as path data of SVG."))

    @classmethod
    def of(cls, patch: Patch, address: str) -> ShownPatch:
        return cls(address, patch.image.shape[-1], patch.image.shape[-2], patch.outline)


@dataclass(frozen=True)
class ShownReason(Reason):
    """A `Reason` with the addresses of its images, as a page shows it: data URIs in a file, URLs of a server."""

    heat: str = field(metadata=doc("Address of a transparent PNG: where it is active in the image."))
    attention: str | None = field(metadata=doc("The same: from where that place took its values."))
    patch: ShownPatch | None


@dataclass(frozen=True, repr=False)
class LocalExplanation(Explanation):
    """Why an image got its label, as it is shown and saved.

    >>> why = model.explain("bird.jpg")                   # doctest: +SKIP
    >>> why                                               # doctest: +SKIP
    LocalExplanation(bird.jpg: 001.Black_footed_Albatross 97.1%, 2 classes, 20 prototypes)
    >>> why.classes[0].rows[0].contribution               # doctest: +SKIP
    2.521
    >>> why.save("bird.html")                             # doctest: +SKIP
    """

    def __repr__(self) -> str:
        rows = sum(len(evidence.rows) for evidence in self.classes)
        label = f"{self.predicted_name} {percentage(float(self.probabilities.max()))}"
        return f"LocalExplanation({self.name}: {label}, {len(self.classes)} classes, {rows} prototypes)"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither its style nor its script policy meets the notebook's."""
        page = html.escape(self.html(), quote=True)
        title = html.escape(repr(self), quote=True)
        return (
            f'<iframe srcdoc="{page}" title="{title}" sandbox loading="lazy" '
            'style="width:100%;height:640px;border:1px solid #8884;border-radius:8px"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write to ``path``, as its suffix says: .html, .png or .json."""
        path = Path(path)
        kind = path.suffix.lower().removeprefix(".")
        if kind not in FORMATS:
            raise DaplError(f"{path}: an explanation is saved as .html, .png or .json.")
        if kind == "html":
            write_text(path, self.html(), synced=False)  # to wait for a disk takes longer than to explain
        elif kind == "json":
            write_json(path, self.to_json())
        else:
            with replacing(path) as temporary:
                draw_figure(self).save(temporary, format="PNG", dpi=(200, 200))
        return path

    def html(self) -> str:
        """One page with everything inside."""
        best = self.probabilities.argsort(descending=True, stable=True)[:_BARS].tolist()
        drawings = PageDrawings(self)
        view = view_of(self.classes[0].rows, drawings.size)
        labels = labels_of(self.classes[0].rows, self.heads, drawings.size, view)
        template = templates("dapl.explain").get_template("local.html.j2")
        return template.render(
            why=self,
            predicted_name=self.predicted_name,
            warning=self.warning,
            with_crops=self.with_crops,
            bars=[(self.class_names[c], float(self.probabilities[c])) for c in best],
            labels=labels,
            overviews=[overview(labels, drawings.size, with_names, view) for with_names in (True, False)],
            drawings=drawings,
        )

    # What follows is text, not template: a page has twenty rows, and a template takes three times as long.

    def table_rows(
        self, evidence: ClassEvidence, drawings: PageDrawings, strongest: float, with_attention: bool
    ) -> Markup:
        """A row per prototype: part of this image, training patch, attention where there is any, and what is said."""
        rows = []
        for row in evidence.rows:
            drawn, off = drawings.of[row.prototype], ' class="off"' if row.switched_off else ""
            attention = f'<td class="look attention">{drawn.attention or ""}</td>' if with_attention else ""
            source = "" if row.source is None else f'<p class="source">from {breakable(row.source.image)}</p>'
            rows.append(
                f'<tr data-prototype="{row.prototype}"{off}>\n'
                f'<td class="look">{drawn.part}</td>\n<td class="look">{drawn.patch}</td>\n{attention}\n'
                f'<td class="why">\n{self.sum_line(row, strongest)}\n'
                f'<div class="chips">{self.chips(row)}</div>\n{source}\n</td>\n</tr>'
            )
        return Markup("\n".join(rows))

    def sum_line(self, row: Evidence, strongest: float) -> Markup:
        """Similarity × weight = contribution, each as it is shown and exactly, and a bar against the strongest."""
        side = ' class="against"' if row.contribution < 0 else ""
        numbers = (f'value="{value!r}">{signed(value)}' for value in (row.similarity, row.weight, row.contribution))
        similarity, weight, contribution = numbers
        return Markup(
            f'<div class="sum"><data {similarity}</data> &times; <data {weight}</data> = '
            f'<b{side}><data class="contribution" {contribution}</data></b></div>\n'
            f'<div class="meter"><i{side} style="width:{100 * abs(row.contribution) / strongest:.2f}%"></i></div>'
        )

    def chips(self, row: Evidence) -> Markup:
        """What is said of a prototype below its numbers."""
        dashed = " dashed" if row.dashed else ""
        head = f"head {row.head} &middot; " if self.heads > 1 else ""
        key = f'<i class="key{dashed}" style="background-color:{row.colour}"></i>'
        said = [_chip(Markup(f"{key}{head}prototype {row.prototype}"))]
        if row.part:
            meaning = "the parts that it is on, with the share of the measured images in which it is"
            said.append(_chip(row.part, meaning))
        if not row.outline:
            said.append(_chip("nothing here stands out", "its similarity is the same at every place"))
        if row.here:
            said.append(_chip(f"here {plain_name(row.here)}", "the part that most of its region lies on in this image"))
        if row.in_crop is not None and row.in_crop < _MOST:
            text = f"the crop holds {share_text(row.in_crop)} of what is outlined"
            said.append(_chip(text, "the head looks at the whole outline, but sees the crop and no other pixel"))
        if row.foreground is not None:
            text = f"{share_text(row.foreground)} on the object here"
            said.append(_chip(text, "share of the outlined region that lies on the object"))
        if not row.own:
            said.append(_chip(f"of {', '.join(row.of)}"))
        elif len(row.of) > 1:
            said.append(_chip(f"shared by {len(row.of)} classes", ", ".join(row.of)))
        if row.background and row.on_object is not None:
            text = f"background: {share_text(row.on_object)} on the object"
            said.append(_chip(text, "mean over the measured images", warns=True))
        if row.switched_off:
            said.append(_chip("switched off", warns=True))
        return Markup("\n".join(said))

    def group_notes(self, evidence: ClassEvidence) -> list[str]:
        """Which reasons of a class look at the same spot."""
        return group_notes(evidence.rows, self.heads)

    def to_json(self) -> dict[str, Any]:
        """Plain values; docs/explain.md says what each is."""
        return {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "image": self.name,
            "model": self.about,
            "image_size": self.image.shape[-1],
            "predicted": self.predicted_name,
            "warning": self.warning,
            "switched_off": list(self.switched_off),
            "probabilities": dict(zip(self.class_names, self.probabilities.double().tolist(), strict=True)),
            "logits": dict(zip(self.class_names, self.logits.double().tolist(), strict=True)),
            "classes": [evidence.to_json() for evidence in self.classes],
        }

    def text(self, rows: int = 5) -> str:
        """For a terminal: the strongest ``rows`` of each class and the sum."""
        blocks = [f"{self.name}: {self.predicted_name} ({percentage(float(self.probabilities.max()))})"]
        blocks += [] if self.warning is None else [f"  warning: {self.warning}"]
        blocks += [self._class_text(evidence, rows) for evidence in self.classes]
        return "\n".join(blocks)

    def _class_text(self, evidence: ClassEvidence, count: int) -> str:
        lines = [f"  {evidence.name}  ({percentage(evidence.probability)})"]
        for row in evidence.rows[:count]:
            notes = ", ".join(chain(*self.notes(row)))
            lines.append(
                f"    {row.contribution:8.3f} = {row.similarity:6.3f} × {row.weight:6.3f}   "
                f"prototype {row.prototype}{': ' if notes else ''}{notes}"
            )
        left = sum(row.contribution for row in evidence.rows[count:]) + evidence.rest.contribution
        others = len(evidence.rows[count:]) + evidence.rest.prototypes
        if others:
            lines.append(f"    {left:8.3f}   {others} other prototype{'s' if others > 1 else ''}")
        return "\n".join([*lines, f"    {evidence.logit:8.3f}   logit"])


def _chip(text: str, meaning: str = "", warns: bool = False) -> str:
    look, title = ' class="warn"' if warns else "", f' title="{escape(meaning)}"' if meaning else ""
    return f"<span{look}{title}>{escape(text)}</span>"


def localise(explanation: Explanation, name: str, about: str, patches: PatchSource, seen: str = "") -> LocalExplanation:
    """An explanation with the name of its image, the model in a few words, where training patches are had from, and
    which part of the image the model saw."""
    return LocalExplanation(**vars(explanation) | {"name": name, "about": about, "patches": patches, "seen": seen})
