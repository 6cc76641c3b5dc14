"""Checks before a request reaches the application: host, site, token, rate, and the size and time of its body.

Plain ASGI: a framework's middleware would have read the body by then. What comes before the request, heads, trailers and silent
connections, is bounded by the server (`server.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from apl.service.rate import RequestRate
from apl.service.refusal import Refused, busy, invalid
from apl.service.settings import Settings, is_loopback
from apl.service.telemetry import Metrics, log
from apl.service.tokens import ANYBODY, Client, Tokens

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
DRAINED_BYTES = 64_000_000
"""A body too large is read and dropped up to here, because a client that is still sending does not read an answer."""
MOST_SIGNS = {b"[": 20_000, b"{": 20_000, b":": 20_000}
"""Counted before JSON is parsed: a megabyte of empty lists takes a second to become objects."""
HEALTH = ("/healthz", "/readyz")
CLIENT_LEFT = 499
"""Logged when a client left before its answer."""
TROUBLE_LINES_PER_SECOND = 5.0
"""Of refused requests, per status: a hostile client must not fill the disk with log lines. Metrics count them all."""

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
]


class ClientLeft(Exception):
    """The client went away before its request was complete, or did not take its answer."""


@dataclass
class Activity:
    """What the server needs to know to stop: requests that are being answered, and that no more are wanted."""

    under_way: int = 0
    stopping: bool = False


class Guard:
    """The outermost layer of the application."""

    def __init__(
        self, app: Any, settings: Settings, tokens: Tokens | None, metrics: Metrics, activity: Activity
    ) -> None:
        self.app, self.settings, self.tokens, self.metrics, self.activity = app, settings, tokens, metrics, activity
        self.rate, self.lines = RequestRate(settings.rate_per_second), RequestRate(TROUBLE_LINES_PER_SECOND)
        self._held_bytes = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, answer = time.perf_counter(), _Answer(scope, send, self.settings.limits.unread_seconds)
        client, body = None, _Body(self, scope, receive)
        self.activity.under_way += 1
        try:
            if self.activity.stopping and scope["path"] not in HEALTH:
                raise Refused(503, "stopping", "the service is stopping", connection="close", **{"retry-after": "1"})
            client = self._admit(scope)
            scope.setdefault("state", {})["client"] = client
            if _is_private(scope):
                await body.read(self._most_bytes(scope, client))
            await self.app(scope, body.receive, answer.send)
        except ClientLeft:
            answer.left = True
            # Without an answer the server would say 500 to a client that is still there, after a broken chunk.
            await answer.refuse(Refused(400, "incomplete", "the body is not complete", connection="close"))
        except Refused as refusal:
            await answer.refuse(refusal)
        except Exception:
            if answer.left:  # frameworks wrap what `send` raises
                return
            if not self.lines.wait_seconds("failed"):
                log.exception("failed", extra={"fields": {"request": answer.id, "path": scope["path"]}})
            await answer.refuse(Refused(500, "internal", "something went wrong; the log of the service says what"))
        finally:
            self.activity.under_way -= 1
            self._held_bytes -= body.held
            self._note(scope, answer, client, time.perf_counter() - started)

    def hold(self, size: int) -> None:
        """Count bytes of bodies in RAM."""
        if self._held_bytes + size > self.settings.limits.bodies_bytes:
            raise busy("too many large requests at once: try again later")
        self._held_bytes += size

    def _admit(self, scope: Message) -> Client:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._check_host(headers.get("host", ""))
        private = _is_private(scope)
        _check_site(headers, private)
        who = _address(scope)
        client: Client | None = ANYBODY
        if self.tokens is not None and private:
            kind, _, token = headers.get("authorization", "").partition(" ")
            client = self.tokens.client(token.strip()) if kind.lower() == "bearer" else None
            # Guests who scan the same code share a token.
            who = f"token {client.name} at {who}" if client else who
        wait = self.rate.wait_seconds(who)
        if wait > 0:
            raise Refused(429, "too_many_requests", "too many requests, slow down", **{"retry-after": f"{wait:.0f}"})
        if client is None:
            challenge = {"www-authenticate": "Bearer"}
            raise Refused(401, "unauthorized", "this service needs a token: Authorization: Bearer …", **challenge)
        return client

    def _check_host(self, header: str) -> None:
        """On the loopback interface a foreign host name means that a page elsewhere had its name point here."""
        loopback = is_loopback(self.settings.host)
        if not loopback and not self.settings.allowed_hosts:
            return
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            name = ""
        own = LOOPBACK_NAMES | {self.settings.host} if loopback else set()
        if name not in own and name not in self.settings.allowed_hosts:
            raise Refused(421, "unknown_host", "this service does not answer under that host name: see --allow-host")

    def _most_bytes(self, scope: Message, client: Client) -> int:
        """Only clients that may import a memory may send one."""
        limits = self.settings.limits
        match scope["path"].split("/"):
            case ["", "v1", "memories", name, "import"] if client.may("admin", name, client.identity.get(name)):
                return limits.import_bytes
            case ["", "v1", "memories", name, "suggest"] if client.may("read", name, client.identity.get(name)):
                return limits.pool_bytes
        return limits.body_bytes

    def _note(self, scope: Message, answer: _Answer, client: Client | None, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        status = CLIENT_LEFT if answer.left or answer.status is None else answer.status
        self.metrics.requests.labels(scope["method"] if route != "other" else "other", route, str(status)).inc()
        self.metrics.latency.labels(route).observe(seconds)
        if status >= 400 and self.lines.wait_seconds(str(status)):
            return
        fields = {
            "request": answer.id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "ms": round(1000 * seconds, 2),
            "client": client.name if client else None,
            "address": _address(scope),
        }
        log.info("request", extra={"fields": fields})


def _is_private(scope: Message) -> bool:
    """Other paths need no token, and their bodies are never read."""
    path: str = scope["path"]
    return path.startswith(("/v1", "/metrics"))


def _address(scope: Message) -> str:
    return str((scope.get("client") or ["unknown"])[0])


def _check_site(headers: dict[str, str], private: bool) -> None:
    """Refuse requests from pages of other sites."""
    origin = headers.get("origin")
    if origin is None:
        foreign = private and headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    else:
        site = origin.partition("://")[2]
        foreign = not site or site != headers.get("host")
    if foreign:
        raise Refused(403, "foreign_origin", "pages of other sites may not call this service")


class _Body:
    """A body that is read whole, if it is small enough and arrives in time, before the application sees the request."""

    def __init__(self, guard: Guard, scope: Message, receive: Receive) -> None:
        self.guard, self._receive = guard, receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.held = 0
        self._content: bytes | None = b""

    async def read(self, most: int) -> None:
        limits = self.guard.settings.limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                self._content = await self._whole(most)
        except TimeoutError:
            message = f"the body took more than {limits.body_seconds:g} s"
            raise Refused(408, "too_slow", message, connection="close") from None
        if self.headers.get(b"content-type", b"").strip().lower().startswith(b"application/json"):
            for sign, count in MOST_SIGNS.items():
                if self._content.count(sign) > count:
                    raise invalid(f"more than {count:,} times {sign.decode()!r}: no example needs that")

    async def _whole(self, most: int) -> bytes:
        too_large = Refused(413, "too_large", f"the body must not exceed {most:,} bytes", connection="close")
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > max(most, DRAINED_BYTES):
            raise too_large
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size > max(most, DRAINED_BYTES):
                raise too_large
            if size <= most:
                self.guard.hold(len(part))
                self.held += len(part)
                parts.append(part)
        if size > most:
            raise too_large
        return b"".join(parts)

    async def receive(self) -> Message:
        """The body in one message; after it, what the server has to say (that the client has left)."""
        if self._content is None:
            return await self._receive()
        message = {"type": "http.request", "body": self._content, "more_body": False}
        self._content = None
        return message


class _Answer:
    """Adds the headers of every answer, remembers the status, and gives up on clients that do not read."""

    def __init__(self, scope: Message, send: Send, unread_seconds: float) -> None:
        self._scope, self._send, self._unread_seconds = scope, send, unread_seconds
        self.status: int | None = None
        self.left = False
        self.id = uuid.uuid4().hex[:16]

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), *HEADERS, (b"x-request-id", self.id.encode())]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store" if _is_private(self._scope) else b"no-cache"))
            message = {**message, "headers": headers}
        try:
            async with asyncio.timeout(self._unread_seconds):
                await self._send(message)
        except TimeoutError:
            self.left = True
            raise ClientLeft from None

    async def refuse(self, refusal: Refused) -> None:
        if self.status is not None:
            return  # too late: the answer has begun
        with suppress(ClientLeft):
            await refusal.response()(self._scope, self._nothing, self.send)

    async def _nothing(self) -> Message:
        return {"type": "http.disconnect"}
