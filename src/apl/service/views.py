"""Looking into a memory without changing it. To be run at its worker, so that nothing changes meanwhile."""

from __future__ import annotations

import base64
import bisect
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


def rows(session: Session, after: int, limit: int, images: bool) -> dict[str, Any]:
    """Some rows, and where to go on."""
    ids = session.world.memory.ids
    start = bisect.bisect_right(ids, after)
    part = ids[start : start + limit]
    more = start + limit < len(ids)
    return {"rows": [row(session, id, images) for id in part], "next": part[-1] if more else None}


def row(session: Session, id: int, image: bool) -> dict[str, Any]:
    _require(session, id)
    found = session.store.row(id)
    payload = base64.b64encode(found.payload).decode() if image and found.payload is not None else None
    return {
        "row": found.id,
        "label": found.label,
        "source": found.source,
        "surprise_nats": finite(found.surprise_nats),
        "written_at": found.written_at,
        "examples": found.count,
        "image": payload,
    }


def picture(session: Session, id: int) -> bytes:
    _require(session, id)
    payload = session.store.payload(id)
    if payload is None:
        raise Refused(404, "no_picture", f"row {id} was written without a picture")
    return payload


def _require(session: Session, id: int) -> None:
    ids = session.world.memory.ids
    place = bisect.bisect_left(ids, id)
    if place == len(ids) or ids[place] != id:
        raise Refused(404, "no_such_row", f"there is no row {id}")
