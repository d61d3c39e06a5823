"""The explanation of one picture as an HTML page that needs nothing beside itself."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from dapl.explain.draw import ATTENTION, jpeg_uri, overlay_uri, percentage, signed
from dapl.explain.evidence import ClassEvidence, Evidence
from dapl.explain.local import LocalExplanation
from dapl.explain.patches import Box

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
        picture=Markup(jpeg_uri(explanation.image, quality=92)),
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
        loader=PackageLoader("dapl.explain"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
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
    role = "predicted" if evidence.class_index == explanation.predicted else (
        "runner-up" if evidence.class_index == explanation.runner_up else "asked for"
    )  # fmt: skip
    return {"evidence": evidence, "role": role, "rows": rows}


def _looks(row: Evidence, explanation: LocalExplanation) -> dict[str, Any]:
    """Addresses of pictures are made of letters that need no escaping, and long."""
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
        "patch": None if near is None else {
            "picture": Markup(jpeg_uri(near.image)),
            "width": near.image.shape[-1],
            "height": near.image.shape[-2],
            "box": None if near.box is None else _rectangle(near.box),
        },
    }  # fmt: skip


def _rectangle(box: Box) -> dict[str, int]:
    left, top, right, bottom = box
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}
