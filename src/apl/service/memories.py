"""The named memories of one home. Each is opened when first asked for, and stays open."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from apl.classifier.session import Session, open_memory
from apl.service.guard import Refused
from apl.service.memory_worker import MemoryWorker
from apl.service.served_model import ServedModel
from apl.service.settings import Settings
from apl.service.telemetry import Metrics
from apl.store import FingerprintMismatch, StoreAway, StoreBusy, delete_memory, list_memories
from apl.store.errors import StoreError
from apl.store.rows import checked_name

THREADS = 4
"""Memories that work at the same time; more wait for a thread, none for another memory."""
FIRST = "default"
"""The memory that is always there."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Listed:
    """A memory of the home, open or not."""

    name: str
    rows: int
    created: float
    usable: bool


class OpenMemories:
    """To be used from one event loop."""

    def __init__(self, settings: Settings, model: ServedModel, metrics: Metrics) -> None:
        self.settings, self.model, self.metrics = settings, model, metrics
        self.fingerprint = model.fingerprint
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="memory")
        self._workers: dict[str, MemoryWorker] = {}
        self._known: dict[str, Listed] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Find the memories that are there, and make the first one if there is none of its name."""
        try:
            found = await self._in_thread(lambda: list_memories(self.settings.memory))
        except StoreAway as error:
            raise away(error) from None
        except StoreError:
            found = []  # a file that does not exist yet; if it is something worse, opening it says so
        for info in found:
            usable = info.fingerprint == self.fingerprint
            self._known[info.name] = Listed(info.name, info.rows, info.created, usable)
            self.metrics.rows.labels(info.name).set(info.rows)
        if FIRST not in self._known:
            await self.make(FIRST)
        elif self._known[FIRST].usable:
            await self.worker(FIRST)
        elif not any(known.usable for known in self._known.values()):
            # The home of another model's memories, as when `apl serve` is tried with one model after the other.
            name = re.sub(r"[^A-Za-z0-9_-]", "-", Path(self.settings.model).name)[:64]
            await self.make(self.fingerprint[:64] if name in self._known else name)

    async def close(self) -> None:
        async with self._changing:
            for worker in list(self._workers.values()):
                await worker.close()
            self._workers.clear()
        self.threads.shutdown()

    def list(self) -> list[Listed]:
        def current(known: Listed) -> Listed:
            worker = self._workers.get(known.name)
            rows = known.rows if worker is None else len(worker.world.memory)
            return Listed(known.name, rows, known.created, known.usable)

        return [current(self._known[name]) for name in sorted(self._known)]

    async def are_there(self) -> bool:
        """Whether the home of the memories answers."""
        try:
            for worker in list(self._workers.values())[:1]:
                await asyncio.wait_for(self._in_thread(worker.session.store.generation), 5)
            return True
        except (StoreError, TimeoutError):
            return False

    async def worker(self, name: str) -> MemoryWorker:
        """An existing memory, open."""
        worker = self._workers.get(name)
        if worker is not None:
            return worker
        self._require(name)
        async with self._changing:
            self._require(name)
            return await self._open(name)

    async def make(self, name: str) -> bool:
        """Make a memory; False if it was there already."""
        valid_name(name)
        async with self._changing:
            if name in self._known:
                return False
            if len(self._known) >= self.settings.limits.memories:
                most = self.settings.limits.memories
                raise Refused(409, "too_many_memories", f"there are {most} memories, and no more are allowed")
            self._known[name] = Listed(name, 0, 0.0, True)
            try:
                worker = await self._open(name)
            except BaseException:
                del self._known[name]
                raise
            self._known[name] = Listed(name, 0, worker.session.store.created, True)
            return True

    async def delete(self, name: str) -> None:
        self._require(name)
        async with self._changing:
            self._require(name)
            worker = self._workers.pop(name, None)
            if worker is not None:
                await worker.close()
            if self.settings.memory not in (None, "ram:"):
                with plain_refusals():
                    await self._in_thread(lambda: delete_memory(self.settings.memory, name))
            del self._known[name]
            self.metrics.forget_memory(name)

    def _require(self, name: str) -> None:
        valid_name(name)
        if name not in self._known:
            raise Refused(404, "no_such_memory", f"there is no memory {name!r}")

    async def _open(self, name: str) -> MemoryWorker:
        if name not in self._workers:
            with plain_refusals():
                session = await self._in_thread(lambda: self._open_memory(name))
            self._workers[name] = MemoryWorker(
                session, self.model, self.threads, self.settings.limits.rows, self.metrics
            )
        return self._workers[name]

    def _open_memory(self, name: str) -> Session:
        parameters = {
            "model": self.settings.model,
            "encoder": None,
            "recall": self.settings.recall,
            "memory": self.settings.memory,
            "name": name,
            "read_only": False,
            "decoder_of": None,
            "max_rows": self.settings.max_rows,
            "max_rows_per_class": None,
            "consolidate": True,
            "sigma": None,
            "k": None,
            "ink": "auto",
        }
        return open_memory(parameters, self.model.learner, self.model.encoder)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)


def away(error: Exception) -> Refused:
    return Refused(503, "memory_away", f"nothing was written: {error}", **{"retry-after": "1"})


def valid_name(name: str) -> str:
    try:
        if not name.strip("."):
            raise ValueError("a memory's name needs more than dots")
        return checked_name(name)
    except ValueError as error:
        raise Refused(422, "invalid", str(error)[:200]) from None


class plain_refusals:
    """Errors of a home of memories, as answers."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, FingerprintMismatch):
            raise Refused(409, "other_model", str(error)) from error
        if isinstance(error, StoreBusy):
            raise Refused(409, "memory_busy", f"the memory is being written by another program: {error}") from error
        if isinstance(error, StoreAway):
            raise away(error) from error
        if isinstance(error, StoreError):
            raise Refused(507, "storage", f"the memory could not be used: {error}") from error
