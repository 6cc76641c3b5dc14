"""Paths under /v1 for labels that look wrong."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from apl.classifier.online import OnlineClassifier
from apl.service.answers import Relabelled, Review, SuspectRecord, errors
from apl.service.bodies import Relabelling
from apl.service.refusal import Refused
from apl.service.routes import DEPENDENCIES, Name
from apl.service.service import memory_of

router = APIRouter(prefix="/v1", responses=errors(404, 409, 507), dependencies=DEPENDENCIES, tags=["rows"])


@router.get("/memories/{name}/review")
async def review(request: Request, name: Name, limit: Annotated[int, Query(ge=1, le=500)] = 50) -> Review:
    """Rows whose label looks wrong by the other rows, most suspicious first. Scope: read."""
    memory = await memory_of(request, "read", name)

    def found(classifier: OnlineClassifier) -> Review:
        return Review(suspects=[SuspectRecord.model_validate(one) for one in classifier.review()[:limit]])

    return await memory.run(found)


@router.post("/memories/{name}/relabel")
async def relabel(request: Request, name: Name, body: Relabelling) -> Relabelled:
    """Give a row, or what a source contributed to it, another label. Scope: learn."""
    memory = await memory_of(request, "learn", name)

    def relabelled(classifier: OnlineClassifier) -> Relabelled:
        store = classifier.store
        if not store.existing([body.row]):
            raise Refused(404, "no_such_row", f"there is no row {body.row}")
        if body.source is not None and body.row not in store.rows_of_source(body.source):
            raise Refused(404, "no_such_source", f"nothing of this source is in row {body.row}")
        return Relabelled(row=classifier.relabel(body.row, body.label, source=body.source))

    return await memory.run(relabelled, changes=True)
