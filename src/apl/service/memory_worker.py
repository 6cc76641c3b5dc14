"""One memory at work. Whoever comes while it is busy waits, and all who wait are served together:

first the questions, in one batch, against the memory as it is; then the lessons, one after the other, made durable in
one transaction; then everything else in turn. Nobody among those who waited together has had an answer yet, so any
order among them is a true one.

From a verb to its row: `routes.learn` has the pictures of a request embedded with those of others (`encoding`);
`teach` puts them in the queue; `_work` takes all that wait into a thread; `_teach` lets the open world learn each
example, which stages a row under its final id, and commits all of them with their receipts. Only then does anybody hear
of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from apl.classifier.answers import Receipt
from apl.classifier.open_world import OpenWorld
from apl.classifier.session import Session, still_there
from apl.service.corrections import Corrections
from apl.service.curve import LearningCurve
from apl.service.guard import Refused
from apl.service.idempotency import AnsweredRequest, hash_key
from apl.service.requests import Example
from apl.service.responses import answers, explained, taught
from apl.service.served_model import ServedModel
from apl.service.telemetry import Metrics
from apl.store import AlreadyAnswered

Result = TypeVar("Result")


@dataclass
class _Question:
    embeddings: Float[np.ndarray, "example embed"]
    top: int
    done: asyncio.Future[list[dict[str, Any]]]


@dataclass
class _WaitingLesson:
    """Examples to be learnt in one request, all of them or none."""

    embeddings: Float[np.ndarray, "example embed"]
    examples: Sequence[Example]
    key: str | None
    digest: str
    done: asyncio.Future[list[dict[str, Any]]]


@dataclass
class _Errand:
    run: Callable[[], Any]
    done: asyncio.Future[Any]


_Job = _Question | _WaitingLesson | _Errand


@dataclass
class _Outcome:
    """How a request ended; told to the event loop once all of a group are done."""

    done: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None


class MemoryWorker:
    """The only user of one memory's `Session`."""

    def __init__(
        self, session: Session, model: ServedModel, threads: Executor, most_rows: int, metrics: Metrics
    ) -> None:
        self.session, self.model, self.threads, self.metrics = session, model, threads, metrics
        self.most_rows = most_rows
        self.curve = LearningCurve.read(session.store.settings())
        self.corrections = Corrections(session)
        self._waiting: deque[_Job] = deque()
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
        return await self.run(lambda: self._explained(embedding, top))

    def _explained(self, embedding: Float[np.ndarray, " embed"], top: int) -> dict[str, Any]:
        """With the sentences of the neighbours, where sentences are taken; pictures are fetched row by row."""
        explanation = self.world.explain(embedding)
        texts = None
        if self.model.takes == "text":
            kept = (self.session.store.payload(neighbour.row) for neighbour in explanation.neighbours)
            texts = ["" if payload is None else payload.decode(errors="replace") for payload in kept]
        return {**explained(explanation, top), "texts": texts}

    async def teach(
        self, embeddings: Float[np.ndarray, "example embed"], examples: Sequence[Example], key: str | None, digest: str
    ) -> list[dict[str, Any]]:
        hashed = None if key is None else hash_key(key)
        return await self._served(_WaitingLesson(embeddings, examples, hashed, digest, _future()))

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

    async def _served(self, job: _Job) -> Any:
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

    def _serve(self, group: list[_Job]) -> list[_Outcome]:
        questions = [job for job in group if isinstance(job, _Question)]
        lessons = [job for job in group if isinstance(job, _WaitingLesson)]
        outcomes = _together(questions, self._answer) + _together(lessons, self._teach)
        for errand in group:
            if isinstance(errand, _Errand):
                outcomes += _together([errand], lambda jobs: [_Outcome(jobs[0].done, jobs[0].run())])
        self._count_rows()
        return outcomes

    def _answer(self, questions: list[_Question]) -> list[_Outcome]:
        with self.session.alone(asking=True) as world:
            belief = world.ask(np.concatenate([question.embeddings for question in questions]))
            tops = [question.top for question in questions for _ in range(len(question.embeddings))]
            records = iter(answers(world, belief, tops))
        return [_Outcome(q.done, [next(records) for _ in range(len(q.embeddings))]) for q in questions]

    def _teach(self, lessons: list[_WaitingLesson]) -> list[_Outcome]:
        """Learn every lesson, then commit once. If that fails, nothing of any of them has happened."""
        refused: list[_Outcome] = []
        repeated: list[_WaitingLesson] = []
        learnt: list[tuple[_WaitingLesson, list[Receipt]]] = []
        curve = self.curve
        with self.session.alone() as world:
            try:
                for lesson in lessons:
                    if self._is_repeated(lesson, learnt):
                        repeated.append(lesson)
                    elif len(world.memory) + len(lesson.examples) > self.most_rows:
                        full = Refused(409, "memory_full", f"a memory holds {self.most_rows:,} rows, no more fit here")
                        refused.append(_Outcome(lesson.done, error=full))
                    else:
                        receipts = []
                        for embedding, example in zip(lesson.embeddings, lesson.examples, strict=True):
                            kept = partial(self.model.payload, example.content)
                            receipts.append(world.learn(embedding, example.label, example.source, kept))
                            curve = curve.after(receipts[-1], len(world.memory))
                        learnt.append((lesson, receipts))
                staged = world.memory.staged
                learnt = [(lesson, [still_there(one, staged) for one in receipts]) for lesson, receipts in learnt]
                keyed = {
                    lesson.key: vars(AnsweredRequest(lesson.digest, [taught(one) for one in receipts]))
                    for lesson, receipts in learnt
                    if lesson.key is not None
                }
                world.commit(curve.settings() if learnt else None, keyed)
            except AlreadyAnswered:
                # Another service on the same memory has had one of these requests in the meantime.
                world.reload()
                return self._teach(lessons)
            except BaseException:
                world.reload()
                raise
        self.curve = curve
        self._count_lessons(receipt for _, receipts in learnt for receipt in receipts)
        answered = [_Outcome(lesson.done, [taught(one) for one in receipts]) for lesson, receipts in learnt]
        return refused + answered + [self._repeat(lesson) for lesson in repeated]

    def _is_repeated(self, lesson: _WaitingLesson, learnt: list[tuple[_WaitingLesson, list[Receipt]]]) -> bool:
        if lesson.key is None:
            return False
        return any(lesson.key == other.key for other, _ in learnt) or self.session.store.receipt(lesson.key) is not None

    def _repeat(self, lesson: _WaitingLesson) -> _Outcome:
        assert lesson.key is not None
        try:
            answered = AnsweredRequest(**self.session.store.receipt(lesson.key))
            return _Outcome(lesson.done, answered.again(lesson.digest))
        except Refused as refusal:
            return _Outcome(lesson.done, error=refusal)

    def _close(self) -> None:
        try:
            self.session.store.update_settings(self.curve.settings())
        finally:
            self.session.store.close()

    def _count_lessons(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            self.metrics.surprise.labels(self.name).observe(receipt.surprise_nats)
            self.metrics.lessons.labels(self.name, str(receipt.written)).inc()

    def _count_rows(self) -> None:
        self.metrics.rows.labels(self.name).set(len(self.world.memory))


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
