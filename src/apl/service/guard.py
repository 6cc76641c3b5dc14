"""What a request passes before anybody reads it, and what every answer carries.

In order: the host it was sent to, the site it comes from, whose token it shows, how often that client asks, and
the size of its body, counted while it arrives. Written as plain ASGI, because a framework's middleware would have
read the body by then.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from apl.service.settings import Settings, is_loopback
from apl.service.telemetry import Metrics, log
from apl.service.tokens import ANYBODY, Client, Tokens

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
CLIENTS_REMEMBERED = 10_000
"""Buckets of the request rate that are kept; the longest unused goes first."""
DRAINED_BYTES = 64_000_000
"""A body too large is read and thrown away up to here, because a client that is still sending hears no answer."""

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


class Refused(Exception):
    """An answer to be given instead of the one asked for."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: Any, settings: Settings, tokens: Tokens | None, metrics: Metrics) -> None:
        self.app, self.settings, self.tokens, self.metrics = app, settings, tokens, metrics
        self.rate = RequestRate(settings.limits.rate_per_second, settings.limits.rate_burst)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started, answer = time.perf_counter(), _Answer(scope, send)
        client = None
        try:
            client = self._admit(scope)
            body = await self._body(scope, receive, self._most_bytes(scope, client))
            scope.setdefault("state", {})["client"] = client
            await self.app(scope, body, answer.send)
        except Refused as refusal:
            await answer.refuse(refusal)
        except Exception:
            log.exception("failed", extra={"fields": {"request": answer.id, "path": scope["path"]}})
            await answer.refuse(Refused(500, "internal", "something went wrong here; the log tells what"))
        finally:
            self._note(scope, answer, client, time.perf_counter() - started)

    def _admit(self, scope: Message) -> Client:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._check_host(headers.get("host", ""))
        private = scope["path"].startswith(("/v1", "/metrics"))
        allowed_site = self._check_site(headers, private)
        preflight = scope["method"] == "OPTIONS" and allowed_site
        address = (scope.get("client") or ["unknown"])[0]
        if self.tokens is None or not private or preflight:
            client, who = ANYBODY, address
        else:
            client = self._client(headers.get("authorization", ""))
            who = f"token {client.name}" if client else address
        wait = self.rate.wait_seconds(who)
        if wait > 0:
            raise Refused(429, "too_many_requests", "too many requests, slow down", **{"retry-after": f"{wait:.0f}"})
        if client is None:
            raise Refused(
                401,
                "unauthorized",
                "this service needs a token: Authorization: Bearer …",
                **{"www-authenticate": "Bearer"},
            )
        return client

    def _check_host(self, header: str) -> None:
        """On the loopback interface a foreign name means that a page elsewhere had its name point here."""
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

    def _check_site(self, headers: dict[str, str], private: bool) -> bool:
        """Refuse what another site's page sends; True if it is a site that was allowed."""
        origin = headers.get("origin")
        if origin is not None:
            if origin in self.settings.allowed_origins:
                return True
            try:
                own = urlsplit(origin).netloc == headers.get("host", "") != ""
            except ValueError:
                own = False
            if not own:
                raise Refused(403, "foreign_origin", "pages of other sites may not call this service")
        elif private and headers.get("sec-fetch-site", "none") in ("cross-site", "same-site"):
            raise Refused(403, "foreign_origin", "pages of other sites may not call this service")
        return False

    def _client(self, header: str) -> Client | None:
        kind, _, token = header.partition(" ")
        assert self.tokens is not None
        return self.tokens.client(token.strip()) if kind.lower() == "bearer" else None

    def _most_bytes(self, scope: Message, client: Client) -> int:
        """Only those who may import a memory may send one."""
        match scope["path"].split("/"):
            case ["", "v1", "memories", name, "import"] if client.may("admin", name):
                return self.settings.limits.import_bytes
        return self.settings.limits.body_bytes

    async def _body(self, scope: Message, receive: Receive, most: int) -> Receive:
        """The whole body, if it is small enough and arrives in time, to be received again by the application."""
        limits = self.settings.limits
        too_large = Refused(413, "too_large", f"the body must not exceed {most:,} bytes", connection="close")
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > max(most, DRAINED_BYTES):
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return _given(message)
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= most:
                        parts.append(part)
                    elif size > max(most, DRAINED_BYTES):
                        raise too_large
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refused(
                408, "too_slow", f"the body took more than {limits.body_seconds:g} s", connection="close"
            ) from None
        if size > most:
            raise too_large
        return _given({"type": "http.request", "body": b"".join(parts), "more_body": False}, receive)

    def _note(self, scope: Message, answer: _Answer, client: Client | None, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        status = answer.status or 499
        self.metrics.requests.labels(scope["method"] if route != "other" else "other", route, str(status)).inc()
        self.metrics.latency.labels(route).observe(seconds)
        fields = {
            "request": answer.id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "ms": round(1000 * seconds, 2),
            "client": client.name if client else None,
            "address": (scope.get("client") or ["unknown"])[0],
        }
        log.info("request", extra={"fields": fields})


class RequestRate:
    """A bucket of requests per client, refilled steadily."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second, self.burst = per_second, max(1.0, burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, who: str) -> float:
        """0 if the client may go on, and then one request is taken; else how long until it may."""
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


class _Answer:
    """Adds the headers every answer carries, and remembers the status."""

    def __init__(self, scope: Message, send: Send) -> None:
        self._send, self.status = send, None
        self.id = uuid.uuid4().hex[:16]
        self._private = scope["path"].startswith(("/v1", "/metrics"))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), *HEADERS, (b"x-request-id", self.id.encode())]
            if self._private and not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, refusal: Refused) -> None:
        if self.status is not None:
            return
        body = json.dumps({"error": {"code": refusal.code, "message": refusal.message}}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})


def _given(first: Message, then: Receive | None = None) -> Receive:
    """A `receive` that gives this message, and after it what the server has to say (that the client has gone)."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given and then is not None:
            return await then()
        given = True
        return first

    return receive
