"""The explanation of one image as an HTML page that needs nothing beside itself.

One image explained, as an object that saves itself: HTML to look at, PNG to print, JSON to compute with.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from torch import Tensor

from dapl.common.errors import DaplError
from dapl.common.files import replacing, write_json, write_text
from dapl.explain.draw import ATTENTION, jpeg_uri, overlay_uri, percentage, signed
from dapl.explain.evidence import ClassEvidence, Evidence, Explanation
from dapl.explain.patches import Box, NoPatches, PatchSource

_BARS = 5
"""Classes whose probability the head of the page shows."""


def render(explanation: LocalExplanation) -> str:
    overlays: dict[int, dict[str, Any]] = {}
    classes = [_class_view(evidence, explanation, overlays) for evidence in explanation.classes]
    best = explanation.probabilities.argsort(descending=True, stable=True)[:_BARS].tolist()
    strongest = max((abs(row.contribution) for e in explanation.classes for row in e.rows), default=0.0)
    return _template().render(
        name=explanation.name,
        about=explanation.about,
        predicted=explanation.predicted_name,
        probability=float(explanation.probabilities.max()),
        bars=[(explanation.class_names[c], float(explanation.probabilities[c])) for c in best],
        size=int(explanation.image.shape[-1]),
        image=Markup(jpeg_uri(explanation.image, quality=92)),
        classes=classes,
        strongest=strongest or 1.0,
        with_heads=explanation.heads > 1,
        with_attention=any(row.attention is not None for e in explanation.classes for row in e.rows),
        switched_off=explanation.switched_off,
        problem=explanation.patches.problem,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("dapl.explain"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": signed, "exact": repr, "percent": percentage}
    return environment.get_template("local.html.j2")


def _class_view(
    evidence: ClassEvidence, explanation: LocalExplanation, drawn: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """``drawn``: what is shown of a prototype whatever the class, so that it is drawn once."""
    rows = []
    for row in evidence.rows:
        if row.prototype not in drawn:
            drawn[row.prototype] = _looks(row, explanation)
        rows.append({"evidence": row, **drawn[row.prototype]})
    role = (
        "predicted"
        if evidence.class_index == explanation.predicted
        else ("runner-up" if evidence.class_index == explanation.runner_up else "asked for")
    )
    return {"evidence": evidence, "role": role, "rows": rows}


def _looks(row: Evidence, explanation: LocalExplanation) -> dict[str, Any]:
    """Addresses of images are made of letters that need no escaping, and long."""
    height, width = row.map.shape
    size = explanation.image.shape[-1]
    place = ((row.location[1] + 0.5) * size / width, (row.location[0] + 0.5) * size / height)
    patch = None if row.record is None else explanation.patches.patch(row.record)
    near = None if patch is None else patch.close_up()
    return {
        "heat": Markup(overlay_uri(row.heat)),
        "box": _rectangle(row.box),
        "place": place,
        "attention": None if row.attention is None else Markup(overlay_uri(row.attention, ATTENTION)),
        "patch": None
        if near is None
        else {
            "image": Markup(jpeg_uri(near.image)),
            "width": near.image.shape[-1],
            "height": near.image.shape[-2],
            "box": None if near.box is None else _rectangle(near.box),
        },
    }


def _rectangle(box: Box) -> dict[str, int]:
    left, top, right, bottom = box
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}


FORMATS = ("html", "png", "json")
JSON_FORMAT, JSON_VERSION = "dapl-explanation", 1


@dataclass(frozen=True)
class LocalExplanation(Explanation):
    """An `Explanation` that knows the image's name and where the prototypes' training patches are."""

    name: str = "image"
    about: str = ""
    """The model in a few words."""
    patches: PatchSource = field(default_factory=NoPatches)

    def save(self, path: str | Path) -> Path:
        """Write to ``path``, as its suffix says: .html, .png or .json."""
        path = Path(path)
        kind = path.suffix.lower().removeprefix(".")
        if kind not in FORMATS:
            raise DaplError(f"{path}: an explanation is saved as .html, .png or .json.")
        try:
            self._write(path, kind)
        except OSError as error:
            raise DaplError(f"{path}: cannot be written ({error.strerror or error}); name another file.") from error
        return path

    def _write(self, path: Path, kind: str) -> None:
        if kind == "html":
            write_text(path, self.html())
        elif kind == "json":
            write_json(path, self.to_json())
        else:
            from dapl.explain.figure import draw_figure

            with replacing(path) as temporary:
                draw_figure(self).save(temporary, format="PNG", dpi=(200, 200))

    def html(self) -> str:
        """One page with everything inside."""

        return render(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values; docs/explain.md says what each is."""
        return {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "image": self.name,
            "model": self.about,
            "image_size": self.image.shape[-1],
            "predicted": self.predicted_name,
            "switched_off": list(self.switched_off),
            "probabilities": dict(zip(self.class_names, _numbers(self.probabilities), strict=True)),
            "logits": dict(zip(self.class_names, _numbers(self.logits), strict=True)),
            "classes": [_class_json(evidence) for evidence in self.classes],
        }

    def text(self, rows: int = 5) -> str:
        """For a terminal: the strongest ``rows`` of each class and the sum."""
        blocks = [f"{self.name}: {self.predicted_name} ({percentage(float(self.probabilities.max()))})"]
        blocks += [_class_text(evidence, rows, self.heads > 1) for evidence in self.classes]
        return "\n".join(blocks)


def localise(
    explanation: Explanation, name: str, about: str, patches: PatchSource, with_parts: bool
) -> LocalExplanation:
    """``with_parts``: name the part that a prototype's own patch shows, where the image itself names none."""
    values = {field.name: getattr(explanation, field.name) for field in fields(Explanation)}
    if with_parts:
        values["classes"] = [
            replace(evidence, rows=[_with_source_part(row, patches) for row in evidence.rows])
            for evidence in explanation.classes
        ]
    return LocalExplanation(**values, name=name, about=about, patches=patches)


def _with_source_part(row: Evidence, patches: PatchSource) -> Evidence:
    if row.part is not None or row.record is None:
        return row
    part = patches.part(row.record, (row.map.shape[-2], row.map.shape[-1]))
    return row if part is None else replace(row, part=part, part_from="prototype")


def _numbers(values: Tensor) -> list[float]:
    return values.to(torch.float64).tolist()


def _rounded(values: Tensor | None) -> list[list[float]] | None:
    return None if values is None else [[round(value, 5) for value in row] for row in values.tolist()]


def _class_json(evidence: ClassEvidence) -> dict[str, Any]:
    return {
        "class": evidence.class_name,
        "index": evidence.class_index,
        "logit": evidence.logit,
        "probability": evidence.probability,
        "prototypes": [_row_json(row) for row in evidence.rows],
        "rest": {"prototypes": evidence.rest.prototypes, "contribution": evidence.rest.contribution},
    }


def _row_json(row: Evidence) -> dict[str, Any]:
    record = row.record
    return {
        "prototype": row.prototype,
        "of": list(row.class_of),
        "head": row.head,
        "similarity": row.score,
        "weight": row.weight,
        "contribution": row.contribution,
        "switched_off": row.switched_off,
        "location": list(row.location),
        "box": list(row.box),
        "part": row.part,
        "part_from": row.part_from,
        "foreground": row.foreground,
        "background": row.background,
        "source": None
        if record is None or record.image is None
        else {
            "image": record.image,
            "box": record.box,
            "location": record.location,
            "foreground_share": record.foreground_share,
            "region_foreground": record.region_foreground,
            "grounded": record.grounded,
        },
        "map": _rounded(row.map),
        "attention": _rounded(row.attention),
    }


def _class_text(evidence: ClassEvidence, count: int, with_heads: bool) -> str:
    lines = [f"  {evidence.class_name}  ({percentage(evidence.probability)})"]
    shown = evidence.rows[:count]
    for row in shown:
        notes = [f"head {row.head}"] if with_heads else []
        notes += [row.part] if row.part else []
        notes += [] if row.own else [f"of {', '.join(row.class_of)}"]
        notes += ["background"] if row.background else []
        notes += ["switched off"] if row.switched_off else []
        lines.append(
            f"    {row.contribution:8.3f} = {row.score:6.3f} × {row.weight:6.3f}   "
            f"prototype {row.prototype}{': ' if notes else ''}{', '.join(notes)}"
        )
    left = sum(row.contribution for row in evidence.rows[count:]) + evidence.rest.contribution
    others = len(evidence.rows) - len(shown) + evidence.rest.prototypes
    if others:
        lines.append(f"    {left:8.3f}   {others} other prototype{'s' if others > 1 else ''}")
    return "\n".join([*lines, f"    {evidence.logit:8.3f}   logit"])
