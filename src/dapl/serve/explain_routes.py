"""Ask the model about a picture, and what it would say without some of its prototypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from dapl.data.sample import Sample
from dapl.serve import answers
from dapl.serve.inspector import Held
from dapl.serve.refusal import Refusal
from dapl.serve.state import PICTURE_HEADERS, Shared, State, problems
from dapl.serve.uploads import decode, discard_body, read_body

router = APIRouter(prefix="/api", tags=["explain"])

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "The file of a picture, at most 10 MB and 50 megapixels; leave it away with `example` or "
        "`picture`. What it holds is told by its content, not by the media type.",
        "content": dict.fromkeys(("application/octet-stream", "image/jpeg", "image/png", "image/webp"), _BYTES),
    }
}
_LIMIT = 2**31


@router.post("/explain", openapi_extra=_BODY, responses=problems(400, 403, 404, 408, 409, 413, 415, 422, 503))
async def explain(
    request: Request,
    state: Shared,
    example: Annotated[int | None, Query(ge=0, lt=_LIMIT, description="A test picture instead of a file.")] = None,
    picture: Annotated[
        str | None, Query(max_length=64, description="`picture.id` of an answer instead of a file: asked again.")
    ] = None,
    classes: Annotated[
        list[Annotated[int, Query(ge=0, lt=_LIMIT)]],
        Query(alias="class", max_length=4, description="Explain these; else the predicted class and the runner-up."),
    ] = [],  # noqa: B006  (FastAPI copies it)
    top: Annotated[int, Query(ge=1, le=100, description="Prototypes listed a class.")] = 10,
    switched_off: Annotated[
        list[Annotated[int, Query(ge=0, lt=_LIMIT)]],
        Query(max_length=4000, description="Prototypes that are taken out of the sum: a counterfactual."),
    ] = [],  # noqa: B006
) -> answers.Answer:
    """The prediction, and which prototypes it is made of: contributions of `rows` and `rest` add up to the logit."""
    if example is not None and picture is not None:
        await discard_body(request)
        raise Refusal(409, "Name either an example or a picture, not both.")
    try:
        with state.worker.place():
            if example is not None or picture is not None:
                await discard_body(request)
                look = _example(state, example) if example is not None else _again(state, picture or "")
            else:
                look = _upload(state, await read_body(request))
            return await state.worker.run(lambda: state.inspector.answer(look(), classes, top, switched_off))
    except Refusal as refusal:
        if refusal.status == 503:
            await discard_body(request)
        raise


@router.get("/pictures/{picture}/{name}", response_class=Response, responses={
    200: {"content": dict.fromkeys(("image/jpeg", "image/png"), _BYTES)}, **problems(404, 422)})  # fmt: skip
async def image(state: Shared, picture: str, name: str) -> Response:
    """`photo.jpg`, or the overlays that an answer names."""
    held = state.inspector.remembered(picture)
    if held is None:
        raise _forgotten()
    if name == "photo.jpg":
        return Response(held.photo, media_type="image/jpeg", headers=PICTURE_HEADERS)
    found = held.overlays.get(name.removesuffix(".png")) if name.endswith(".png") else None
    if found is None:
        raise Refusal(404, "There is no such overlay; take the addresses that an answer gives.")
    return Response(found, media_type="image/png", headers=PICTURE_HEADERS)


def _upload(state: State, content: bytes) -> Callable[[], Held]:
    def look() -> Held:
        sample = state.inspector.fitted(Sample(decode(content), -1, ""))
        return state.inspector.look_at(sample, ())

    return look


def _example(state: State, index: int) -> Callable[[], Held]:
    """Seen once; asked for again it is remembered."""

    def look() -> Held:
        name = f"example-{index}"
        held = state.inspector.remembered(name)
        if held is not None:
            return held
        sample = state.examples.sample(index)
        assert state.examples.dataset is not None
        return state.inspector.look_at(sample, state.examples.dataset.parts, name)

    return look


def _again(state: State, picture: str) -> Callable[[], Held]:
    held = state.inspector.remembered(picture)
    if held is None:
        raise _forgotten()
    return lambda: held


def _forgotten() -> Refusal:
    return Refusal(404, "The server does not remember this picture any more; send it again.")
