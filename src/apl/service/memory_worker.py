"""One memory at work. Whoever comes while it is busy waits, and all who wait are served together:

first the questions, in one batch, against the memory as it is; then the lessons, one after the other, made durable in
one transaction; then everything else in turn. Nobody among those who waited together has had an answer yet, so any
order among them is a true one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from apl.classifier.images import to_png
from apl.classifier.open_world import OpenWorld
from apl.classifier.session import Session
from apl.service.guard import Refused
from apl.service.history import Answered, History, Retries
from apl.service.requests import Example
from apl.service.responses import answers, explained, taught
from apl.service.telemetry import Metrics
from apl.store import Label, NewRow

UNDO_ROWS = 2000
"""A forgetting of more rows than this cannot be undone: they would have to be kept in RAM."""
UNDO_STEPS = 20
Result = TypeVar("Result")


@dataclass
class _Question:
    embeddings: Float[np.ndarray, "example embed"]
    top: int
    done: asyncio.Future[list[dict[str, Any]]]


@dataclass
class Lesson:
    """Examples to be learnt in one request, all of them or none."""

    embeddings: Float[np.ndarray, "example embed"]
    examples: Sequence[Example]
    retry_key: str | None
    digest: str
    done: asyncio.Future[list[dict[str, Any]]]


@dataclass
class _Errand:
    run: Callable[[], Any]
    done: asyncio.Future[Any]


@dataclass
class _Outcome:
    """How a request ended; told to the event loop once all of a group are done."""

    done: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None


class MemoryWorker:
    """The only user of one memory's `Session`."""

    def __init__(self, session: Session, threads: Executor, most_rows: int, metrics: Metrics) -> None:
        self.session, self.threads, self.most_rows, self.metrics = session, threads, most_rows, metrics
        settings = session.store.settings()
        self.history, self.retries = History.read(settings), Retries(settings, session.world.memory.ids)
        self._forgotten: deque[tuple[str, list[NewRow]]] = deque(maxlen=UNDO_STEPS)
        self._waiting: deque[_Question | Lesson | _Errand] = deque()
        self._working: asyncio.Task[None] | None = None
        self._closed = False
        self._count_rows()

    @property
    def name(self) -> str:
        return self.session.store.name

    @property
    def world(self) -> OpenWorld:
        return self.session.world

    # --- from the event loop ----------------------------------------------------------------------

    async def ask(self, embeddings: Float[np.ndarray, "example embed"], top: int) -> list[dict[str, Any]]:
        return await self._served(_Question(embeddings, top, _future()))

    async def explain(self, embedding: Float[np.ndarray, " embed"], top: int) -> dict[str, Any]:
        return await self.run(lambda: explained(self.world.explain(embedding), top))

    async def teach(
        self,
        embeddings: Float[np.ndarray, "example embed"],
        examples: Sequence[Example],
        retry_key: str | None,
        digest: str,
    ) -> list[dict[str, Any]]:
        return await self._served(Lesson(embeddings, examples, retry_key, digest, _future()))

    async def run(self, errand: Callable[[], Result]) -> Result:
        """Anything else that has to have the memory for itself."""
        return await self._served(_Errand(errand, _future()))

    async def close(self) -> None:
        """Serve those who wait, write what is not yet written, and let go of the memory."""
        if not self._closed:
            self._closed = True
            while self._working is not None:
                await self._working
            await asyncio.get_running_loop().run_in_executor(self.threads, self._close)

    async def _served(self, job: _Question | Lesson | _Errand) -> Any:
        if self._closed:
            raise Refused(503, "stopping", "this memory is being closed", **{"retry-after": "1"})
        self._waiting.append(job)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        # A client that goes away must not take its lesson back half way.
        return await asyncio.shield(job.done)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group = list(self._waiting)
                self._waiting.clear()
                for outcome in await loop.run_in_executor(self.threads, self._serve, group):
                    if outcome.done.done():
                        continue
                    if outcome.error is not None:
                        outcome.done.set_exception(outcome.error)
                        outcome.done.exception()  # nobody may be waiting for it any more
                    else:
                        outcome.done.set_result(outcome.value)
        finally:
            self._working = None

    # --- in a thread ------------------------------------------------------------------------------

    def _serve(self, group: list[_Question | Lesson | _Errand]) -> list[_Outcome]:
        questions = [job for job in group if isinstance(job, _Question)]
        lessons = [job for job in group if isinstance(job, Lesson)]
        outcomes = _together(questions, self._answer) + _together(lessons, self._teach)
        for errand in group:
            if isinstance(errand, _Errand):
                outcomes += _together([errand], lambda jobs: [_Outcome(jobs[0].done, jobs[0].run())])
        self._count_rows()
        return outcomes

    def _answer(self, questions: list[_Question]) -> list[_Outcome]:
        with self.session.alone() as world:
            belief = world.believe(np.concatenate([question.embeddings for question in questions]))
            tops = [question.top for question in questions for _ in range(len(question.embeddings))]
            records = iter(answers(world, belief, tops))
        return [_Outcome(q.done, [next(records) for _ in range(len(q.embeddings))]) for q in questions]

    def _teach(self, lessons: list[Lesson]) -> list[_Outcome]:
        """Stage every lesson, then commit once. If that fails, nothing of any of them has happened."""
        finished: list[_Outcome] = []
        learnt: list[tuple[Lesson, list[dict[str, Any]]]] = []
        repeated: list[Lesson] = []
        keys: dict[str, Answered] = {}
        history = self.history.copy()
        with self.session.alone() as world:
            try:
                for lesson in lessons:
                    if lesson.retry_key in keys or self.retries.find(lesson.retry_key) is not None:
                        repeated.append(lesson)
                    elif len(world.memory) + len(lesson.examples) > self.most_rows:
                        full = Refused(409, "memory_full", f"a memory holds {self.most_rows:,} rows, no more fit here")
                        finished.append(_Outcome(lesson.done, error=full))
                    else:
                        receipts = [
                            _stage(world, *pair, history)
                            for pair in zip(lesson.embeddings, lesson.examples, strict=False)
                        ]
                        learnt.append((lesson, receipts))
                        if lesson.retry_key is not None:
                            keys[lesson.retry_key] = Answered(lesson.digest, receipts)
                staged = [id for id in world.memory.ids if id < 0]
                final: dict[int, int] = {}
                if learnt:
                    settings = {**history.settings(), **self.retries.add(keys, staged)}
                    final = world.commit(settings)
                    self.retries.settle(final)
            except BaseException:
                world.reload()
                raise
        self.history = history
        for lesson, receipts in learnt:
            for receipt in receipts:
                receipt["row"] = final.get(receipt["row"])
                receipt["merged_into"] = final.get(receipt["merged_into"], receipt["merged_into"])
                self.metrics.surprise.labels(self.name).observe(receipt["surprise_nats"])
                self.metrics.lessons.labels(self.name, str(receipt["written"])).inc()
            finished.append(_Outcome(lesson.done, receipts))
        return finished + [self._repeat(lesson) for lesson in repeated]

    def _repeat(self, lesson: Lesson) -> _Outcome:
        answered = self.retries.find(lesson.retry_key)
        if answered is None or answered.digest != lesson.digest:
            other = Refused(422, "key_reused", "this Idempotency-Key was used for another request")
            return _Outcome(lesson.done, error=other)
        return _Outcome(lesson.done, answered.receipts)

    # --- errands: to be given to `run` ------------------------------------------------------------

    def forget(self, label: Label | None, row: int | None, source: str | None) -> dict[str, Any]:
        with self.session.alone() as world:
            ids = [row] if row is not None else world.memory.ids_of(label, source)
            there = set(world.memory.ids)
            ids = [id for id in ids if id in there]
            rows = [self._whole(id) for id in ids] if len(ids) <= UNDO_ROWS else []
            self.write_unsettled()
            gone = world.forget(ids) if source is None else world.forget_source(source)
            if gone.rebuilt:
                # What was merged with others cannot be brought back: the rows are no longer what they were.
                return {"rows": gone, "rebuilt": list(gone.rebuilt), "undo": None}
        if not rows:
            return {"rows": gone, "undo": None}
        undo = secrets.token_hex(8)
        self._forgotten.append((undo, rows))
        return {"rows": gone, "undo": undo}

    def restore(self, undo: str) -> dict[str, Any]:
        found = next((entry for entry in self._forgotten if entry[0] == undo), None)
        if found is None:
            raise Refused(404, "nothing_to_undo", "there is no such forgetting, or it was undone already")
        with self.session.alone() as world:
            self.write_unsettled()
            try:
                for row in found[1]:
                    world.memory.stage(row.key, row)
                ids = list(world.commit().values())
            except BaseException:
                world.reload()
                raise
        self._forgotten.remove(found)
        return {"rows": ids}

    def rename(self, label: Label, to: Label) -> dict[str, Any]:
        with self.session.alone() as world:
            ids = world.memory.ids_of(label)
            if not ids:
                raise Refused(404, "no_such_class", f"there is no class {label!r}")
            if label == to and type(label) is type(to):
                return {"rows": ids, "joined": False}
            joined = world.memory.number(to) is not None
            rows = [self._whole(id) for id in ids]
            self.write_unsettled()
            try:
                new = self.session.store.replace(ids, [replace(row, label=to) for row in rows])
            finally:
                world.reload()
        return {"rows": new, "joined": joined}

    def _whole(self, id: int) -> NewRow:
        """A row with the examples behind it, to be written again."""
        return self.session.store.row(id).as_new(merged=tuple(self.session.store.merged(id)))

    def write_unsettled(self) -> None:
        if settings := self.retries.unsettled():
            self.session.store.update_settings(settings)

    def _close(self) -> None:
        try:
            self.session.store.update_settings({**self.history.settings(), **self.retries.unsettled()})
        finally:
            self.session.store.close()

    def _count_rows(self) -> None:
        self.metrics.rows.labels(self.name).set(len(self.world.memory))


def _stage(
    world: OpenWorld, embedding: Float[np.ndarray, " embed"], example: Example, history: History
) -> dict[str, Any]:
    assert example.label is not None
    receipt = taught(world.learn(embedding, example.label, example.source, lambda: to_png(example.sheet)))
    history.add(receipt, len(world.memory))
    return receipt


def _together(jobs: Sequence[Any], serve: Callable[[Any], list[_Outcome]]) -> list[_Outcome]:
    """Serve jobs, or let all of them know what went wrong."""
    if not jobs:
        return []
    try:
        return serve(jobs)
    except Exception as error:
        return [_Outcome(job.done, error=error) for job in jobs]


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()
