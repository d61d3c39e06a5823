"""What is known of the run: its model, classes, prototypes and example pictures."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from dapl.serve import answers
from dapl.serve.refusal import Refusal
from dapl.serve.state import PICTURE_HEADERS, Shared, State, problems
from dapl.serve.views import source_view

router = APIRouter(prefix="/api", tags=["run"])

_NUMBERS = ("accuracy", "coverage", "diversity", "background_bias")
_JPEG = {200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}}
_LIMIT = 2**31


@router.get("/run")
def run(state: Shared) -> answers.RunFacts:
    """The model in a few facts and numbers."""
    config, model = state.loaded.config, state.classifier.model
    return answers.RunFacts(
        name=state.loaded.run.folder.resolve().name,
        system=config.model.system,
        backbone=config.model.backbone.name,
        data=config.data.name,
        image_size=config.data.image_size,
        heads=model.prototypes.groups,
        classes=len(state.classifier.classes),
        prototypes=len(model.prototypes),
        kept=int(model.prototypes.kept.sum()),
        examples=len(state.examples),
        note=_note(state),
        numbers=_numbers(state),
    )


@router.get("/classes")
def classes(state: Shared) -> list[answers.ClassFacts]:
    """In the order of the logits."""
    prototypes = state.classifier.model.prototypes
    own = (prototypes.membership & prototypes.kept.unsqueeze(1)).T
    return [
        answers.ClassFacts(index=index, name=name, prototypes=own[index].nonzero().flatten().tolist())
        for index, name in enumerate(state.classifier.classes)
    ]


@router.get("/prototypes", responses=problems(404, 422))
def prototypes(
    state: Shared, of: Annotated[int | None, Query(ge=0, lt=_LIMIT, description="Only those of this class.")] = None
) -> answers.PrototypeList:
    """What each prototype is, and what became of it."""
    membership = state.classifier.model.prototypes.membership
    if of is not None and of >= membership.shape[1]:
        raise Refusal(404, f"There is no class {of}; the model has {membership.shape[1]}, counted from 0.")
    found = range(len(membership)) if of is None else membership[:, of].nonzero().flatten().tolist()
    notes = {index: mark.note for index, mark in state.marks.read().items()}
    weights = state.classifier.model.class_weights()
    return answers.PrototypeList(prototypes=[_prototype(state, index, weights, notes) for index in found])


@router.get("/prototypes/{index}", responses=problems(404, 422))
def prototype(state: Shared, index: int) -> answers.Prototype:
    """One of them."""
    check_prototype(state, index)
    notes = {marked: mark.note for marked, mark in state.marks.read().items()}
    return _prototype(state, index, state.classifier.model.class_weights(), notes)


@router.get("/prototypes/{index}/patch.jpg", response_class=Response, responses={**_JPEG, **problems(404, 422)})  # type: ignore[dict-item]
async def patch(state: Shared, index: int) -> Response:
    """The training patch that it is, with some of what is beside it."""
    found = await state.worker.run(lambda: state.inspector.patch(index))
    if found is None:
        raise Refusal(404, "The training picture of this prototype is not at hand.")
    return Response(found.content, media_type="image/jpeg", headers=PICTURE_HEADERS)


@router.get("/examples", responses=problems(422))
def examples(
    state: Shared,
    of: Annotated[int | None, Query(ge=0, lt=_LIMIT, description="Only those of this class.")] = None,
    start: Annotated[int, Query(ge=0, lt=_LIMIT, description="How many to leave out.")] = 0,
    count: Annotated[int, Query(ge=1, le=100, description="How many to list.")] = 8,
) -> answers.ExampleList:
    """Test pictures; without a class, the first of each class, then the second of each."""
    total, found = state.examples.find(of, start, count)
    return answers.ExampleList(total=total, examples=[_example(state, index) for index in found])


@router.get("/examples/{index}/image.jpg", response_class=Response, responses={**_JPEG, **problems(404, 422)})  # type: ignore[dict-item]
def example_image(state: Shared, index: int) -> Response:
    """As the model sees it."""
    return Response(state.examples.image(index), media_type="image/jpeg", headers=PICTURE_HEADERS)


def check_prototype(state: State, index: int) -> None:
    count = len(state.classifier.model.prototypes)
    if not 0 <= index < count:
        raise Refusal(404, f"There is no prototype {index}; the model has {count}, counted from 0.")


def _prototype(state: State, index: int, weights, notes: dict[int, str]) -> answers.Prototype:
    record = state.classifier.known.records[index]
    own = state.classifier.model.prototypes.membership[index]
    return answers.Prototype(
        index=index,
        of=record.classes,
        head=record.head,
        kept=record.kept,
        reason=record.reason,
        weights=weights[index][own].tolist(),
        source=source_view(record),
        patch=None if record.image is None else f"/api/prototypes/{index}/patch.jpg",
        note=notes.get(index),
    )


def _example(state: State, index: int) -> answers.Example:
    dataset = state.examples.dataset
    assert dataset is not None
    label = dataset.labels[index]
    return answers.Example(
        index=index,
        name=dataset.names[index],
        label=label,
        class_name=dataset.classes[label],
        image=f"/api/examples/{index}/image.jpg",
    )


def _numbers(state: State) -> dict[str, answers.Measured]:
    """Of ``metrics.json``; none where the run was not evaluated."""
    try:
        content = json.loads(state.loaded.run.evaluation_file.read_text(encoding="utf-8"))["numbers"]
        return {name: answers.Measured(**content[name]) for name in _NUMBERS if content.get(name)}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _note(state: State) -> str | None:
    if state.examples.dataset is None:
        return "The pictures of this run's data are not at hand, so there are no examples; your own pictures work."
    if state.inspector.missing_patches:
        return "The training pictures of this run are not all at hand, so some prototypes show no patch."
    return None
