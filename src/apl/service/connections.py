"""Connections that cannot be turned against the service: few enough, with heads that are short and come in time, and
with readers that read.

uvicorn bounds none of these. Where there are too many connections, the one that has been silent longest makes room,
so that somebody who opens many and says nothing keeps nobody out.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from contextlib import suppress

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from apl.service.settings import Limits

ACCEPTED_AT_ONCE = 64
"""Connections that may be taken from the queue before any of them is counted."""
OTHER_FILES = 64
"""File descriptors left for memories, logs and the page."""


def most_connections(limits: Limits) -> int:
    """What the limits allow and what the system does: a service without a free descriptor can answer nobody."""
    try:
        import resource
    except ImportError:  # not on Windows
        return limits.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + ACCEPTED_AT_ONCE + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(8, min(limits.connections, soft - ACCEPTED_AT_ONCE - OTHER_FILES))
    return limits.connections


def bounded_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol of one server: its connections know of one another."""
    return type(
        "Bounded", (BoundedProtocol,), {"limits": limits, "most": most_connections(limits), "silent": OrderedDict()}
    )


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: Limits
    most: int
    silent: OrderedDict[BoundedProtocol, None]
    """Connections on which no request is being answered, the longest silent first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.silent[self] = None
        self._expect_head()
        if len(self.connections) > self.most:
            longest_silent = next(iter(self.silent))
            if longest_silent is self:
                self._refuse(503, "busy", "too many connections: try again later")
            else:
                longest_silent.transport.abort()
                longest_silent._leave()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        self._cancel_write_timer()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self in self.silent:
            self._expect_head()
            self._head_bytes += len(data)
        super().data_received(data)
        if self in self.silent and self._head_bytes > self.limits.head_bytes:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._leave()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if self.transport.is_closing():
            return
        if size > self.limits.head_bytes:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self._head_bytes = 0
            self.silent[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._refuse(408, "too_slow", f"the head of the request took more than {self.limits.head_seconds:g} s")

    def _refuse_head(self) -> None:
        self._refuse(431, "too_large", f"the head of the request must not exceed {self.limits.head_bytes:,} bytes")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer below the application, which has not heard of this request, and hang up."""
        if not self.transport.is_closing():
            body = json.dumps({"error": {"code": code, "message": message}}).encode()
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()
        self._leave()

    def _leave(self) -> None:
        self.silent.pop(self, None)
        self._cancel_head_timer()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
