"""Every path but those of the page. Answers follow the verbs of `OnlineClassifier`."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path as FilePath
from typing import IO, Annotated, Any, cast

from fastapi import APIRouter, Body
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from apl.classifier.answers import LabelSet, Receipt
from apl.classifier.drift import DriftReport
from apl.classifier.online import OnlineClassifier
from apl.classifier.review import Suspect
from apl.classifier.suggest import Suggestion
from apl.service import answers, bodies
from apl.service.answers import errors, finite
from apl.service.curve import CURVE_SETTING, Curve
from apl.service.guard import PART_BYTES
from apl.service.live import EVENT_STREAM, EventStream, changes
from apl.service.parameters import (
    CHECKED,
    After,
    Caller,
    Coverage,
    FalseAlarms,
    Key,
    Limit,
    Name,
    NewAbove,
    Parts,
    ToOwn,
    Top,
    ToRead,
    ToTeach,
)
from apl.service.refusal import Refused, invalid, storage
from apl.service.served_memory import memory_full
from apl.service.settings import ARCHIVE, TOP, Limits, is_loopback
from apl.service.tokens import link, local_address, make_token
from apl.store import FingerprintMismatch, StoreError
from apl.store.exported import TooLarge
from apl.store.transfer import Copied, export_memory, read_exported


def _router(tag: str, prefix: str = "/v1/memories/{name}") -> APIRouter:
    return APIRouter(prefix=prefix, tags=[tag], responses=errors(), dependencies=CHECKED)


memories, rows, examples, v1 = _router("memories"), _router("rows"), _router("examples"), _router("service", "/v1")
open_to_all = APIRouter(tags=["service"])
ROUTERS = (open_to_all, v1, memories, rows, examples)


# --- the service --------------------------------------------------------------------------------------------------


@open_to_all.get("/healthz")
async def health() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


@open_to_all.get("/readyz", responses={503: {"model": dict[str, str]}})
async def ready(service: Parts, response: Response) -> dict[str, str]:
    """The model is loaded, the memories answer, and the service is not stopping."""
    problem = "stopping" if service.stopping else None
    if problem is None and not await service.answers():
        problem = "the memories do not answer"
    response.status_code = 503 if problem else 200
    return {"status": problem or "ready"}


@open_to_all.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **errors()})
async def metrics(service: Parts, client: Caller) -> Response:
    """For Prometheus. Scope: read for every memory."""
    if not client.may("read", "*"):
        raise Refused(403, "forbidden", "metrics need the scope read for every memory")
    await service.measure_drift()
    return Response(service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


@v1.get("/service")
async def about(service: Parts, client: Caller) -> answers.ServiceInfo:
    """What runs here, and whether the client may make memories."""
    try:
        installed = version("apl-memory")
    except PackageNotFoundError:
        installed = "from a checkout"
    return answers.ServiceInfo(
        version=installed,
        model=FilePath(service.settings.model).name,  # its directory is private
        takes=cast(Any, service.model.input_kind),
        fingerprint=service.fingerprint,
        admin=client.may("admin", "*"),
    )


# --- memories -----------------------------------------------------------------------------------------------------


@v1.get("/memories")
async def list_memories(service: Parts, client: Caller) -> list[answers.MemoryRecord]:
    """The memories this client may read."""
    found = [service.record(client, name) for name in await service.names()]
    return [answers.MemoryRecord.model_validate(one) for one in found if one["scope"]]


@memories.put("", responses={201: {"model": answers.MemoryState}})
async def make_memory(service: Parts, client: Caller, name: Name, response: Response) -> answers.MemoryState:
    """Make a memory; one that is there already stays as it is. Scope: admin."""
    service.allow(client, "admin", name)
    response.status_code = 201 if await service.make(name) else 200
    return await show_memory(service, client, await service.memory(name))


@memories.get("")
async def show_memory(service: Parts, client: Caller, memory: ToRead) -> answers.MemoryState:
    """Rows, classes, and how the latest examples went. Scope: read."""

    def state(classifier: OnlineClassifier) -> answers.MemoryState:
        counts, curve = classifier.counts(), Curve.read(classifier.store.setting(CURVE_SETTING))
        classes = [{"label": label, "rows": rows} for label, rows in counts.items()]
        found = {"rows": sum(counts.values()), "classes": classes, "curve": curve}
        return answers.MemoryState.model_validate(service.record(client, memory.name) | found)

    return await memory.run(state)


@memories.delete("", status_code=204)
async def delete_memory(service: Parts, client: Caller, name: Name) -> None:
    """Delete a memory with all its rows. Scope: admin."""
    service.allow(client, "admin", name)
    await service.delete(name)


@memories.post("/share")
async def share(request: Request, service: Parts, memory: ToOwn, body: bodies.Sharing) -> answers.Shared:
    """A link for others on the local network, with a token for this memory alone. Scope: admin."""
    host, tokens = service.settings.host, service.tokens
    if tokens is None or is_loopback(host):
        raise Refused(
            409, "not_shared", "this service can be reached from this machine only: start it with `apl serve --share`"
        )
    address = local_address() if ipaddress.ip_address(host.strip("[]")).is_unspecified else host
    if address is None:
        raise Refused(409, "no_network", "this machine has no address that others could reach")
    name, identity = f"guest {secrets.token_hex(3)}", {memory.name: memory.info.identity}
    token, guest = make_token(name, [f"{memory.name}={body.scope}"], identity)
    try:
        await asyncio.to_thread(tokens.add, guest)
    except (OSError, ValueError) as error:
        raise Refused(409, "not_shared", f"the token file could not be written: {error}") from None
    found = link(address, int(request.scope["server"][1]), memory=memory.name, token=token)
    return answers.Shared(link=found, token_name=name)


@memories.get("/drift")
async def drift(memory: ToRead) -> DriftReport:
    """Whether surprise has risen over the latest examples, since when, and with which classes. Scope: read."""
    return await memory.run(lambda classifier: classifier.drift())


@memories.get("/events", response_class=Response, responses={200: {"content": {EVENT_STREAM: {}}}})
async def events(service: Parts, memory: ToRead) -> Response:
    """Server-sent events: `changed` at the start and after every change, `deleted` when the memory is. Scope: read."""
    happening = changes(memory, lambda: service.stopping)
    return EventStream(happening, service.settings.limits.streams)


@memories.get("/export", response_class=Response, responses={200: {"content": {ARCHIVE: {}}}})
async def export(memory: ToRead) -> Response:
    """The whole memory as a zip archive of JSON and safetensors. Scope: read."""
    file = await memory.run(_packed)
    disposition = f'attachment; filename="{memory.name}.zip"'
    return StreamingResponse(_parts(file), media_type=ARCHIVE, headers={"content-disposition": disposition})


@memories.post("/import")
async def import_(service: Parts, memory: ToOwn, archive: Annotated[bytes, Body(media_type=ARCHIVE)]) -> Copied:
    """Copy an exported memory into this one; rows it has already are left out. Scope: admin."""
    limits = service.settings.limits
    return await memory.run(lambda classifier: _take_in(archive, classifier, limits), changes=True)


# --- examples -----------------------------------------------------------------------------------------------------


@examples.post("/predict")
async def predict(
    memory: ToRead, body: bodies.Question, top: Top = TOP, new_above: NewAbove = None, false_alarms: FalseAlarms = None
) -> answers.Prediction:
    """The class of an example. Scope: read."""
    return (await memory.ask([body], top, new_above, false_alarms))[0]


@examples.post("/predict/batch")
async def predict_batch(
    memory: ToRead, body: bodies.Questions, top: Top = TOP, new_above: NewAbove = None, false_alarms: FalseAlarms = None
) -> list[answers.Prediction]:
    """The classes of several examples. Scope: read."""
    return await memory.ask(body.examples, top, new_above, false_alarms)


@examples.post("/predict_set")
async def predict_set(memory: ToRead, body: bodies.Question, coverage: Coverage = 0.9) -> LabelSet:
    """The labels that contain the true one with the frequency `coverage`. Scope: read."""
    return await memory.examine(lambda classifier, x: classifier.predict_set(x, coverage), [body])


@examples.post("/suggest")
async def suggest(memory: ToRead, body: bodies.Pool, n: Limit = TOP) -> list[Suggestion]:
    """Which `n` examples of a pool are most worth a label, best first. Nothing is learnt. Scope: read."""
    return await memory.examine(lambda classifier, pool: classifier.suggest(pool, n), body.examples)


@examples.post("/explain")
async def explain(memory: ToRead, body: bodies.Question, top: Top = TOP) -> answers.Explained:
    """The class of an example, and the rows and readers behind the answer. Scope: read."""
    found = await memory.examine(lambda classifier, x: classifier.explain(x), [body])
    explained = answers.Explained.model_validate(found)
    del explained.probabilities[top:]
    return explained


@examples.post("/learn", responses=errors(410))
async def learn(memory: ToTeach, body: bodies.Lesson, key: Key = None) -> Receipt:
    """Predict, then learn the label: written if it surprises, else merged. Once answered, it lasts. Scope: learn."""
    return (await memory.teach([body], key))[0]


@examples.post("/learn/batch", responses=errors(410))
async def learn_batch(memory: ToTeach, body: bodies.Lessons, key: Key = None) -> list[Receipt]:
    """Several examples: all of them last, or none. Their classes take turns; receipts come in the order sent. Scope: learn."""
    return await memory.teach(body.examples, key)


# --- rows ---------------------------------------------------------------------------------------------------------


@rows.get("/rows")
async def show_rows(memory: ToRead, after: After = 0, limit: Limit = 200, payloads: bool = False) -> answers.Rows:
    """The rows, oldest first; with `payloads`, also what was kept with them. Scope: read."""

    def page(classifier: OnlineClassifier) -> answers.Rows:
        ids = classifier.store.ids(after, limit + 1)
        found = classifier.store.some_rows(ids[:limit])
        kept = [row if payloads else replace(row, payload=None) for row in found]
        return answers.Rows(
            rows=[answers.RowRecord.model_validate(row) for row in kept],
            next=ids[limit - 1] if len(ids) > limit else None,
        )

    return await memory.run(page)


@rows.post("/forget")
async def forget(memory: ToTeach, body: bodies.Forgetting) -> answers.Forgotten:
    """Forget a class, a row, or everything from a source. Scope: learn."""
    gone = await memory.run(lambda classifier: classifier.forget(**vars(body)), changes=True)
    return answers.Forgotten(rows=gone, rebuilt=list(gone.rebuilt))


@rows.post("/rename")
async def rename(memory: ToTeach, body: bodies.Renaming) -> list[int]:
    """Give a class another name. Answers with its rows. Scope: learn."""
    try:
        return await memory.run(lambda classifier: classifier.rename(body.label, body.to), changes=True)
    except KeyError:
        raise Refused(404, "no_such_class", f"there is no class {body.label!r}") from None


@rows.get("/review")
async def review(memory: ToRead, limit: Limit = 50) -> list[Suspect]:
    """Rows whose label looks wrong by the other rows, most suspicious first. Scope: read."""
    found = await memory.run(lambda classifier: classifier.review())
    return [finite(suspect) for suspect in found[:limit]]


@rows.post("/relabel")
async def relabel(memory: ToTeach, body: bodies.Relabelling) -> int:
    """Give a row, or what a source contributed to it, another label. Answers with the row that has it. Scope: learn."""

    def relabelled(classifier: OnlineClassifier) -> int:
        if not classifier.store.some_rows([body.row]):
            raise Refused(404, "no_such_row", f"there is no row {body.row}")
        if body.source is not None and body.row not in classifier.store.rows_of_source(body.source):
            raise Refused(404, "no_such_source", f"nothing of this source is in row {body.row}")
        return classifier.relabel(body.row, body.label, source=body.source)

    return await memory.run(relabelled, changes=True)


# --- inside -------------------------------------------------------------------------------------------------------


def _packed(classifier: OnlineClassifier) -> IO[bytes]:
    """The exported memory in a file without a name, which is gone once it is closed."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = FilePath(scratch) / "memory.zip"
        export_memory(classifier.store, archive)
        whole = tempfile.TemporaryFile()  # noqa: SIM115, closed when it has been sent
        with archive.open("rb") as file:
            shutil.copyfileobj(file, whole)
    whole.seek(0)
    return whole


async def _parts(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while part := file.read(PART_BYTES):
            yield part


def _take_in(content: bytes, classifier: OnlineClassifier, limits: Limits) -> Copied:
    with tempfile.TemporaryDirectory() as scratch:
        archive = FilePath(scratch) / "memory.zip"
        archive.write_bytes(content)
        try:
            exported = read_exported(archive, limits.import_bytes, limits.import_values)
            if len(exported.rows) + len(classifier) > limits.rows:
                raise memory_full(limits.rows)
            return classifier.import_memory(exported)
        except FingerprintMismatch as error:
            raise storage(error) from None
        except TooLarge as error:
            raise Refused(413, "too_large", str(error)) from None
        except (StoreError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise invalid(str(error).replace(str(archive), "the archive")[:500]) from None
