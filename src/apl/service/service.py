"""The parts of a running service, and what routes need of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Path
from fastapi.security import HTTPBearer
from starlette.requests import Request

from apl.service.guard import Activity
from apl.service.live import Streams
from apl.service.memories import Memories, valid_name
from apl.service.refusal import Refused, invalid
from apl.service.served_memory import ServedMemory
from apl.service.settings import Settings
from apl.service.tokens import Client, Scope, Tokens


@dataclass
class Service:
    settings: Settings
    memories: Memories
    tokens: Tokens | None
    activity: Activity
    streams: Streams
    episodes: Streams


def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def _client(request: Request) -> Client:
    return cast(Client, request.state.client)


Parts = Annotated[Service, Depends(_service)]
Caller = Annotated[Client, Depends(_client)]
Name = Annotated[str, Path(description="The memory's name.", json_schema_extra={"pattern": "^[A-Za-z0-9._-]{1,64}$"})]


def _allowed(scope: Scope) -> Any:
    def check(parts: Parts, client: Caller, name: Name) -> None:
        valid_name(name)
        if not client.may(scope, name, parts.memories.identity(name)):
            raise Refused(403, "forbidden", f"this token does not have the scope {scope} for memory {name!r}")

    return Depends(check)


def _memory(scope: Scope) -> Any:
    async def found(parts: Parts, name: Name, _: None = _allowed(scope)) -> ServedMemory:
        return await parts.memories.get(name)

    return Depends(found)


Admin = Annotated[None, _allowed("admin")]
"""The client may make and delete the memory of this name, whether there is one or not."""
ToRead = Annotated[ServedMemory, _memory("read")]
ToTeach = Annotated[ServedMemory, _memory("learn")]
ToOwn = Annotated[ServedMemory, _memory("admin")]


async def only_known_parameters(request: Request) -> None:
    """A misspelt query parameter is an error."""
    known: set[str] = set()
    for field in request.scope["route"].dependant.query_params:
        known |= set(getattr(field.field_info.annotation, "model_fields", {field.alias}))
    if unknown := set(request.query_params) - known:
        raise invalid(f"{min(unknown)[:100]}: no such query parameter is expected here")


DEPENDENCIES = [Depends(only_known_parameters), Depends(HTTPBearer(auto_error=False))]
"""The second one only tells readers of the description that tokens are bearer tokens; the guard checks them."""
