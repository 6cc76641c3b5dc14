"""Checks before a request reaches the application: host, site, token, rate, and the size and time of its body.

Plain ASGI: a framework's middleware would have read the body by then. What comes before the request, heads, trailers and silent
connections, is bounded by the server (`server.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from apl.service.refusal import Refused, busy, invalid
from apl.service.service import Service
from apl.service.settings import ARCHIVE, is_loopback
from apl.service.telemetry import log
from apl.service.tokens import ANYBODY, Client
from apl.store.checks import has_more_values

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
DRAINED_BYTES = 64_000_000
"""A body too large is read and dropped up to here, because a client that is still sending does not read an answer."""
MOST_PARTS = 20_000
"""Values in a JSON body, counted before it is parsed: a megabyte of empty lists takes a second to become objects."""
PART_BYTES = 65_536
"""Answers are handed to the server in parts, each once the client has read most of those before."""
CLIENT_LEFT = 499
"""Logged when a client left before its answer."""
TROUBLE_LINES_PER_SECOND = 5.0
"""Of refused requests, per status: a hostile client must not fill the disk with log lines. Metrics count them all."""
CLIENTS_REMEMBERED = 10_000
"""The client that has not asked for longest is forgotten first."""

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
    """The client went away before its request was complete."""


class AnswerRefused(Exception):
    """There is no room for an answer. The application must not take it for a refusal of its own."""


class RequestRate:
    """A bucket of requests per client, refilled steadily; a full one holds those of two seconds."""

    def __init__(self, per_second: float) -> None:
        self.per_second, self.burst = per_second, max(1.0, 2 * per_second)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, who: str) -> float:
        """0 if the client may go on, and then one request is taken; else the time until it may."""
        if self.per_second <= 0:
            return 0.0
        now = time.monotonic()
        left, since = self._buckets.pop(who, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.per_second)
        allowed = left >= 1
        self._buckets[who] = (left - allowed, now)
        if len(self._buckets) > CLIENTS_REMEMBERED:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else max(1.0, (1 - left) / self.per_second)


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service, self.settings = app, service, service.settings
        self.rate, self.lines = RequestRate(self.settings.rate_per_second), RequestRate(TROUBLE_LINES_PER_SECOND)
        self.held_bytes = 0
        """Bodies and answers in RAM."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = _Request(self, scope, receive, send)
        self.service.under_way += 1
        try:
            if self.service.stopping and request.private:
                raise Refused(503, "stopping", "the service is stopping", connection="close", **{"retry-after": "1"})
            client = request.client = self._admit(request)
            scope.setdefault("state", {})["client"] = client
            if request.private:
                await request.read_body(self._most_bytes(scope["path"], client))
            await self.app(scope, request.receive, request.send)
        except ClientLeft:
            # Without an answer the server would say 500 to a client that is still there, after a broken chunk.
            await request.refuse(Refused(400, "incomplete", "the body is not complete", connection="close"))
            request.status = CLIENT_LEFT
        except Refused as refusal:
            await request.refuse(refusal)
        except AnswerRefused as error:
            await request.refuse(error.args[0])
        except Exception:
            if not self.lines.wait_seconds("failed"):
                log.exception("failed", extra={"fields": {"request": request.id, "path": scope["path"]}})
            await request.refuse(Refused(500, "internal", "something went wrong; the log of the service says what"))
        finally:
            self.service.under_way -= 1
            self.held_bytes -= request.held
            self._note(request)

    def _admit(self, request: _Request) -> Client:
        """The client, if host, site, rate and token allow the request."""
        self._check_host(request.header("host"))
        request.check_site()
        who = request.address
        client: Client | None = ANYBODY
        if self.service.tokens is not None and request.private:
            kind, _, token = request.header("authorization").partition(" ")
            client = self.service.tokens.client(token.strip()) if kind.lower() == "bearer" else None
            # Guests of the same link share a token.
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
        loopback, allowed = is_loopback(self.settings.host), self.settings.allowed_hosts
        if not loopback and not allowed:
            return
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            name = ""
        if name not in allowed and not (loopback and name in LOOPBACK_NAMES | {self.settings.host}):
            raise Refused(421, "unknown_host", "this service does not answer under that host name: see --allow-host")

    def _most_bytes(self, path: str, client: Client) -> int:
        """Only clients that may import a memory may send one."""
        limits = self.settings.limits
        match path.split("/"):
            case ["", "v1", "memories", name, "import"] if client.may("admin", name, client.identity.get(name)):
                return limits.import_bytes
            case ["", "v1", "memories", name, "suggest"] if client.may("read", name, client.identity.get(name)):
                return limits.pool_bytes
        return limits.body_bytes

    def _note(self, request: _Request) -> None:
        scope, status, seconds = request.scope, request.status, time.perf_counter() - request.started
        route = getattr(scope.get("route"), "path", "other")
        metrics, method = self.service.metrics, scope["method"]
        metrics.requests.labels(method if route != "other" else "other", route, str(status)).inc()
        metrics.latency.labels(route).observe(seconds)
        if status >= 400 and self.lines.wait_seconds(str(status)):
            return
        fields = {
            "request": request.id,
            "method": method,
            "path": scope["path"][:200],
            "status": status,
            "ms": round(1000 * seconds, 2),
            "client": request.client.name if request.client else None,
            "address": request.address,
        }
        log.info("request", extra={"fields": fields})


class _Request:
    """A request whose body is read whole, and an answer with the headers that every answer has."""

    def __init__(self, guard: Guard, scope: Message, receive: Receive, send: Send) -> None:
        self.guard, self.scope, self._receive, self._send = guard, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.private: bool = scope["path"].startswith(("/v1", "/metrics"))
        """Other paths need no token, and their bodies are never read."""
        self.id, self.started = uuid.uuid4().hex[:16], time.perf_counter()
        self.client: Client | None = None
        self.status = CLIENT_LEFT
        """Until an answer begins."""
        self.held = 0
        self._content: bytes | None = b""

    @property
    def address(self) -> str:
        return str((self.scope.get("client") or ["unknown"])[0])

    def header(self, name: str) -> str:
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def check_site(self) -> None:
        """Refuse requests from pages of other sites."""
        if b"origin" in self.headers:
            site = self.header("origin").partition("://")[2]
            foreign = not site or site != self.header("host")
        else:
            foreign = self.private and self.header("sec-fetch-site") in ("cross-site", "same-site")
        if foreign:
            raise Refused(403, "foreign_origin", "pages of other sites may not call this service")

    async def read_body(self, most: int) -> None:
        seconds = self.guard.settings.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                self._content = await self._whole_body(most)
        except TimeoutError:
            raise Refused(408, "too_slow", f"the body took more than {seconds:g} s", connection="close") from None
        if not self._content:
            return
        kind = ARCHIVE if self.scope["path"].endswith("/import") else "application/json"
        if self.header("content-type").partition(";")[0].strip().lower() != kind:
            raise invalid(f"the body must be sent as Content-Type: {kind}")
        if kind != ARCHIVE and has_more_values(self._content, MOST_PARTS):
            raise invalid(f"the body has more than {MOST_PARTS:,} parts: no request needs that")

    async def _whole_body(self, most: int) -> bytes:
        too_large = Refused(413, "too_large", f"the body must not exceed {most:,} bytes", connection="close")
        declared = self.header("content-length")
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
                self._hold(len(part))
                parts.append(part)
        if size > most:
            raise too_large
        return b"".join(parts)

    def _hold(self, size: int) -> None:
        if self.guard.held_bytes + size > self.guard.settings.limits.bodies_bytes:
            raise busy("too many large requests at once: try again later")
        self.guard.held_bytes += size
        self.held += size

    async def receive(self) -> Message:
        """The body in one message; after it, what the server has to say (that the client has left)."""
        if self._content is None:
            return await self._receive()
        message = {"type": "http.request", "body": self._content, "more_body": False}
        self._content = None
        return message

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            await self._send_body(message)
            return
        size = int(dict(message["headers"]).get(b"content-length", 0))
        if size > PART_BYTES:
            try:
                self._hold(size)
            except Refused as refusal:
                raise AnswerRefused(refusal) from None
        headers = [*message["headers"], *HEADERS, (b"x-request-id", self.id.encode())]
        headers.append((b"cache-control", b"no-store" if self.private else b"no-cache"))
        self.status = message["status"]
        await self._send({**message, "headers": headers})

    async def _send_body(self, message: Message) -> None:
        """In parts: a client that does not read its answer is given up after a while."""
        body, more = message.get("body", b""), message.get("more_body", False)
        for start in range(0, len(body) or 1, PART_BYTES):
            end = start + PART_BYTES
            part = {**message, "body": body[start:end], "more_body": more or end < len(body)}
            try:
                async with asyncio.timeout(self.guard.settings.limits.body_seconds):
                    await self._send(part)
            except TimeoutError:
                raise ClientLeft from None

    async def refuse(self, refusal: Refused) -> None:
        if self.status == CLIENT_LEFT:  # else the answer has begun
            await refusal.response()(self.scope, self.receive, self.send)
