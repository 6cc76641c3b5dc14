"""Requests that arrive together go through the encoder together.

While a batch is being embedded, the examples of other requests queue up; the next batch takes all of them, up to
`AT_ONCE`. Nobody waits for a batch to fill: a single request on an idle service is embedded at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from apl.learner import Learner
from apl.service.guard import Refused
from apl.service.telemetry import Metrics

AT_ONCE = 64


@dataclass
class _Waiting:
    images: UInt8[np.ndarray, "image 1 side side"]
    done: asyncio.Future[np.ndarray]


class BatchedEncoder:
    """The encoder, shared by all requests. To be used from one event loop."""

    def __init__(self, learner: Learner, workers: int, most_waiting: int, metrics: Metrics) -> None:
        self.learner, self.metrics = learner, metrics
        self.most_waiting = most_waiting
        self._queue: deque[_Waiting] = deque()
        self._waiting = 0
        self._idle = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="encoder")
        self._running: set[asyncio.Task[None]] = set()

    async def embed(self, images: UInt8[np.ndarray, "image 1 side side"]) -> Float[np.ndarray, "image embed"]:
        if self._waiting + len(images) > self.most_waiting:
            raise Refused(503, "busy", "too many examples are waiting: try again later", **{"retry-after": "1"})
        waiting = _Waiting(images, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._waiting += len(images)
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
                joined = np.concatenate([waiting.images for waiting in batch])
                self.metrics.batch.observe(len(joined))
                loop = asyncio.get_running_loop()
                try:
                    embedded = await loop.run_in_executor(self._threads, self._embed, joined)
                    parts = np.split(embedded, np.cumsum([len(waiting.images) for waiting in batch])[:-1])
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
        while self._queue and (not batch or size + len(self._queue[0].images) <= AT_ONCE):
            batch.append(self._queue.popleft())
            size += len(batch[-1].images)
        self._waiting -= size
        return batch

    def _embed(self, images: np.ndarray) -> np.ndarray:
        networks = self.learner.networks
        return networks.array(networks.embed(images))
