"""The named memories of one home. Each is opened when first asked for, and stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from apl.classifier.new_class import NewClassRule
from apl.classifier.opened import CLASSIFIER_SETTING, Opened, recorded
from apl.learner import Learner
from apl.service.desk import Desk
from apl.service.guard import Refused
from apl.service.settings import Settings
from apl.service.watch import Metrics
from apl.store import FingerprintMismatch, StoreBusy, delete_memory, list_memories, open_store
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


class Memories:
    """To be used from one event loop."""

    def __init__(self, settings: Settings, learner: Learner, metrics: Metrics) -> None:
        self.settings, self.learner, self.metrics = settings, learner, metrics
        self.fingerprint = learner.fingerprint()
        self.rule = NewClassRule.of_model(settings.model)
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="memory")
        self._desks: dict[str, Desk] = {}
        self._known: dict[str, Listed] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Find the memories that are there, and make the first one if there is none of its name."""
        try:
            found = await self._in_thread(lambda: list_memories(self.settings.memory))
        except StoreError:
            found = []  # a file that does not exist yet; if it is something worse, opening it says so
        for info in found:
            usable = info.fingerprint == self.fingerprint
            self._known[info.name] = Listed(info.name, info.rows, info.created, usable)
            self.metrics.rows.labels(info.name).set(info.rows)
        if FIRST not in self._known:
            await self.make(FIRST)
        elif self._known[FIRST].usable:
            await self.desk(FIRST)

    async def close(self) -> None:
        async with self._changing:
            for desk in list(self._desks.values()):
                await desk.close()
            self._desks.clear()
        self.threads.shutdown()

    def list(self) -> list[Listed]:
        def current(known: Listed) -> Listed:
            desk = self._desks.get(known.name)
            rows = known.rows if desk is None else len(desk.world.memory)
            return Listed(known.name, rows, known.created, known.usable)

        return [current(self._known[name]) for name in sorted(self._known)]

    async def desk(self, name: str) -> Desk:
        """An existing memory, open."""
        desk = self._desks.get(name)
        if desk is not None:
            return desk
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
                desk = await self._open(name)
            except BaseException:
                del self._known[name]
                raise
            self._known[name] = Listed(name, 0, desk.opened.store.created, True)
            return True

    async def delete(self, name: str) -> None:
        self._require(name)
        async with self._changing:
            self._require(name)
            desk = self._desks.pop(name, None)
            if desk is not None:
                await desk.close()
            if self.settings.memory not in (None, "ram:"):
                with plain_refusals():
                    await self._in_thread(lambda: delete_memory(self.settings.memory, name))
            del self._known[name]
            self.metrics.forget_memory(name)

    def _require(self, name: str) -> None:
        valid_name(name)
        if name not in self._known:
            raise Refused(404, "no_such_memory", f"there is no memory {name!r}")

    async def _open(self, name: str) -> Desk:
        if name not in self._desks:
            with plain_refusals():
                opened = await self._in_thread(lambda: self._open_store(name))
            self._desks[name] = Desk(opened, self.threads, self.settings.limits.rows, self.metrics)
        return self._desks[name]

    def _open_store(self, name: str) -> Opened:
        settings, learner = self.settings, self.learner
        store = open_store(settings.memory, name, fingerprint=self.fingerprint, width=learner.encoder.width)
        try:
            parameters = {
                "model": settings.model, "decoder_of": None, "max_rows": settings.max_rows, "max_rows_per_class": None,
                "sigma": None, "k": None, "ink": "auto",
            }  # fmt: skip
            store.update_settings({CLASSIFIER_SETTING: recorded(parameters, learner)})
            opened = Opened(learner, self.rule, store)
            opened.adjust(max_rows=settings.max_rows, max_rows_per_class=None, sigma=None, k=None)
            return opened
        except BaseException:
            store.close()
            raise

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)


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
        if isinstance(error, StoreError):
            raise Refused(507, "storage", f"the memory could not be used: {error}") from error
