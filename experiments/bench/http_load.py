"""Many HTTP clients in one process, cheap enough that the server is what gets measured.

Each client keeps one connection and sends its next request when it has the answer to the last one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sent:
    """A request as it goes over the wire, and whatever its sender wants to remember of it."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    note: Any = None

    def encoded(self, host: str) -> bytes:
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(self.body)}\r\n{more}\r\n"
        )
        return head.encode() + self.body


@dataclass
class Load:
    """What came of it."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answered: list[tuple[Sent, Any]] = field(default_factory=list)
    """Requests with their answers, if they were to be kept."""

    def summary(self) -> dict[str, float]:
        ordered = sorted(self.latencies)

        def quantile(q: float) -> float:
            return 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")

        return {
            "requests": len(ordered),
            "errors": len(self.errors),
            "per_second": len(ordered) / self.seconds,
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
        }


async def load(
    port: int,
    clients: int,
    seconds: float,
    requests: Iterator[Sent],
    *,
    keep: bool = False,
    answered: Callable[[Load], None] = lambda _: None,
) -> Load:
    """Send requests until the time is over or the server is gone (no error). `answered` hears of each answer."""
    result, started = Load(), time.perf_counter()

    async def client() -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        try:
            while time.perf_counter() - started < seconds:
                request = next(requests)
                sent = time.perf_counter()
                writer.write(request.encoded(f"127.0.0.1:{port}"))
                status, body = await _answer(reader)
                result.latencies.append(time.perf_counter() - sent)
                if status != 200:
                    result.errors.append(f"{status} {body[:200]!r}")
                elif keep:
                    result.answered.append((request, json.loads(body)))
                answered(result)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    result.seconds = time.perf_counter() - started
    return result


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
    return int(head[0].split()[1]), await reader.readexactly(length)


def run(work: Awaitable[Load]) -> Load:
    async def main() -> Load:
        return await work

    return asyncio.run(main())
