"""Paths under /v1 for memories and their rows."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from fastapi.security import HTTPBearer
from starlette.requests import Request
from starlette.responses import Response

from apl.classifier.online import OnlineClassifier
from apl.service.answers import (
    Counts,
    Curve,
    Forgotten,
    Imported,
    MemoryList,
    MemoryRecord,
    MemoryState,
    Renamed,
    RowRecord,
    Rows,
    ServiceInfo,
    Shared,
    class_counts,
    errors,
)
from apl.service.bodies import Forgetting, Renaming, Sharing
from apl.service.curve import CURVE_SETTING, LearningCurve
from apl.service.live import EVENT_STREAM, EventStream, changes
from apl.service.refusal import Refused, invalid
from apl.service.service import Service, allow, client_of, memory_of, scope_in, service_of
from apl.service.sharing import invite
from apl.store import FingerprintMismatch, Row, StoreError
from apl.store.archive import TooLarge
from apl.store.transfer import export_memory, read_exported

ZIP = "application/zip"
ZIP_BODY = {"requestBody": {"required": True, "content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}}}
Name = Annotated[str, Path(description="The memory's name.", json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,64}$"})]
RowId = Annotated[int, Path(ge=1, lt=2**63)]


async def only_known_parameters(request: Request) -> None:
    """A misspelt query parameter is an error."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    if unknown := set(request.query_params) - known:
        raise invalid(f"{min(unknown)[:100]}: no such query parameter is expected here")


DEPENDENCIES = [Depends(only_known_parameters), Depends(HTTPBearer(auto_error=False))]
"""The second one only tells readers of the description that tokens are bearer tokens; the guard checks them."""
router = APIRouter(prefix="/v1", responses=errors(404, 409, 507), dependencies=DEPENDENCIES)


# --- memories -----------------------------------------------------------------------------------------------------


@router.get("/service", tags=["service"])
async def service(request: Request) -> ServiceInfo:
    """What runs here, and the client's own rights."""
    return service_of(request).info(client_of(request))


@router.get("/memories", tags=["memories"])
async def list_memories(request: Request) -> MemoryList:
    """The memories this client may read."""
    found = service_of(request).memories.list()
    scopes = [scope_in(request, one.name) for one in found]
    records = [vars(one) | {"scope": scope} for one, scope in zip(found, scopes, strict=True) if scope is not None]
    return MemoryList(memories=[MemoryRecord.model_validate(record) for record in records])


@router.put("/memories/{name}", tags=["memories"], responses={201: {"model": MemoryState}})
async def make_memory(request: Request, response: Response, name: Name) -> MemoryState:
    """Make a memory; one that is there already stays as it is. Scope: admin."""
    allow(request, "admin", name)
    response.status_code = 201 if await service_of(request).memories.make(name) else 200
    return await _state(request, name)


@router.get("/memories/{name}", tags=["memories"])
async def show_memory(request: Request, name: Name) -> MemoryState:
    """Rows, classes, and how the latest lessons went. Scope: read."""
    return await _state(request, name)


@router.delete("/memories/{name}", status_code=204, tags=["memories"])
async def delete_memory(request: Request, name: Name) -> None:
    """Delete a memory with all its rows. Scope: admin."""
    allow(request, "admin", name)
    await service_of(request).memories.delete(name)


@router.post("/memories/{name}/share", tags=["memories"])
async def share(request: Request, name: Name, body: Sharing) -> Shared:
    """A link and a QR code for others on the local network, with a token for this memory alone. Scope: admin."""
    await memory_of(request, "admin", name)
    parts: Service = service_of(request)
    identity = parts.memories.listed(name).identity
    port = int(request.scope["server"][1])
    return await asyncio.to_thread(invite, parts.tokens, parts.settings.host, port, name, identity, body.scope)


@router.get("/memories/{name}/counts", tags=["memories"])
async def counts(request: Request, name: Name) -> Counts:
    """Rows of each class. Scope: read."""
    memory = await memory_of(request, "read", name)
    return await memory.run(lambda classifier: Counts.of(classifier.counts()))


@router.get(
    "/memories/{name}/events",
    tags=["memories"],
    response_class=Response,
    responses={200: {"content": {EVENT_STREAM: {}}}},
)
async def events(request: Request, name: Name) -> Response:
    """Server-sent events: `changed` at the start and after every change, `deleted` when the memory is. Scope: read."""
    memory, parts = await memory_of(request, "read", name), service_of(request)
    parts.streams.check()
    return EventStream(changes(memory, parts.streams, lambda: parts.activity.stopping))


@router.get(
    "/memories/{name}/export", tags=["memories"], response_class=Response, responses={200: {"content": {ZIP: {}}}}
)
async def export(request: Request, name: Name) -> Response:
    """The whole memory as a zip archive of JSON and safetensors. Scope: read."""
    memory = await memory_of(request, "read", name)
    content = await memory.run(_packed)
    return Response(content, media_type=ZIP, headers={"content-disposition": f'attachment; filename="{name}.zip"'})


@router.post("/memories/{name}/import", tags=["memories"], openapi_extra=ZIP_BODY, responses=errors(415))
async def import_(request: Request, name: Name) -> Imported:
    """Copy an exported memory into this one; rows it has already are left out. Scope: admin."""
    memory, limits = await memory_of(request, "admin", name), service_of(request).settings.limits
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != ZIP:
        raise Refused(415, "media_type", f"the body must be {ZIP}")
    content = await request.body()
    return await memory.run(
        lambda classifier: _take_in(content, classifier, limits.import_bytes, limits.rows), changes=True
    )


# --- rows ---------------------------------------------------------------------------------------------------------


@router.post("/memories/{name}/forget", tags=["rows"])
async def forget(request: Request, name: Name, body: Forgetting) -> Forgotten:
    """Forget a class, a row, or everything from a source. Scope: learn."""
    memory = await memory_of(request, "learn", name)

    def forgotten(classifier: OnlineClassifier) -> Forgotten:
        gone = classifier.forget(label=body.label, row=body.row, source=body.source)
        return Forgotten(rows=list(gone), rebuilt=list(gone.rebuilt))

    return await memory.run(forgotten, changes=True)


@router.post("/memories/{name}/rename", tags=["rows"])
async def rename(request: Request, name: Name, body: Renaming) -> Renamed:
    """Give a class another name. Scope: learn."""
    memory = await memory_of(request, "learn", name)

    def renamed(classifier: OnlineClassifier) -> Renamed:
        joined = body.to != body.label and body.to in classifier.counts()
        try:
            return Renamed(rows=classifier.rename(body.label, body.to), joined=joined)
        except KeyError:
            raise Refused(404, "no_such_class", f"there is no class {body.label!r}") from None

    return await memory.run(renamed, changes=True)


@router.get("/memories/{name}/rows", tags=["rows"])
async def rows(
    request: Request,
    name: Name,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Only rows with larger ids.")] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 200,
    images: Annotated[bool, Query(description="Send the kept pictures along.")] = False,
) -> Rows:
    """The rows, oldest first. Scope: read."""
    memory, text = await memory_of(request, "read", name), service_of(request).takes == "text"

    def page(classifier: OnlineClassifier) -> Rows:
        ids = classifier.store.ids(after, limit + 1)
        found = classifier.store.some_rows(ids[:limit])
        return Rows(
            rows=[_record(row, text, images) for row in found], next=ids[limit - 1] if len(ids) > limit else None
        )

    return await memory.run(page)


@router.get("/memories/{name}/rows/{row}", tags=["rows"])
async def row(request: Request, name: Name, row: RowId) -> RowRecord:
    """One row with its picture. Scope: read."""
    memory, text = await memory_of(request, "read", name), service_of(request).takes == "text"
    return await memory.run(lambda classifier: _record(_row(classifier, row), text, True))


@router.get(
    "/memories/{name}/rows/{row}/image",
    tags=["rows"],
    response_class=Response,
    responses={200: {"content": {"image/png": {}, "image/jpeg": {}}}},
)
async def image(request: Request, name: Name, row: RowId) -> Response:
    """The kept picture of a row, ink bright on black. Scope: read."""
    memory, text = await memory_of(request, "read", name), service_of(request).takes == "text"
    kept = (await memory.run(lambda classifier: _row(classifier, row))).payload
    if kept is None or text:
        raise Refused(404, "no_picture", f"row {row} was written without a picture")
    return Response(kept, media_type="image/jpeg" if kept.startswith(b"\xff\xd8") else "image/png")


# --- inside -------------------------------------------------------------------------------------------------------


async def _state(request: Request, name: str) -> MemoryState:
    memory = await memory_of(request, "read", name)
    listed, scope = service_of(request).memories.listed(name), scope_in(request, name)

    def state(classifier: OnlineClassifier) -> MemoryState:
        per_class = classifier.counts()
        curve = LearningCurve.read(classifier.store.setting(CURVE_SETTING))
        return MemoryState.model_validate(
            vars(listed)
            | {"scope": scope, "rows": sum(per_class.values()), "classes": class_counts(per_class)}
            | {"curve": Curve.model_validate(curve)}
        )

    return await memory.run(state)


def _row(classifier: OnlineClassifier, id: int) -> Row:
    found = classifier.store.some_rows([id])
    if not found:
        raise Refused(404, "no_such_row", f"there is no row {id}")
    return found[0]


def _record(row: Row, text: bool, images: bool) -> RowRecord:
    """A row with what is kept of its example: a picture if asked for, a sentence in any case."""
    kept: dict[str, Any] = {"image": None, "text": None}
    if row.payload is not None and text:
        kept["text"] = row.payload.decode(errors="replace")
    elif row.payload is not None and images:
        kept["image"] = base64.b64encode(row.payload).decode()
    return RowRecord.model_validate(vars(row) | kept | {"row": row.id, "examples": row.count})


def _packed(classifier: OnlineClassifier) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        archive = FilePath(scratch) / "memory.zip"
        export_memory(classifier.store, archive)
        return archive.read_bytes()


def _take_in(content: bytes, classifier: OnlineClassifier, most_bytes: int, most_rows: int) -> Imported:
    with tempfile.TemporaryDirectory() as scratch:
        archive = FilePath(scratch) / "memory.zip"
        archive.write_bytes(content)
        try:
            exported = read_exported(archive, most_bytes)
            if len(exported.rows) + len(classifier) > most_rows:
                raise Refused(409, "memory_full", f"a memory holds at most {most_rows:,} rows, and these do not fit")
            return Imported.model_validate(classifier.import_memory(exported))
        except FingerprintMismatch as error:
            raise Refused(409, "other_model", str(error)) from None
        except TooLarge as error:
            raise Refused(413, "too_large", str(error)) from None
        except (StoreError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise invalid(str(error).replace(str(archive), "the archive")[:500]) from None
