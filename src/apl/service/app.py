"""The application: routes, page, health and metrics, behind the guard."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from apl.service import learning, reviewing, routes
from apl.service.answers import Status
from apl.service.guard import Activity, Guard
from apl.service.memories import FIRST, away
from apl.service.refusal import Refused
from apl.service.service import Service, client_of
from apl.service.settings import LABEL_CHARACTERS, Settings
from apl.service.telemetry import Metrics, log
from apl.service.tokens import Tokens, make_token
from apl.store import StoreError, StoreUnavailable

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
        tokens = Tokens({})
        owner_token, entry = make_token("owner", ["*=admin"])
        tokens.add(entry)
    metrics, activity = Metrics(), Activity()
    service = Service.make(settings, metrics, tokens, activity)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        await service.memories.open()
        log.info("ready", extra={"fields": {"model": settings.model, "memories": len(service.memories.list())}})
        try:
            yield
        finally:
            await service.memories.close()
            log.info("stopped")

    app = FastAPI(
        title="apl",
        summary="Adaptive Posterior Learning over HTTP",
        description=ABOUT,
        version="1",
        lifespan=running,
        docs_url=None,
        redoc_url=None,
        exception_handlers=_HANDLERS,
    )
    app.state.service, app.state.activity, app.state.owner_token = service, activity, owner_token
    app.include_router(routes.router)
    app.include_router(learning.router)
    app.include_router(reviewing.router)
    _add_health(app, service)
    _add_page(app)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["*"],
            allow_headers=["authorization", "content-type", "idempotency-key"],
        )
    app.add_middleware(Guard, settings=settings, tokens=tokens, metrics=metrics, activity=activity)
    return app


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", tags=["service"])
    async def health() -> Status:
        """The process answers."""
        return Status(status="alive")

    @app.get("/readyz", tags=["service"], responses={503: {"model": Status}})
    async def ready(response: Response) -> Status:
        """The model is loaded, the memories answer, and the service is not stopping."""
        problem = None
        if service.activity.stopping:
            problem = "stopping"
        elif not await service.memories.answer():
            problem = "the memories do not answer"
        response.status_code = 503 if problem else 200
        return Status(status=problem or "ready")

    @app.get("/metrics", response_class=Response, tags=["service"], responses={200: {"content": {"text/plain": {}}}})
    async def show_metrics(request: Request) -> Response:
        """For Prometheus. Scope: read for every memory."""
        if not client_of(request).may("read", "*"):
            raise Refused(403, "forbidden", "metrics need the scope read for every memory")
        return Response(service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    """The page by routes of its own: a mount would answer for paths under /v1 that do not exist."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def docs() -> Response:
        return _file("docs.html")

    @app.api_route("/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def file(name: str) -> Response:
        return _file(name)


def _file(name: str) -> Response:
    if name not in PAGE:
        raise Refused(404, "not_found", "there is nothing here")
    return Response(PAGE[name], media_type=mimetypes.guess_type(name)[0])


async def _refused(request: Request, error: Any) -> Response:
    return _error(error.status, error.code, error.message, error.headers)


async def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    # pydantic names the alternatives of a union in the place of an error.
    places = [str(part) for part in first["loc"] if part != "body" and "constrained-" not in str(part)]
    message = first["msg"].removeprefix("Value error, ")
    if places[-1:] in (["label"], ["to"]) and first["type"] == "string_type":
        message = f"it must be text of 1 to {LABEL_CHARACTERS} characters, or an integer of 64 bits"
    return _error(422, "invalid", ": ".join(filter(None, (".".join(places)[:200], message[:300]))))


async def _http(request: Request, error: Any) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
    # FastAPI answers a broken form with 400.
    status = 422 if error.status_code == 400 else error.status_code
    return _error(status, code, str(error.detail), dict(error.headers or {}))


async def _storage(request: Request, error: Any) -> Response:
    if isinstance(error, StoreUnavailable):
        return await _refused(request, away(error))
    log.error("storage", extra={"fields": {"path": request.url.path, "message": str(error)}})
    return _error(507, "storage", f"nothing was written: {error}")


_HANDLERS: dict[int | type[Exception], Callable[..., Any]] = {
    Refused: _refused,
    RequestValidationError: _invalid,
    HTTPException: _http,
    StoreError: _storage,
}


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)
