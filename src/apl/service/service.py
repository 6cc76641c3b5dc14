"""The parts of a running service, shared by its routes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

from starlette.requests import Request

from apl.classifier.online import OnlineClassifier
from apl.service.answers import ServiceInfo
from apl.service.guard import Activity
from apl.service.live import Streams
from apl.service.memories import Memories, valid_name
from apl.service.refusal import Refused
from apl.service.served_memory import ServedMemory
from apl.service.settings import Settings, is_loopback
from apl.service.telemetry import Metrics
from apl.service.tokens import Client, Scope, Tokens

TAKES = ("drawing", "photo", "text")


@dataclass
class Service:
    settings: Settings
    model: OnlineClassifier
    """An empty classifier of the served model, which its memories are siblings of."""
    memories: Memories
    metrics: Metrics
    tokens: Tokens | None
    activity: Activity
    streams: Streams
    episodes: Streams

    @staticmethod
    def make(settings: Settings, metrics: Metrics, tokens: Tokens | None, activity: Activity) -> Service:
        model = OnlineClassifier(settings.model).open()
        if model.input_kind not in TAKES:
            raise ValueError(
                f"{settings.model} takes neither pictures nor sentences: the service needs a model that does"
            )
        return Service(
            settings,
            model,
            Memories(settings, model, metrics),
            metrics,
            tokens,
            activity,
            Streams(settings.limits.streams),
            Streams(settings.limits.episodes),
        )

    @property
    def takes(self) -> str:
        return self.model.input_kind

    def info(self, client: Client) -> ServiceInfo:
        return ServiceInfo.model_validate(
            {
                "version": installed_version(),
                # The directory of a model is private.
                "model": Path(self.settings.model).name,
                "takes": self.takes,
                "fingerprint": self.memories.fingerprint,
                "client": client.name,
                "admin": client.may("admin", "*"),
                "shared": self.tokens is not None and not is_loopback(self.settings.host),
            }
        )


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def client_of(request: Request) -> Client:
    return cast(Client, request.state.client)


def scope_in(request: Request, name: str) -> Scope | None:
    """What the client may do in the memory that has this name now."""
    return client_of(request).scope(name, service_of(request).memories.identity(name))


def allow(request: Request, scope: Scope, name: str) -> None:
    valid_name(name)
    if not client_of(request).may(scope, name, service_of(request).memories.identity(name)):
        raise Refused(403, "forbidden", f"this token does not have the scope {scope} for memory {name!r}")


async def memory_of(request: Request, scope: Scope, name: str) -> ServedMemory:
    allow(request, scope, name)
    return await service_of(request).memories.get(name)


def installed_version() -> str:
    try:
        return version("apl-memory")
    except PackageNotFoundError:
        return "from a checkout"
