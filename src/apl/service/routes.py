"""The paths under /v1: what can be done with a memory over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from apl.classifier.answers import Receipt
from apl.service import bundle, responses, views
from apl.service.episodes import as_events, play
from apl.service.guard import Refused
from apl.service.memories import valid_name
from apl.service.memory_worker import MemoryWorker
from apl.service.openapi import Anyway, Name, RetryKey, RowId, Top, body, errors
from apl.service.pictures import unusable
from apl.service.requests import (
    Example,
    Forgetting,
    Lesson,
    Lessons,
    Question,
    Questions,
    Renaming,
    Restoring,
    Sharing,
    check_text,
    decode,
    digest,
    media_type,
    read_examples,
    read_json,
)
from apl.service.settings import TOP
from apl.service.sharing import invite
from apl.service.state import ServiceState


async def _only_known_parameters(request: Request) -> None:
    """What is misspelt would else be ignored."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    if unknown := set(request.query_params) - known:
        raise unusable(f"{min(unknown)[:100]}: no such query parameter is expected here")


router = APIRouter(prefix="/v1", responses=errors(), dependencies=[Depends(_only_known_parameters)])


def _post(verb: str, answer: type, tag: str, asked: type, **form: bool) -> Callable[..., Any]:
    """A verb of a memory, with a body."""
    return router.post(
        f"/memories/{{name}}/{verb}",
        response_model=answer,
        openapi_extra=body(asked, **form),
        responses=errors(404, 409, 415, 507),
        tags=[tag],
    )


# --- memories -------------------------------------------------------------------------------------


@router.get("/service", response_model=responses.ServiceInfo, tags=["service"])
async def service(request: Request) -> Response:
    """What runs here, and who is asking."""
    parts, client = _parts(request), request.state.client
    return _json(
        {
            "version": parts.version,
            "model": parts.model.name,
            "takes": parts.model.takes,
            "fingerprint": parts.memories.fingerprint,
            "image_size": parts.model.image_size,
            "client": client.name,
            "admin": client.may("admin", "*"),
        }
    )


@router.get("/memories", response_model=responses.MemoryList, tags=["memories"])
async def list_memories(request: Request) -> Response:
    """The memories this client may read."""
    visible = [vars(m) for m in _parts(request).memories.list() if request.state.client.may("read", m.name)]
    return _json({"memories": visible})


@router.put(
    "/memories/{name}",
    response_model=responses.MemoryState,
    tags=["memories"],
    responses={201: {"model": responses.MemoryState}, **errors(409, 507)},
)
async def make_memory(request: Request, name: Name) -> Response:
    """Make a memory; one that is there already stays as it is. Scope: admin."""
    _allow(request, "admin", name)
    made = await _parts(request).memories.make(name)
    worker = await _parts(request).memories.worker(name)
    return _json(await worker.run(lambda: views.state(worker)), 201 if made else 200)


@router.get(
    "/memories/{name}", response_model=responses.MemoryState, responses=errors(404, 409, 507), tags=["memories"]
)
async def show_memory(request: Request, name: Name) -> Response:
    """Rows, classes, and how the latest lessons went. Scope: read."""
    worker = await _worker(request, "read", name)
    return _json(await worker.run(lambda: views.state(worker)))


@router.delete("/memories/{name}", status_code=204, responses=errors(404, 409, 507), tags=["memories"])
async def delete_memory(request: Request, name: Name) -> Response:
    """Delete a memory with all its rows. Scope: admin."""
    _allow(request, "admin", name)
    await _parts(request).memories.delete(name)
    return Response(status_code=204)


@_post("share", responses.Shared, "memories", Sharing, form=False)
async def share(request: Request, name: Name) -> Response:
    """A link and a QR code for others on the local network, with a token for this memory alone. Scope: admin."""
    await _worker(request, "admin", name)
    what, parts = await read_json(request, Sharing), _parts(request)
    port = request.scope["server"][1]
    return _json(await asyncio.to_thread(invite, parts.tokens, parts.settings.host, port, name, what.scope))


@router.get(
    "/memories/{name}/counts", response_model=responses.Counts, responses=errors(404, 409, 507), tags=["memories"]
)
async def counts(request: Request, name: Name) -> Response:
    """Rows of each class. Scope: read."""
    worker = await _worker(request, "read", name)
    return _json(await worker.run(lambda: views.counts(worker.session)))


# --- asking and teaching --------------------------------------------------------------------------


@_post("predict", responses.Answer, "examples", Question)
async def predict(request: Request, name: Name, top: Top = TOP, anyway: Anyway = False) -> Response:
    """What is this? Scope: read."""
    worker = await _worker(request, "read", name)
    _, embeddings = await _examples(request, many=False, labelled=False, anyway=anyway)
    return _json((await worker.ask(embeddings, top))[0])


@_post("predict/batch", responses.Answers, "examples", Questions, many=True)
async def predict_batch(request: Request, name: Name, top: Top = TOP, anyway: Anyway = False) -> Response:
    """The same for several pictures. Scope: read."""
    worker = await _worker(request, "read", name)
    _, embeddings = await _examples(request, many=True, labelled=False, anyway=anyway)
    return _json({"answers": await worker.ask(embeddings, top)})


@_post("explain", responses.ExplainedAnswer, "examples", Question)
async def explain(request: Request, name: Name, top: Top = TOP, anyway: Anyway = False) -> Response:
    """What is this, and what would simpler readers of the same neighbours say? Scope: read."""
    worker = await _worker(request, "read", name)
    _, embeddings = await _examples(request, many=False, labelled=False, anyway=anyway)
    return _json(await worker.explain(embeddings[0], top))


@_post("learn", Receipt, "examples", Lesson, labelled=True)
async def learn(request: Request, name: Name, key: RetryKey = None, anyway: Anyway = False) -> Response:
    """This is a …: predict, be told, remember it if it was surprising. Once answered, it lasts. Scope: learn."""
    return _json((await _learn(request, name, key, anyway=anyway, many=False))[0])


@_post("learn/batch", responses.TaughtMany, "examples", Lessons, many=True, labelled=True)
async def learn_batch(request: Request, name: Name, key: RetryKey = None, anyway: Anyway = False) -> Response:
    """The same for several pictures in their order; all of them last, or none. Scope: learn."""
    return _json({"receipts": await _learn(request, name, key, anyway=anyway, many=True)})


async def _learn(request: Request, name: str, key: str | None, *, anyway: bool, many: bool) -> list[dict[str, Any]]:
    worker = await _worker(request, "learn", name)
    examples, embeddings = await _examples(request, many=many, labelled=True, anyway=anyway)
    return await worker.teach(embeddings, examples, key, digest(examples))


# --- rows -----------------------------------------------------------------------------------------


@_post("forget", responses.ForgottenRows, "rows", Forgetting, form=False)
async def forget(request: Request, name: Name) -> Response:
    """Forget a class, a row, or what came from a source. Scope: learn."""
    worker = await _worker(request, "learn", name)
    what = await read_json(request, Forgetting)
    return _json(await worker.run(lambda: worker.corrections.forget(what.label, what.row, what.source)))


@_post("restore", responses.Restored, "rows", Restoring, form=False)
async def restore(request: Request, name: Name) -> Response:
    """Undo one of the latest forgettings, as long as the service has not been restarted. Scope: learn."""
    worker = await _worker(request, "learn", name)
    what = await read_json(request, Restoring)
    return _json(await worker.run(lambda: worker.corrections.restore(what.undo)))


@_post("rename", responses.Renamed, "rows", Renaming, form=False)
async def rename(request: Request, name: Name) -> Response:
    """Give a class another name. Scope: learn."""
    worker = await _worker(request, "learn", name)
    what = await read_json(request, Renaming)
    check_text(what.to, "to")
    return _json(await worker.run(lambda: worker.corrections.rename(what.label, what.to)))


@router.get("/memories/{name}/rows", response_model=responses.Rows, responses=errors(404, 409, 507), tags=["rows"])
async def rows(
    request: Request,
    name: Name,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Only rows with larger ids.")] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 200,
    images: Annotated[bool, Query(description="Send the kept pictures along.")] = False,
) -> Response:
    """The rows, oldest first. Scope: read."""
    worker = await _worker(request, "read", name)
    return _json(await worker.run(lambda: views.rows(worker, after, limit, images)))


@router.get(
    "/memories/{name}/rows/{row}", response_model=responses.RowRecord, responses=errors(404, 409, 507), tags=["rows"]
)
async def row(request: Request, name: Name, row: RowId) -> Response:
    """One row with its picture. Scope: read."""
    worker = await _worker(request, "read", name)
    return _json(await worker.run(lambda: views.row(worker, row, True)))


@router.get(
    "/memories/{name}/rows/{row}/image",
    response_class=Response,
    tags=["rows"],
    responses={200: {"content": {"image/png": {}, "image/jpeg": {}}}, **errors(404, 409, 507)},
)
async def image(request: Request, name: Name, row: RowId) -> Response:
    """The kept picture of a row, ink bright on black. Scope: read."""
    worker = await _worker(request, "read", name)
    picture = await worker.run(lambda: views.picture(worker, row))
    return Response(picture, media_type=views.media_type_of(picture))


@router.get(
    "/memories/{name}/export",
    response_class=Response,
    tags=["memories"],
    responses={200: {"content": {bundle.MEDIA_TYPE: {}}}, **errors(404, 409, 507)},
)
async def export(request: Request, name: Name) -> Response:
    """The whole memory as a zip archive of JSON and safetensors. Scope: read."""
    worker = await _worker(request, "read", name)
    content = await worker.run(lambda: bundle.pack(worker.session.store))
    headers = {"content-disposition": f'attachment; filename="{name}.zip"'}
    return Response(content, media_type=bundle.MEDIA_TYPE, headers=headers)


@router.post(
    "/memories/{name}/import",
    response_model=responses.Imported,
    tags=["memories"],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {bundle.MEDIA_TYPE: {"schema": {"type": "string", "contentMediaType": bundle.MEDIA_TYPE}}},
        }
    },
    responses=errors(404, 409, 415, 507),
)
async def import_(request: Request, name: Name) -> Response:
    """Copy an exported memory into this one; rows it has already are left out. Scope: admin."""
    worker = await _worker(request, "admin", name)
    if media_type(request) != bundle.MEDIA_TYPE:
        raise Refused(415, "media_type", f"the body must be {bundle.MEDIA_TYPE}")
    content, limits = await request.body(), _parts(request).settings.limits

    def take_in() -> dict[str, Any]:
        try:
            return bundle.take_in(content, worker.session.store, limits.import_bytes, limits.rows)
        finally:
            worker.world.reload()

    return _json(await worker.run(take_in))


# --- an episode -----------------------------------------------------------------------------------


@router.get(
    "/episode",
    response_class=Response,
    tags=["service"],
    responses={200: {"content": {"text/event-stream": {}}}, **errors(409)},
)
async def episode(
    request: Request,
    way: Annotated[int, Query(ge=2, le=30, description="Characters to invent.")] = 10,
    drawings: Annotated[int, Query(ge=2, le=30, description="How often each is drawn.")] = 12,
    seed: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    pause_ms: Annotated[int, Query(ge=0, le=2000, description="Between two drawings.")] = 150,
) -> Response:
    """An online episode on invented characters as server-sent events: `alphabet`, a `step` per drawing, `end`."""
    parts = _parts(request)
    if parts.model.takes != "drawing":
        raise Refused(409, "no_episode", "an episode needs a model of drawings")
    if parts.episodes_running >= parts.settings.limits.episodes:
        raise Refused(503, "busy", "enough episodes are running: try again in a minute", **{"retry-after": "10"})
    parts.episodes_running += 1
    end = time.monotonic() + parts.settings.limits.episode_seconds

    def is_over() -> bool:
        return parts.stopping or time.monotonic() > end

    async def events() -> Any:
        try:
            steps = play(parts.model.learner, way, drawings, seed)
            async for event in as_events(steps, pause_ms / 1000, parts.episode_thread, is_over):
                yield event
        finally:
            parts.episodes_running -= 1

    return StreamingResponse(events(), media_type="text/event-stream")


# --- shared ---------------------------------------------------------------------------------------


def _parts(request: Request) -> ServiceState:
    return request.app.state.parts


def _allow(request: Request, scope: str, name: str) -> None:
    valid_name(name)
    if not request.state.client.may(scope, name):
        raise Refused(403, "forbidden", f"this token does not have the scope {scope} for memory {name!r}")


async def _worker(request: Request, scope: str, name: str) -> MemoryWorker:
    _allow(request, scope, name)
    return await _parts(request).memories.worker(name)


async def _examples(request: Request, *, many: bool, labelled: bool, anyway: bool) -> tuple[list[Example], Any]:
    """The examples of a request, decoded beside the event loop and embedded with those of other requests."""
    parts = _parts(request)
    unread = await read_examples(request, many=many, labelled=labelled)

    decoding = partial(decode, unread, parts.model, parts.settings.limits, anyway)
    examples = await asyncio.get_running_loop().run_in_executor(parts.pictures, decoding)
    return examples, await parts.encoder.embed([example.content for example in examples])


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content, ensure_ascii=False, allow_nan=False), status, media_type="application/json")
