"""The addresses: facts of the run, questions about images, marks of bad prototypes, and the pages."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from dapl.common.errors import DaplError, WriteError
from dapl.data.sample import Sample
from dapl.evaluation.result import warning_text
from dapl.explain.draw import templates
from dapl.explain.evidence import Source
from dapl.explain.parts import seen_of
from dapl.metrics.registry import HEADLINES
from dapl.report.page import static_files
from dapl.runs.marks import mark_now
from dapl.serve import answers
from dapl.serve.requests import Refusal, decode, discard_body, read_body
from dapl.serve.state import IMAGE_HEADERS, POLICY, AskedImage, Shared, State, check_known, problems

facts_router = APIRouter(prefix="/api", tags=["run"])

_JPEG = {200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}}
_LIMIT = 2**31
_OfClass = Annotated[int | None, Query(ge=0, lt=_LIMIT, description="Only those of this class.")]


@facts_router.get("/run")
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
        notice=_notice(state),
        warning=_warning(state),
    )


@facts_router.get("/classes")
def classes(state: Shared) -> list[answers.ClassFacts]:
    """In the order of the logits."""
    prototypes = state.classifier.model.prototypes
    table, counts = prototypes.by_class()
    return [
        answers.ClassFacts(index=index, name=name, prototypes=table[index][counts[index]].tolist())
        for index, name in enumerate(state.classifier.classes)
    ]


@facts_router.get("/prototypes", responses=problems(404, 422))
def prototypes(state: Shared, of: _OfClass = None) -> answers.PrototypeList:
    """What each prototype is, and what became of it."""
    known = state.classifier.model.prototypes
    check_known([] if of is None else [of], "class", known.classes)
    table, there = known.counted()
    found = range(len(known)) if of is None else table[of][there[of]].tolist()
    return answers.PrototypeList(prototypes=_prototypes(state, found))


@facts_router.get("/prototypes/{index}", responses=problems(404, 422))
def prototype(state: Shared, index: int) -> answers.Prototype:
    """One of them."""
    check_known([index], "prototype", len(state.classifier.model.prototypes))
    return _prototypes(state, [index])[0]


@facts_router.get("/prototypes/{index}/patch.jpg", response_class=Response, responses={**_JPEG, **problems(404, 422)})  # type: ignore[dict-item]
async def patch(state: Shared, index: int) -> Response:
    """The training patch that it is, with some of what is beside it."""
    found = await state.worker.run(lambda: state.inspector.patch(index))
    if found is None:
        raise Refusal(404, "The training image of this prototype is not at hand.")
    return Response(found[0], media_type="image/jpeg", headers=IMAGE_HEADERS)


@facts_router.get("/examples", responses=problems(422))
def examples(
    state: Shared,
    of: _OfClass = None,
    start: Annotated[int, Query(ge=0, lt=_LIMIT, description="How many to leave out.")] = 0,
    count: Annotated[int, Query(ge=1, le=100, description="How many to list.")] = 8,
) -> answers.ExampleList:
    """Test images; without a class, the first of each class, then the second of each."""
    total, found = state.examples.find(of, start, count)
    return answers.ExampleList(total=total, examples=[_example(state, index) for index in found])


@facts_router.get("/examples/{index}/image.jpg", response_class=Response, responses={**_JPEG, **problems(404, 422)})  # type: ignore[dict-item]
def example_image(state: Shared, index: int) -> Response:
    """As the model sees it."""
    return Response(state.examples.image(index), media_type="image/jpeg", headers=IMAGE_HEADERS)


def _prototypes(state: State, chosen: Iterable[int]) -> list[answers.Prototype]:
    model, marks = state.classifier.model, state.marks.read()
    weights, classes = model.class_weights(), model.prototypes.classes_of()
    return [
        answers.Prototype(
            index=record.index,
            of=record.classes,
            head=record.head,
            kept=record.kept,
            reason=record.reason,
            weights=weights[record.index][classes[record.index]].tolist(),
            source=Source.of(record),
            patch=None if record.image is None else f"{state.prefix}/api/prototypes/{record.index}/patch.jpg",
            note=marks[record.index].note if record.index in marks else None,
        )
        for record in (state.classifier.known.records[index] for index in chosen)
    ]


def _example(state: State, index: int) -> answers.Example:
    dataset = state.examples.dataset
    assert dataset is not None
    label = dataset.labels[index]
    return answers.Example(
        index=index,
        name=dataset.names[index],
        label=label,
        class_name=dataset.classes[label],
        image=f"{state.prefix}/api/examples/{index}/image.jpg",
    )


def _numbers(state: State) -> dict[str, answers.MeasuredNumber]:
    """The headlines of ``metrics.json``; none where the run was not evaluated."""
    try:
        content = state.loaded.run.evaluation().get("numbers", {})
        return {name: answers.MeasuredNumber(**content[name]) for name in HEADLINES if content.get(name)}
    except (DaplError, ValueError, TypeError, AttributeError):
        return {}


def _notice(state: State) -> str | None:
    try:
        return state.loaded.run.evaluation().get("protocol", {}).get("notice")
    except DaplError:
        return None


def _warning(state: State) -> str | None:
    try:
        found = state.loaded.run.evaluation().get("warnings")
    except DaplError:
        return None
    return warning_text(found) if found else None


def _note(state: State) -> str | None:
    if state.examples.dataset is None:
        return "The images of this run's data are not at hand, so there are no examples; your own images work."
    if state.inspector.missing_patches:
        return "The training images of this run are not all at hand, so some prototypes show no patch."
    return None


explain_router = APIRouter(prefix="/api", tags=["explain"])

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "The file of an image, at most 10 MB and 50 megapixels; leave it out with `example` or "
        "`image`. What it holds is told by its content, not by the media type.",
        "content": dict.fromkeys(("application/octet-stream", "image/jpeg", "image/png", "image/webp"), _BYTES),
    }
}


@explain_router.post("/explain", openapi_extra=_BODY, responses=problems(400, 403, 404, 408, 409, 413, 415, 422, 503))
async def explain(
    request: Request,
    state: Shared,
    example: Annotated[int | None, Query(ge=0, lt=_LIMIT, description="A test image instead of a file.")] = None,
    image: Annotated[
        str | None, Query(max_length=64, description="`image.id` of an answer instead of a file: asked again.")
    ] = None,
    classes: Annotated[
        list[Annotated[int, Query(ge=0, lt=_LIMIT)]],
        Query(alias="class", max_length=4, description="Explain these; else the predicted class and the runner-up."),
    ] = [],  # noqa: B006  (FastAPI copies it)
    top: Annotated[int, Query(ge=1, le=100, description="Prototypes listed per class.")] = 10,
    switched_off: Annotated[
        list[Annotated[int, Query(ge=0, lt=_LIMIT)]],
        Query(max_length=4000, description="Prototypes that are taken out of the sum: a counterfactual."),
    ] = [],  # noqa: B006
) -> answers.Answer:
    """The prediction, and which prototypes it is made of: contributions of `rows` and `rest` add up to the logit."""
    if example is not None and image is not None:
        await discard_body(request)
        raise Refusal(409, "Name either an example or an image, not both.")
    if example is not None or image is not None:
        await discard_body(request)
        asked = partial(_again, state, image) if example is None else partial(_example_of, state, example)
    else:
        asked = partial(_upload, state, await read_body(request, state.worker.arriving))
    with state.worker.place():
        return await state.worker.run(lambda: state.inspector.answer(asked(), classes, top, switched_off))


@explain_router.get(
    "/images/{image}/{name}",
    response_class=Response,
    responses={200: {"content": dict.fromkeys(("image/jpeg", "image/png"), _BYTES)}, **problems(404, 422)},
)
async def image_file(state: Shared, image: str, name: str) -> Response:
    """`photo.jpg`, or the overlays that an answer names."""
    asked = _again(state, image)
    if name == "photo.jpg":
        return Response(asked.photo, media_type="image/jpeg", headers=IMAGE_HEADERS)
    found = asked.overlays.get(name.removesuffix(".png")) if name.endswith(".png") else None
    if found is None:
        raise Refusal(404, "There is no such overlay; take the addresses that an answer gives.")
    return Response(found, media_type="image/png", headers=IMAGE_HEADERS)


def _upload(state: State, content: bytes) -> AskedImage:
    sample = Sample(decode(content), -1, "")
    return state.inspector.ask(state.classifier.fitted(sample), seen=seen_of(sample, state.classifier.fit))


def _example_of(state: State, index: int) -> AskedImage:
    """Asked for again it is remembered."""
    name = f"example-{index}"
    found = state.inspector.remembered(name)
    if found is not None:
        return found
    sample, seen = state.examples.sample(index)
    assert state.examples.dataset is not None
    return state.inspector.ask(sample, state.examples.dataset.parts, name, seen)


def _again(state: State, image: str | None) -> AskedImage:
    found = state.inspector.remembered(image or "")
    if found is None:
        raise Refusal(404, "The server does not remember this image any more; send it again.")
    return found


mark_router = APIRouter(prefix="/api", tags=["marks"])
log = logging.getLogger("dapl.serve")


@mark_router.get("/marks")
def marks(state: Shared) -> answers.MarkList:
    """All of them, by number."""
    return _listed(state)


@mark_router.put("/marks/{prototype}", responses=problems(400, 403, 404, 413, 422))
def mark(state: Shared, prototype: int, new: answers.NewMark) -> answers.MarkList:
    """Mark a prototype as bad, or change the note of its mark."""
    check_known([prototype], "prototype", len(state.classifier.model.prototypes))
    record = state.classifier.known.records[prototype]
    try:
        state.marks.put(mark_now(prototype, new.note.strip(), record.image, record.location))
    except WriteError as error:
        raise _cannot_write(error) from error
    return _listed(state)


@mark_router.delete("/marks/{prototype}", responses=problems(403, 404, 422))
def unmark(state: Shared, prototype: int) -> answers.MarkList:
    """Take a mark away."""
    try:
        found = state.marks.remove(prototype)
    except WriteError as error:
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
            answers.ListedMark(prototype=mark.prototype, of=records[mark.prototype].classes, note=mark.note, at=mark.at)
            for mark in found
            if mark.prototype < len(records)
        ]
    )


def _cannot_write(error: WriteError) -> Refusal:
    log.error("marks cannot be written: %s", error)
    return Refusal(403, "The run's folder cannot be written to, so nothing was marked.")


page_router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@page_router.get("/")
def ask(state: Shared) -> str:
    return templates("dapl.serve").get_template("serve.html.j2").render(run=run(state), base=state.prefix)


@page_router.get("/report")
def report(state: Shared) -> HTMLResponse:
    found = state.report.state()
    if found != "made":
        name = state.loaded.run.folder.resolve().name
        waiting = templates("dapl.serve").get_template("waiting.html.j2")
        return HTMLResponse(waiting.render(name=name, state=found, base=state.prefix))
    policy = {"Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'"}
    return HTMLResponse(state.report.html(), headers=policy)


@page_router.get("/report/images/{name}")
def report_image(state: Shared, name: str) -> Response:
    """Looked up among what was made, never on disk."""
    images = {} if state.report.report is None else state.report.report.images
    return _file(images.get(name), name, IMAGE_HEADERS)


@page_router.get("/report/static/{name}")
def report_static(name: str) -> Response:
    return _file(static_files().get(name), name, {})


def _file(content: bytes | None, name: str, headers: dict[str, str]) -> Response:
    if content is None:
        raise Refusal(404, "There is nothing at this address.")
    return Response(content, media_type=mimetypes.guess_type(name)[0], headers=headers)


compare_router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@compare_router.get("/")
def compare(request: Request) -> str:
    """Two runs or more in the browser: the same image, the reasons of each side by side."""
    states: list[State] = request.app.state.runs
    shown = [{"base": state.prefix, "facts": run(state)} for state in states]
    return templates("dapl.serve").get_template("compare.html.j2").render(runs=shown, same=_same_images(states))


def _same_images(states: list[State]) -> bool:
    """Whether the number of an example means the same image in every run, so that annotations can be used in each."""
    names = [None if state.examples.dataset is None else list(state.examples.dataset.names) for state in states]
    return names[0] is not None and all(own == names[0] for own in names)
