"""Prototypes marked as bad; they are kept in the run, for ``dapl train --from RUN --drop-marked``."""

from __future__ import annotations

import logging

from fastapi import APIRouter

from dapl.errors import DaplError
from dapl.marks import mark_now
from dapl.serve import answers
from dapl.serve.facts_routes import check_prototype
from dapl.serve.refusal import Refusal
from dapl.serve.state import Shared, State, problems

router = APIRouter(prefix="/api", tags=["marks"])
log = logging.getLogger("dapl.serve")


@router.get("/marks")
def marks(state: Shared) -> answers.MarkList:
    """All of them, by number."""
    return _listed(state)


@router.put("/marks/{prototype}", responses=problems(400, 403, 404, 413, 422))
def mark(state: Shared, prototype: int, new: answers.NewMark) -> answers.MarkList:
    """Mark a prototype as bad, or change the note of its mark."""
    check_prototype(state, prototype)
    record = state.classifier.known.records[prototype]
    try:
        state.marks.put(mark_now(prototype, new.note.strip(), record.image, record.location))
    except OSError as error:
        raise _cannot_write(error) from error
    return _listed(state)


@router.delete("/marks/{prototype}", responses=problems(403, 404, 422))
def unmark(state: Shared, prototype: int) -> answers.MarkList:
    """Take a mark away."""
    try:
        found = state.marks.remove(prototype)
    except OSError as error:
        raise _cannot_write(error) from error
    if not found:
        raise Refusal(404, f"Prototype {prototype} is not marked.")
    return _listed(state)


def _listed(state: State) -> answers.MarkList:
    records = state.classifier.known.records
    try:
        found = state.marks.read().values()
    except DaplError as error:
        log.error("%s", error)
        raise Refusal(500, "The marks of this run cannot be read; the server's log says why.") from error
    return answers.MarkList(
        marks=[
            answers.Mark(prototype=mark.prototype, of=records[mark.prototype].classes, note=mark.note, at=mark.at)
            for mark in found
            if mark.prototype < len(records)
        ]
    )


def _cannot_write(error: OSError) -> Refusal:
    log.error("marks cannot be written: %s", error)
    return Refusal(403, "The run's folder cannot be written to, so nothing was marked.")
