"""Changes of a memory as an event stream, for every page that shows it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from apl.service.refusal import busy
from apl.service.served_memory import ServedMemory

EVENT_STREAM = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
"""A stream without news sends a comment this often, so that a client that has left is noticed."""


class EventStream(StreamingResponse):
    """One of a bounded number of open streams."""

    opened = 0

    def __init__(self, events: AsyncGenerator[bytes, None], most: int) -> None:
        if EventStream.opened >= most:
            raise busy("too many event streams are open: try again in a minute", 10)
        super().__init__(events, media_type=EVENT_STREAM)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        EventStream.opened += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            EventStream.opened -= 1


async def changes(memory: ServedMemory, stopping: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """`changed` at the start and after every change, `deleted` at the end of the memory."""
    seen, since = -1, time.monotonic()
    while not stopping() and not memory.deleted:
        if memory.changes != seen:
            seen, since = memory.changes, time.monotonic()
            yield _event("changed", rows=memory.rows)
        elif time.monotonic() - since > HEARTBEAT_SECONDS:
            since = time.monotonic()
            yield b": still here\n\n"
        # Short waits, so that a stop of the service is noticed.
        await memory.changed(seen, 1.0)
    if memory.deleted:
        yield _event("deleted")


def _event(name: str, **content: int) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'event': name, **content})}\n\n".encode()
