"""From evidence to what the API answers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dapl.explain.evidence import ClassEvidence, Evidence, Explanation
from dapl.serve import answers
from dapl.training.records import PrototypeRecord

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
    """``before``: the logit with every prototype switched on; ``url``: of what belongs to the picture."""
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
        picture=record.image,
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
