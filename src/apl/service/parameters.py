"""What routes take: the service, the client, a memory in which it has the right asked for, and query parameters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query
from fastapi.security import HTTPBearer
from starlette.requests import Request

from apl.service.refusal import invalid
from apl.service.served_memory import ServedMemory
from apl.service.service import Service
from apl.service.settings import MOST_TOP
from apl.service.tokens import Client, Scope


def _service(request: Request) -> Any:
    return request.app.state.service


def _client(request: Request) -> Any:
    return request.state.client


Parts = Annotated[Service, Depends(_service)]
Caller = Annotated[Client, Depends(_client)]
Name = Annotated[str, Path(description="The memory's name.", json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,64}$"})]


def _memory(scope: Scope) -> Any:
    async def found(service: Parts, client: Caller, name: Name) -> ServedMemory:
        service.allow(client, scope, name)
        memory = await service.memory(name)
        service.allow(client, scope, name)  # another memory may have this name by now
        return memory

    return Depends(found)


ToRead = Annotated[ServedMemory, _memory("read")]
ToTeach = Annotated[ServedMemory, _memory("learn")]
ToOwn = Annotated[ServedMemory, _memory("admin")]
Top = Annotated[int, Query(ge=1, le=MOST_TOP, description="How many of the most probable classes to name.")]
NewAbove = Annotated[
    float | None, Query(ge=0, le=1, description="Answer null for what is new with a probability above this.")
]
FalseAlarms = Annotated[
    float | None,
    Query(gt=0, lt=1, description="Answer null for this share of examples of known classes, and for what is as new."),
]
Coverage = Annotated[float, Query(gt=0, lt=1, description="How often the set contains the true label.")]
Limit = Annotated[int, Query(ge=1, le=500)]
After = Annotated[int, Query(ge=0, lt=2**63, description="Only rows with larger ids.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="Any text of your choice. A repeated request with the same key gets the same answer and learns "
        "nothing; the latest keys of a memory are remembered, over restarts too.",
    ),
]


def only_known_parameters(request: Request) -> None:
    """A misspelt query parameter is an error."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    if unknown := set(request.query_params) - known:
        raise invalid(f"{min(unknown)[:100]}: no such query parameter is expected here")


# The second dependency only tells readers of the description that tokens are bearer tokens; the guard checks them.
CHECKED = [Depends(only_known_parameters), Depends(HTTPBearer(auto_error=False))]
