"""Paths under /v1 for memories and their rows."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from apl.classifier.drift import DriftReport
from apl.classifier.online import OnlineClassifier
from apl.service.answers import (
    Counts,
    Forgotten,
    MemoryList,
    MemoryRecord,
    MemoryState,
    Relabelled,
    Renamed,
    Review,
    RowRecord,
    Rows,
    ServiceInfo,
    Shared,
    errors,
    finite,
)
from apl.service.bodies import Forgetting, Relabelling, Renaming, Sharing
from apl.service.curve import CURVE_SETTING, Curve
from apl.service.live import EVENT_STREAM, EventStream, changes
from apl.service.refusal import Refused, invalid, storage
from apl.service.served_memory import memory_full
from apl.service.service import DEPENDENCIES, Admin, Caller, Name, Parts, Service, ToOwn, ToRead, ToTeach
from apl.service.settings import Limits, is_loopback
from apl.service.sharing import invite
from apl.service.tokens import Client
from apl.store import FingerprintMismatch, Row, StoreError
from apl.store.exported import TooLarge
from apl.store.transfer import Copied, export_memory, read_exported

ZIP = "application/zip"
ZIP_BODY = {"requestBody": {"required": True, "content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}}}
Limit = Annotated[int, Query(ge=1, le=500)]
router = APIRouter(prefix="/v1", responses=errors(), dependencies=DEPENDENCIES)


# --- memories -----------------------------------------------------------------------------------------------------


@router.get("/service", tags=["service"])
async def service(parts: Parts, client: Caller) -> ServiceInfo:
    """What runs here, and the client's own rights."""
    return ServiceInfo.model_validate(
        {
            "version": installed_version(),
            # The directory of a model is private.
            "model": FilePath(parts.settings.model).name,
            "takes": parts.memories.model.input_kind,
            "fingerprint": parts.memories.fingerprint,
            "client": client.name,
            "admin": client.may("admin", "*"),
            "shared": parts.tokens is not None and not is_loopback(parts.settings.host),
        }
    )


@router.get("/memories", tags=["memories"])
async def list_memories(parts: Parts, client: Caller) -> MemoryList:
    """The memories this client may read."""
    found = [_listed(parts, client, info.name) for info in parts.memories.list()]
    return MemoryList(memories=[MemoryRecord.model_validate(one) for one in found if one["scope"]])


@router.put("/memories/{name}", tags=["memories"], responses={201: {"model": MemoryState}})
async def make_memory(parts: Parts, client: Caller, name: Name, _: Admin, response: Response) -> MemoryState:
    """Make a memory; one that is there already stays as it is. Scope: admin."""
    response.status_code = 201 if await parts.memories.make(name) else 200
    return await show_memory(parts, client, await parts.memories.get(name))


@router.get("/memories/{name}", tags=["memories"])
async def show_memory(parts: Parts, client: Caller, memory: ToRead) -> MemoryState:
    """Rows, classes, and how the latest examples went. Scope: read."""

    def state(classifier: OnlineClassifier) -> MemoryState:
        counts, curve = Counts.of(classifier.counts()), Curve.read(classifier.store.setting(CURVE_SETTING))
        return MemoryState.model_validate(_listed(parts, client, memory.name) | vars(counts) | {"curve": curve})

    return await memory.run(state)


@router.delete("/memories/{name}", status_code=204, tags=["memories"])
async def delete_memory(parts: Parts, name: Name, _: Admin) -> None:
    """Delete a memory with all its rows. Scope: admin."""
    await parts.memories.delete(name)


@router.post("/memories/{name}/share", tags=["memories"])
async def share(request: Request, parts: Parts, memory: ToOwn, body: Sharing) -> Shared:
    """A link and a QR code for others on the local network, with a token for this memory alone. Scope: admin."""
    host, port = parts.settings.host, int(request.scope["server"][1])
    return await asyncio.to_thread(invite, parts.tokens, host, port, memory.name, memory.info.identity, body.scope)


@router.get("/memories/{name}/counts", tags=["memories"])
async def counts(memory: ToRead) -> Counts:
    """Rows of each class. Scope: read."""
    return await memory.run(lambda classifier: Counts.of(classifier.counts()))


@router.get("/memories/{name}/drift", tags=["memories"], responses=errors(501))
async def drift(memory: ToRead) -> DriftReport:
    """Whether surprise has risen over the latest examples, since when, and with which classes. Scope: read."""
    try:
        return await memory.run(lambda classifier: classifier.drift())
    except ImportError as error:
        raise Refused(501, "not_installed", str(error)) from None


@router.get(
    "/memories/{name}/events",
    tags=["memories"],
    response_class=Response,
    responses={200: {"content": {EVENT_STREAM: {}}}},
)
async def events(parts: Parts, memory: ToRead) -> Response:
    """Server-sent events: `changed` at the start and after every change, `deleted` when the memory is. Scope: read."""
    parts.streams.check()
    return EventStream(changes(memory, parts.streams, lambda: parts.activity.stopping))


@router.get(
    "/memories/{name}/export", tags=["memories"], response_class=Response, responses={200: {"content": {ZIP: {}}}}
)
async def export(memory: ToRead) -> Response:
    """The whole memory as a zip archive of JSON and safetensors. Scope: read."""
    content = await memory.run(_packed)
    disposition = f'attachment; filename="{memory.name}.zip"'
    return Response(content, media_type=ZIP, headers={"content-disposition": disposition})


@router.post("/memories/{name}/import", tags=["memories"], openapi_extra=ZIP_BODY, responses=errors(415))
async def import_(request: Request, parts: Parts, memory: ToOwn) -> Copied:
    """Copy an exported memory into this one; rows it has already are left out. Scope: admin."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != ZIP:
        raise Refused(415, "media_type", f"the body must be {ZIP}")
    content, limits = await request.body(), parts.settings.limits
    return await memory.run(lambda classifier: _take_in(content, classifier, limits), changes=True)


# --- rows ---------------------------------------------------------------------------------------------------------


@router.post("/memories/{name}/forget", tags=["rows"])
async def forget(memory: ToTeach, body: Forgetting) -> Forgotten:
    """Forget a class, a row, or everything from a source. Scope: learn."""
    gone = await memory.run(lambda classifier: classifier.forget(**vars(body)), changes=True)
    return Forgotten(rows=list(gone), rebuilt=list(gone.rebuilt))


@router.post("/memories/{name}/rename", tags=["rows"])
async def rename(memory: ToTeach, body: Renaming) -> Renamed:
    """Give a class another name. Scope: learn."""

    def renamed(classifier: OnlineClassifier) -> Renamed:
        joined = body.to != body.label and body.to in classifier.counts()
        try:
            return Renamed(rows=classifier.rename(body.label, body.to), joined=joined)
        except KeyError:
            raise Refused(404, "no_such_class", f"there is no class {body.label!r}") from None

    return await memory.run(renamed, changes=True)


@router.get("/memories/{name}/review", tags=["rows"])
async def review(memory: ToRead, limit: Limit = 50) -> Review:
    """Rows whose label looks wrong by the other rows, most suspicious first. Scope: read."""
    found = await memory.run(lambda classifier: classifier.review())
    return Review(suspects=[finite(suspect) for suspect in found[:limit]])


@router.post("/memories/{name}/relabel", tags=["rows"])
async def relabel(memory: ToTeach, body: Relabelling) -> Relabelled:
    """Give a row, or what a source contributed to it, another label. Scope: learn."""

    def relabelled(classifier: OnlineClassifier) -> Relabelled:
        _row(classifier, body.row)
        if body.source is not None and body.row not in classifier.store.rows_of_source(body.source):
            raise Refused(404, "no_such_source", f"nothing of this source is in row {body.row}")
        return Relabelled(row=classifier.relabel(body.row, body.label, source=body.source))

    return await memory.run(relabelled, changes=True)


@router.get("/memories/{name}/rows", tags=["rows"])
async def rows(
    memory: ToRead,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Only rows with larger ids.")] = 0,
    limit: Limit = 200,
    images: Annotated[bool, Query(description="Send the kept pictures along.")] = False,
) -> Rows:
    """The rows, oldest first. Scope: read."""

    def page(classifier: OnlineClassifier) -> Rows:
        ids = classifier.store.ids(after, limit + 1)
        found = [_record(classifier, row, images) for row in classifier.store.some_rows(ids[:limit])]
        return Rows(rows=found, next=ids[limit - 1] if len(ids) > limit else None)

    return await memory.run(page)


@router.get("/memories/{name}/rows/{row}", tags=["rows"])
async def row(memory: ToRead, row: Annotated[int, Path(ge=1, lt=2**63)]) -> RowRecord:
    """One row with its picture. Scope: read."""
    return await memory.run(lambda classifier: _record(classifier, _row(classifier, row), True))


# --- inside -------------------------------------------------------------------------------------------------------


def installed_version() -> str:
    try:
        return version("apl-memory")
    except PackageNotFoundError:
        return "from a checkout"


def _listed(parts: Service, client: Client, name: str) -> dict[str, Any]:
    info = parts.memories.listed(name)
    return vars(info) | {"usable": parts.memories.usable(info), "scope": client.scope(name, info.identity)}


def _row(classifier: OnlineClassifier, id: int) -> Row:
    found = classifier.store.some_rows([id])
    if not found:
        raise Refused(404, "no_such_row", f"there is no row {id}")
    return found[0]


def _record(classifier: OnlineClassifier, row: Row, images: bool) -> RowRecord:
    """A row with what is kept of its example: a picture if asked for, a sentence in any case."""
    record = RowRecord.model_validate(row)
    if row.payload is not None and classifier.input_kind == "text":
        record.text = row.payload.decode(errors="replace")
    elif row.payload is not None and images:
        record.image = base64.b64encode(row.payload).decode()
    return record


def _packed(classifier: OnlineClassifier) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        archive = FilePath(scratch) / "memory.zip"
        export_memory(classifier.store, archive)
        return archive.read_bytes()


def _take_in(content: bytes, classifier: OnlineClassifier, limits: Limits) -> Copied:
    with tempfile.TemporaryDirectory() as scratch:
        archive = FilePath(scratch) / "memory.zip"
        archive.write_bytes(content)
        try:
            exported = read_exported(archive, limits.import_bytes)
            if len(exported.rows) + len(classifier) > limits.rows:
                raise memory_full(limits.rows)
            return classifier.import_memory(exported)
        except FingerprintMismatch as error:
            raise storage(error) from None
        except TooLarge as error:
            raise Refused(413, "too_large", str(error)) from None
        except (StoreError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise invalid(str(error).replace(str(archive), "the archive")[:500]) from None
