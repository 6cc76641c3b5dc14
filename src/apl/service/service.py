"""A running service: its settings, its tokens and the named memories. Each is opened when first asked for, and stays open."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from apl.classifier.online import OnlineClassifier
from apl.service.refusal import Refused, invalid
from apl.service.served_memory import ServedMemory
from apl.service.settings import Settings
from apl.service.telemetry import Metrics
from apl.service.tokens import Client, Scope, Tokens
from apl.store import MemoryInfo, StoreError, delete_memory, find_memory, memories_by_name
from apl.store.checks import checked_name

THREADS = 4
"""Memories that work at the same time; others wait for a thread, none for another memory."""
PATIENCE_SECONDS = 5.0
"""For a memory that is asked on the side, as for its gauge."""
FIRST = "default"
"""The memory that is made at the start."""
TAKES = ("drawing", "photo", "text")
Result = TypeVar("Result")


class Service:
    """To be used from one event loop."""

    def __init__(self, settings: Settings, tokens: Tokens | None) -> None:
        self.settings, self.tokens, self.metrics = settings, tokens, Metrics()
        self.under_way, self.stopping = 0, False
        """Requests that are being answered, and whether no more are wanted."""
        self.model = OnlineClassifier(settings.model).open()
        """An empty classifier of the served model, which the memories are siblings of."""
        if self.model.input_kind not in TAKES:
            raise ValueError(
                f"{settings.model} takes neither pictures nor sentences: the service needs a model that does"
            )
        self.fingerprint: str = self.model.store.fingerprint
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="memory")
        self._open: dict[str, ServedMemory] = {}
        self._known: dict[str, MemoryInfo] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Find the memories that are there, and make the first one if there is none of its name."""
        await self._look()
        if FIRST not in self._known:
            await self.make(FIRST)
        elif self._usable(self._known[FIRST]):
            await self.memory(FIRST)
        elif not any(map(self._usable, self._known.values())):
            # All memories here belong to other models, as when `apl serve` is tried with one model after the other.
            name = re.sub(r"[^A-Za-z0-9_-]", "-", Path(self.settings.model).name)[:64]
            await self.make(self.fingerprint[:64] if name in self._known else name)

    async def _look(self) -> None:
        """Notice which memories there are: others may have made some, or deleted them."""
        if self.settings.memory in (None, "ram:"):
            return
        found = await self._in_thread(lambda: memories_by_name(self.settings.memory))
        for name, info in self._known.items():
            if name not in found or found[name].identity != info.identity:
                await self._let_go(name)
        for name in found.keys() - self._known.keys():
            self.metrics.rows.labels(name).set(found[name].rows)
        self._known = found

    async def close(self) -> None:
        async with self._changing:
            for memory in self._open.values():
                await memory.close()
            self._open.clear()
        self._threads.shutdown()

    def allow(self, client: Client, scope: Scope, name: str) -> None:
        """Refuse a name that no memory can have, and a client without this right in the memory that has it now."""
        try:
            if not name.strip("."):
                raise ValueError("a memory's name needs more than dots")
            checked_name(name)
        except ValueError as error:
            raise invalid(str(error)[:200]) from None
        if not client.may(scope, name, self._known[name].identity if name in self._known else None):
            raise Refused(403, "forbidden", f"this token does not have the scope {scope} for memory {name!r}")

    async def names(self) -> list[str]:
        async with self._changing:
            await self._look()
        return sorted(self._known)

    def record(self, client: Client, name: str) -> dict[str, Any]:
        """What a client is told of a memory."""
        self._require(name)
        info, memory = self._known[name], self._open.get(name)
        rows = info.rows if memory is None else memory.rows
        scope = client.scope(name, info.identity)
        return vars(info) | {"rows": rows, "usable": self._usable(info), "scope": scope}

    async def memory(self, name: str) -> ServedMemory:
        """An existing memory, open."""
        if name in self._open and not self._open[name].deleted:
            return self._open[name]
        async with self._changing:
            await self._look()
            self._require(name)
            return await self._opened(name)

    async def make(self, name: str) -> bool:
        """Make a memory; False if it was there already."""
        async with self._changing:
            await self._look()
            if name in self._known:
                return False
            most = self.settings.limits.memories
            if len(self._known) >= most:
                raise Refused(409, "too_many_memories", f"there are {most} memories, and no more are allowed")
            self._known[name] = (await self._opened(name)).info
            return True

    async def delete(self, name: str) -> None:
        async with self._changing:
            self._require(name)
            if name in self._open:
                await self._open[name].close()
            if self.settings.memory not in (None, "ram:"):
                await self._in_thread(lambda: _deleted(self.settings, name))
            await self._let_go(name)
            del self._known[name]

    async def _let_go(self, name: str) -> None:
        """Of a memory that is deleted."""
        memory = self._open.pop(name, None)
        if memory is not None:
            await memory.close()
            memory.end()
        self.metrics.forget_memory(name)

    async def answers(self) -> bool:
        """True if the place of the memories answers."""
        for memory in list(self._open.values())[:1]:
            try:
                await memory.run(lambda classifier: classifier.store.generation(), seconds=PATIENCE_SECONDS)
            except (StoreError, TimeoutError, Refused):
                return False
        return True

    async def measure_drift(self) -> None:
        """Set the gauge of every open memory that answers in time."""
        for memory in list(self._open.values()):
            with suppress(StoreError, Refused, TimeoutError):
                report = await memory.run(lambda classifier: classifier.drift(), seconds=PATIENCE_SECONDS)
                self.metrics.drift.labels(memory.name).set(report.alarm)

    def _usable(self, info: MemoryInfo) -> bool:
        """False if the keys were made by another model."""
        return info.fingerprint == self.fingerprint

    def _require(self, name: str) -> None:
        if name not in self._known:
            raise Refused(404, "no_such_memory", f"there is no memory {name!r}")

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _opened(self, name: str) -> ServedMemory:
        if name not in self._open:
            given = self.settings
            classifier = self.model.sibling(
                memory=given.memory, name=name, recall=given.recall, index=given.index, max_rows=given.max_rows
            )
            await self._in_thread(classifier.open)
            self._open[name] = ServedMemory(name, classifier, self._threads, given.limits, self.metrics)
        return self._open[name]


def _deleted(settings: Settings, name: str) -> None:
    """A memory that somebody else deleted in the meantime is deleted too."""
    if find_memory(settings.memory, name) is not None:
        delete_memory(settings.memory, name, settings.index)
