"""Requests that arrive together go through the encoder together.

While a batch is being embedded, the examples of other requests queue up; the next batch takes all of them, up to
`AT_ONCE`. Nobody waits for a batch to fill: a single request on an idle service is embedded at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.service.guard import Refused
from apl.service.served_model import ServedModel
from apl.service.telemetry import Metrics

AT_ONCE = 64


@dataclass
class _Waiting:
    examples: Sequence[Any]
    done: asyncio.Future[np.ndarray]


class BatchedEncoder:
    """The encoder, shared by all requests. To be used from one event loop."""

    def __init__(self, model: ServedModel, workers: int, most_waiting: int, metrics: Metrics) -> None:
        self.model, self.metrics = model, metrics
        self.most_waiting = most_waiting
        self._queue: deque[_Waiting] = deque()
        self._waiting = 0
        self._idle = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="encoder")
        self._running: set[asyncio.Task[None]] = set()

    async def embed(self, examples: Sequence[Any]) -> Float[np.ndarray, "example embed"]:
        """Examples as the model reads them (`ServedModel.read`)."""
        if self._waiting + len(examples) > self.most_waiting:
            raise Refused(503, "busy", "too many examples are waiting: try again later", **{"retry-after": "1"})
        waiting = _Waiting(examples, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._waiting += len(examples)
        self._start()
        return await waiting.done

    def close(self) -> None:
        self._threads.shutdown()

    def _start(self) -> None:
        if self._idle and self._queue:
            self._idle -= 1
            task = asyncio.create_task(self._work())
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _work(self) -> None:
        try:
            while self._queue:
                batch = self._next_batch()
                joined = [example for waiting in batch for example in waiting.examples]
                self.metrics.batch.observe(len(joined))
                loop = asyncio.get_running_loop()
                try:
                    embedded = await loop.run_in_executor(self._threads, self._embed, joined)
                    parts = np.split(embedded, np.cumsum([len(waiting.examples) for waiting in batch])[:-1])
                    for waiting, part in zip(batch, parts, strict=True):
                        if not waiting.done.done():
                            waiting.done.set_result(part)
                except Exception as error:
                    for waiting in batch:
                        if not waiting.done.done():
                            waiting.done.set_exception(error)
        finally:
            self._idle += 1

    def _next_batch(self) -> list[_Waiting]:
        batch, size = [], 0
        while self._queue and (not batch or size + len(self._queue[0].examples) <= AT_ONCE):
            batch.append(self._queue.popleft())
            size += len(batch[-1].examples)
        self._waiting -= size
        return batch

    def _embed(self, examples: Sequence[Any]) -> np.ndarray:
        return self.model.embed(examples)
