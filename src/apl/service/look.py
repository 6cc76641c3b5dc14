"""Looking into a memory without changing it. To be run at its desk, so that nothing changes meanwhile."""

from __future__ import annotations

import base64
import bisect
from typing import Any

from apl.classifier.opened import Opened
from apl.service.desk import Desk
from apl.service.guard import Refused
from apl.service.records import finite


def state(desk: Desk) -> dict[str, Any]:
    store = desk.opened.store
    return {
        "name": store.name, "created": store.created, "usable": True, **counts(desk.opened),
        "curve": vars(desk.history.copy()),
    }  # fmt: skip


def counts(opened: Opened) -> dict[str, Any]:
    per_class = opened.world.memory.counts()
    return {
        "rows": sum(per_class.values()),
        "classes": [{"label": label, "rows": rows} for label, rows in per_class.items()],
    }


def rows(opened: Opened, after: int, limit: int, images: bool) -> dict[str, Any]:
    """Some rows, and where to go on."""
    ids = opened.world.memory.ids
    start = bisect.bisect_right(ids, after)
    part = ids[start : start + limit]
    more = start + limit < len(ids)
    return {"rows": [row(opened, id, images) for id in part], "next": part[-1] if more else None}


def row(opened: Opened, id: int, image: bool) -> dict[str, Any]:
    _require(opened, id)
    found = opened.store.row(id)
    payload = base64.b64encode(found.payload).decode() if image and found.payload is not None else None
    return {
        "row": found.id, "label": found.label, "source": found.source, "surprise_nats": finite(found.surprise_nats),
        "written_at": found.written_at, "image": payload,
    }  # fmt: skip


def picture(opened: Opened, id: int) -> bytes:
    _require(opened, id)
    payload = opened.store.payload(id)
    if payload is None:
        raise Refused(404, "no_picture", f"row {id} was written without a picture")
    return payload


def _require(opened: Opened, id: int) -> None:
    ids = opened.world.memory.ids
    place = bisect.bisect_left(ids, id)
    if place == len(ids) or ids[place] != id:
        raise Refused(404, "no_such_row", f"there is no row {id}")
