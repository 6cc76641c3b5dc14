"""Event streams: changes of a memory for every page that shows it, and an online episode as it happens."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
from starlette.responses import StreamingResponse
from starlette.types import Send

from apl.classifier.online import OnlineClassifier
from apl.data.glyphs import draw_glyphs
from apl.pictures.drawings import to_png
from apl.service.answers import Prediction, finite
from apl.service.refusal import busy
from apl.service.served_memory import ServedMemory

EVENT_STREAM = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
"""A stream without news sends a comment this often, so that a client that has left is noticed."""
SHOWN = 8
"""Classes of the posterior that are sent with each step of an episode."""
SIDE = 56
"""Pixels of an invented character."""


class EventStream(StreamingResponse):
    """Closes its events when it ends, however it ends: they hold a place among the open streams until then."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type=EVENT_STREAM)
        self.events = events

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self.events.aclose()


class Streams:
    """Bounds the number of open streams."""

    def __init__(self, most: int) -> None:
        self.most, self.open = most, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def check(self) -> None:
        if self.open >= self.most:
            raise busy("too many event streams are open: try again in a minute", 10)


def event(name: str, content: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()


async def changes(memory: ServedMemory, streams: Streams, stopping: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """`changed` at the start and after every change, `deleted` at the end of the memory."""
    with streams.one():
        seen = memory.changes
        yield event("changed", {"event": "changed", "rows": memory.rows})
        since = time.monotonic()
        while not stopping() and not memory.deleted:
            # Short waits, so that a stop of the service is noticed.
            now = await memory.changed(seen, 1.0)
            if now != seen and not memory.deleted:
                seen, since = now, time.monotonic()
                yield event("changed", {"event": "changed", "rows": memory.rows})
            elif time.monotonic() - since > HEARTBEAT_SECONDS:
                since = time.monotonic()
                yield b": still here\n\n"
        if memory.deleted:
            yield event("deleted", {"event": "deleted"})


def play(classifier: OnlineClassifier, way: int, drawings: int, seed: int) -> Iterator[dict[str, Any]]:
    """An episode on invented characters: the alphabet, a receipt for each drawing shown, the end."""
    chance = np.random.default_rng(seed)
    glyphs = draw_glyphs(way, drawings, chance, SIDE)
    alphabet = [_picture(glyphs.images[(glyphs.labels == label).argmax(), 0]) for label in range(way)]
    order = chance.permutation(len(glyphs.labels))
    yield {"event": "alphabet", "length": len(order), "images": alphabet}
    for example in order:
        drawing = glyphs.images[example, 0]
        embedded = classifier.embed([classifier.read(drawing, ink="light")])
        posterior = Prediction.of(classifier.predict_proba_one(embedded), SHOWN).model_dump()
        receipt = finite(classifier.learn_one(embedded, int(glyphs.labels[example])))
        shown = {"stored": len(classifier), "image": _picture(drawing)}
        yield {"event": "step", **posterior, **asdict(receipt), **shown}
    yield {"event": "end"}


async def episode_events(
    records: Iterator[dict[str, Any]],
    threads: Executor,
    pause_seconds: float,
    over: Callable[[], bool],
    streams: Streams,
) -> AsyncGenerator[bytes, None]:
    """One record at a time, so that a client that leaves ends the episode."""
    loop = asyncio.get_running_loop()
    with streams.one():
        while not over():
            record = await loop.run_in_executor(threads, next, records, None)
            if record is None:
                return
            yield event(record["event"], record)
            await asyncio.sleep(pause_seconds)


def _picture(image: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(to_png(image)).decode()
