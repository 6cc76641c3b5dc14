"""The application: routes and page behind the guard, and errors as answers."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from apl.service import routes
from apl.service.guard import Guard
from apl.service.refusal import Refused, invalid, storage
from apl.service.service import FIRST, Service
from apl.service.settings import LABEL_CHARACTERS, Settings
from apl.service.telemetry import log
from apl.service.tokens import Tokens, make_token
from apl.store import StoreError

PAGE = {file.name: file.read_bytes() for file in (Path(__file__).parent / "page").iterdir()}
ABOUT = (
    "A classifier that starts knowing nothing, learns from single examples and keeps only what surprised it. "
    f"Each named memory is a classifier of its own; the memory `{FIRST}` is made at the start."
)


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI application. Memories are opened when it is started."""
    tokens = None if settings.tokens is None else Tokens.load(settings.tokens)
    owner_token = None
    if settings.share and tokens is None:
        owner_token, owner = make_token("owner", ["*=admin"])
        tokens = Tokens([owner])
    service = Service(settings, tokens)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        await service.open()
        log.info("ready", extra={"fields": {"model": settings.model, "memories": len(await service.names())}})
        try:
            yield
        finally:
            await service.close()
            log.info("stopped")

    app = FastAPI(
        title="apl",
        summary="Adaptive Posterior Learning over HTTP",
        description=ABOUT,
        version="1",
        lifespan=running,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        exception_handlers={
            Refused: _refused,
            RequestValidationError: _invalid,
            HTTPException: _http,
            StoreError: _storage,
        },
    )
    app.state.service, app.state.owner_token = service, owner_token
    for router in routes.ROUTERS:
        app.include_router(router)
    for path, file in {"": "index.html", "docs": "docs.html", **{name: name for name in PAGE}}.items():
        app.add_route(f"/{path}", partial(_file, file), methods=["GET"], include_in_schema=False)
    app.add_middleware(Guard, service=service)
    return app


async def _file(name: str, request: Request) -> Response:
    """A file of the page."""
    return Response(PAGE[name], media_type=mimetypes.guess_type(name)[0])


async def _refused(request: Request, error: Any) -> Response:
    response: Response = error.response()
    return response


async def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return invalid("the body is not JSON").response()
    # pydantic names the alternatives of a union in the place of an error.
    places = [str(part) for part in first["loc"] if part not in ("body", "query") and "constrained-" not in str(part)]
    message = first["msg"].removeprefix("Value error, ")
    if places[-1:] in (["label"], ["to"]) and first["type"] == "string_type":
        message = f"it must be text of 1 to {LABEL_CHARACTERS} characters, or an integer of 64 bits"
    return invalid(": ".join(filter(None, (".".join(places)[:200], message[:300])))).response()


async def _http(request: Request, error: Any) -> Response:
    match error.status_code:
        case 404:
            return Refused(404, "not_found", "there is nothing here").response()
        case 405:
            # A path has a route for each of its methods, and Starlette names those of the first alone.
            asked = {method: {**request.scope, "method": method} for method in ("DELETE", "GET", "POST", "PUT")}
            routes = request.app.routes
            allowed = ", ".join(m for m in asked if any(r.matches(asked[m])[0] is Match.FULL for r in routes))
            message = f"this path takes {allowed}, not {request.method[:20]}"
            return Refused(405, "method_not_allowed", message, allow=allowed).response()
    # FastAPI answers a body that cannot be parsed with 400.
    return invalid("the body is not JSON that can be read").response()


async def _storage(request: Request, error: Any) -> Response:
    refusal = storage(error)
    if refusal.status == 507:
        log.error("storage", extra={"fields": {"path": request.url.path, "message": str(error)}})
    return refusal.response()
