"""Many HTTP clients in one process, cheap enough that the server is what gets measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

LOST = (OSError, asyncio.IncompleteReadError)
"""A connection that could not be made, or that ended before the answer."""


@dataclass(frozen=True)
class Sent:
    """A request."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self, host: str) -> bytes:
        body = json.dumps(self.body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{more}\r\n"
        )
        return head.encode() + body


Post = Callable[[Sent], Awaitable[tuple[int, bytes]]]
"""Sends a request and waits for status and content of the answer."""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Post]:
    """A connection to a service on this machine, kept open for many requests."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def post(sent: Sent) -> tuple[int, bytes]:
        writer.write(sent.encoded(f"127.0.0.1:{port}"))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
        return int(head[0].split()[1]), await reader.readexactly(length)

    try:
        yield post
    finally:
        writer.close()


async def load(port: int, clients: int, seconds: float, requests: Iterator[Sent]) -> dict[str, float]:
    """Each client sends its next request when it has the answer to the last one, until the time is over."""
    latencies: list[float] = []
    errors, started = 0, time.perf_counter()

    async def client() -> None:
        nonlocal errors
        async with connected(port) as post:
            while time.perf_counter() - started < seconds:
                request, sent = next(requests), time.perf_counter()
                status, _ = await post(request)
                latencies.append(time.perf_counter() - sent)
                errors += status != 200

    await asyncio.gather(*(client() for _ in range(clients)))
    taken, ordered = time.perf_counter() - started, sorted(latencies)
    p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.5, 0.99))
    return {
        "requests": len(ordered),
        "errors": errors,
        "per_second": len(ordered) / taken,
        "p50_ms": p50,
        "p99_ms": p99,
    }
