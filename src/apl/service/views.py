"""Looking into a memory without changing it. To be run at its worker, so that nothing changes meanwhile."""

from __future__ import annotations

import base64
from typing import Any

from apl.classifier.session import Session
from apl.service.guard import Refused
from apl.service.memory_worker import MemoryWorker
from apl.service.responses import finite


def state(worker: MemoryWorker) -> dict[str, Any]:
    store = worker.session.store
    return {
        "name": store.name,
        "created": store.created,
        "usable": True,
        **counts(worker.session),
        "curve": worker.curve.record(),
    }


def counts(session: Session) -> dict[str, Any]:
    per_class = session.world.memory.counts()
    return {
        "rows": sum(per_class.values()),
        "classes": [{"label": label, "rows": rows} for label, rows in per_class.items()],
    }


def rows(worker: MemoryWorker, after: int, limit: int, images: bool) -> dict[str, Any]:
    """Some rows, and where to go on."""
    ids = worker.world.memory.ids_after(after, limit + 1)
    part = ids[:limit]
    return {"rows": [row(worker, id, images) for id in part], "next": part[-1] if len(ids) > limit else None}


def row(worker: MemoryWorker, id: int, image: bool) -> dict[str, Any]:
    """What is in a row, and what is kept of its example: a picture if asked for, a sentence in any case."""
    _require(worker.session, id)
    found = worker.session.store.row(id)
    is_text = worker.model.takes == "text"
    kept = found.payload if image or is_text else None
    return {
        "row": found.id,
        "label": found.label,
        "source": found.source,
        "surprise_nats": finite(found.surprise_nats),
        "written_at": found.written_at,
        "examples": found.count,
        "image": None if kept is None or is_text else base64.b64encode(kept).decode(),
        "text": kept.decode(errors="replace") if kept is not None and is_text else None,
    }


def picture(worker: MemoryWorker, id: int) -> bytes:
    _require(worker.session, id)
    payload = worker.session.store.payload(id)
    if payload is None or worker.model.takes == "text":
        raise Refused(404, "no_picture", f"row {id} was written without a picture")
    return payload


def media_type_of(picture: bytes) -> str:
    return "image/jpeg" if picture.startswith(b"\xff\xd8") else "image/png"


def _require(session: Session, id: int) -> None:
    if not session.world.memory.existing([id]):
        raise Refused(404, "no_such_row", f"there is no row {id}")
