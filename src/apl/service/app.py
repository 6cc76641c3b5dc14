"""The application: routes, page, health and metrics, behind the guard."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from apl.learner import Learner
from apl.service import responses
from apl.service.guard import Guard, Refused
from apl.service.memories import FIRST, away
from apl.service.requests import MODELS
from apl.service.routes import router
from apl.service.served_model import ServedModel
from apl.service.settings import Settings
from apl.service.state import ServiceState
from apl.service.telemetry import Metrics, log
from apl.service.tokens import Tokens, make_token
from apl.store import StoreAway, StoreError

PAGE = Path(__file__).parent / "page"
ABOUT = (
    "A classifier that starts knowing nothing, learns from single examples and keeps only what surprised it. "
    f"Each named memory is a classifier of its own; the memory `{FIRST}` is always there."
)


def create_app(settings: Settings, learner: Learner | None = None) -> FastAPI:
    """The service as an ASGI application. What it opens, it opens when it is started."""
    model = ServedModel.open(settings, learner)
    tokens = None if settings.tokens is None else Tokens.load(settings.tokens)
    owner_token = None
    if settings.share and tokens is None:
        tokens = Tokens({})
        owner_token, entry = make_token("owner", ["*=admin"])
        tokens.add(entry)
    metrics = Metrics()

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        try:
            app.state.parts = await ServiceState.open(settings, model, metrics, tokens)
        except Refused as refusal:
            app.state.failure = refusal.message
            raise
        log.info("ready", extra={"fields": {"model": settings.model, "memories": len(app.state.parts.memories.list())}})
        try:
            yield
        finally:
            await app.state.parts.close()
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
    app.state.owner_token = owner_token
    app.include_router(router)
    _add_health(app, metrics)
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    app.openapi = lambda: _openapi(app, settings)  # type: ignore[method-assign]
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["*"],
            allow_headers=["authorization", "content-type", "idempotency-key"],
        )
    app.add_middleware(Guard, settings=settings, tokens=tokens, metrics=metrics)
    return app


def _add_health(app: FastAPI, metrics: Metrics) -> None:
    @app.get("/healthz", response_model=responses.Status, tags=["service"])
    async def health() -> Response:
        """The process answers."""
        return _json({"status": "alive"}, 200)

    @app.get("/readyz", response_model=responses.Status, responses={503: {"model": responses.Status}}, tags=["service"])
    async def ready(request: Request) -> Response:
        """The model is loaded, the memories answer, and no stop has been asked for."""
        parts: ServiceState | None = getattr(request.app.state, "parts", None)
        if parts is None or parts.stopping:
            return _json({"status": "stopping"}, 503)
        if not await parts.memories.are_there():
            return _json({"status": "the memories do not answer"}, 503)
        return _json({"status": "ready"}, 200)

    @app.get("/metrics", response_class=Response, tags=["service"], responses={200: {"content": {"text/plain": {}}}})
    async def show_metrics(request: Request) -> Response:
        """For Prometheus. Scope: read for every memory."""
        if not request.state.client.may("read", "*"):
            raise Refused(403, "forbidden", "metrics need the scope read for every memory")
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _refused(request: Request, error: Any) -> Response:
    return _error(error.status, error.code, error.message, error.headers)


async def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])[:200]
    return _error(422, "invalid", f"{place}: {first['msg']}")


async def _http(request: Request, error: Any) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
    return _error(error.status_code, code, str(error.detail), dict(error.headers or {}))


async def _storage(request: Request, error: Any) -> Response:
    if isinstance(error, StoreAway):
        return await _refused(request, away(error))
    log.error("storage", extra={"fields": {"path": request.url.path, "message": str(error)}})
    return _error(507, "storage", f"nothing was written: {error}")


_HANDLERS = {Refused: _refused, RequestValidationError: _invalid, HTTPException: _http, StoreError: _storage}


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"error": {"code": code, "message": message}}, status, headers)


def _json(content: Any, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, media_type="application/json")


def _openapi(app: FastAPI, settings: Settings) -> dict[str, Any]:
    """FastAPI's description, with the bodies that routes read by themselves, and the tokens."""
    if not app.openapi_schema:
        document = FastAPI.openapi(app)
        _, definitions = models_json_schema(
            [(model, "validation") for model in MODELS], ref_template="#/components/schemas/{model}"
        )
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(definitions["$defs"])
        if settings.tokens is not None or settings.share:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        app.openapi_schema = document
    return app.openapi_schema
