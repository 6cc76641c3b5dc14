"""One memory at work. Requests that arrive while it is busy wait, and all that wait are served together, in one thread:

their examples are decoded and go through the encoder in one batch; the questions are answered against the memory as it is; the lessons are
learnt in one transaction; then everything else has its turn. None of those that waited together has had an answer yet, so any
order among them is a valid one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from apl.classifier import answers
from apl.classifier.answers import Probabilities
from apl.classifier.embedded import Embedded
from apl.classifier.online import OnlineClassifier
from apl.service.answers import Receipt
from apl.service.bodies import Lesson, Question
from apl.service.curve import CURVE_SETTING, LearningCurve
from apl.service.examples import Batch, Reader
from apl.service.refusal import Refused, busy
from apl.service.settings import Limits
from apl.service.telemetry import Metrics
from apl.store import AlreadyAnswered, StoreUnavailable

Result = TypeVar("Result")


@dataclass
class _Waiting:
    """A request in the queue."""

    done: asyncio.Future[Any]
    outcome: Any = None
    """What the thread found, an exception included; handed to `done` in the event loop."""


@dataclass
class _WithExamples(_Waiting):
    bodies: Sequence[Question] = field(kw_only=True)
    anyway: bool = field(kw_only=True)
    batch: Batch = field(init=False)
    embedded: Embedded = field(init=False)


@dataclass
class _Question(_WithExamples):
    top: int = field(kw_only=True)


@dataclass
class _Lesson(_WithExamples):
    """Examples to be learnt: all of them or none."""

    key: str | None = field(kw_only=True)


@dataclass
class _Errand(_Waiting):
    run: Callable[[OnlineClassifier], Any] = field(kw_only=True)


class ServedMemory:
    """The only user of one classifier. Its coroutines belong to one event loop."""

    def __init__(
        self, name: str, classifier: OnlineClassifier, threads: Executor, limits: Limits, metrics: Metrics
    ) -> None:
        self.name, self.metrics = name, metrics
        self.reader = Reader(classifier, limits.image_pixels)
        self._classifier, self._threads, self._limits = classifier, threads, limits
        self._queue: deque[_Waiting] = deque()
        self._examples_waiting = 0
        self._working: asyncio.Task[None] | None = None
        self._closed = False
        self.deleted = False
        self.changes = 0
        """Grows whenever the memory was changed; `changed` waits for that."""
        self._change = asyncio.Event()
        self.rows = len(classifier)
        self.created: float = classifier.store.created
        self.identity = classifier.store.identity

    # --- in the event loop ----------------------------------------------------------------------------------------

    async def ask(self, bodies: Sequence[Question], top: int, anyway: bool = False) -> list[Probabilities]:
        """`anyway` accepts photographs where drawings are served."""
        job = _Question(_future(), bodies=bodies, anyway=anyway, top=top)
        found: list[Probabilities] = await self._served(job, len(bodies))
        return found

    async def teach(self, bodies: Sequence[Lesson], key: str | None, anyway: bool = False) -> list[Receipt]:
        """`key` names the request: with a key it is learnt once, however often it is sent."""
        hashed = None if key is None else hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        job = _Lesson(_future(), bodies=bodies, anyway=anyway, key=hashed)
        learnt: list[Receipt] = await self._served(job, len(bodies))
        return learnt

    async def run(self, errand: Callable[[OnlineClassifier], Result], changes: bool = False) -> Result:
        """Anything else that needs the memory for itself."""
        found: Result = await self._served(_Errand(_future(), run=errand))
        if changes:
            self._notify()
        return found

    async def changed(self, since: int, seconds: float) -> int:
        """The current `changes`, as soon as it is not `since`; after `seconds` in any case."""
        if self.changes == since and not self.deleted:
            change = self._change
            try:
                async with asyncio.timeout(seconds):
                    await change.wait()
            except TimeoutError:
                pass
        return self.changes

    def end(self) -> None:
        """Report that the memory is deleted, once it is."""
        self.deleted = True
        self._notify()

    async def close(self) -> None:
        """Serve what waits, then let go of the memory."""
        if not self._closed:
            self._closed = True
            while self._working is not None:
                await self._working
            await asyncio.get_running_loop().run_in_executor(self._threads, self._classifier.close)

    async def _served(self, job: _Waiting, examples: int = 0) -> Any:
        if self._closed:
            raise Refused(503, "stopping", "this memory is being closed", **{"retry-after": "1"})
        if examples and self._examples_waiting + examples > self._limits.waiting:
            raise busy("too many examples are waiting: try again later")
        self._examples_waiting += examples
        self._queue.append(job)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        # A client that leaves must not take its lesson back half way.
        return await asyncio.shield(job.done)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                group = list(self._queue)
                self._queue.clear()
                self._examples_waiting = 0
                try:
                    taught = await loop.run_in_executor(self._threads, self._serve, group)
                except Exception as error:
                    taught = False
                    for job in group:
                        job.outcome = error if job.outcome is None else job.outcome
                for job in group:
                    if isinstance(job.outcome, BaseException):
                        job.done.set_exception(job.outcome)
                        job.done.exception()  # the client may have left
                    else:
                        job.done.set_result(job.outcome)
                self.metrics.rows.labels(self.name).set(self.rows)
                if taught:
                    self._notify()
        finally:
            self._working = None

    def _notify(self) -> None:
        self.changes += 1
        self._change.set()
        self._change = asyncio.Event()

    # --- in a thread ----------------------------------------------------------------------------------------------

    def _serve(self, group: list[_Waiting]) -> bool:
        """Fill in every outcome. True if something was learnt."""
        asked = self._embedded([job for job in group if isinstance(job, _Question)])
        self._together(asked, self._answer)
        lessons = self._embedded([job for job in group if isinstance(job, _Lesson)])
        self._together(lessons, self._teach)
        for errand in group:
            if isinstance(errand, _Errand):
                self._together([errand], self._run)
        self.rows = len(self._classifier)
        return any(not isinstance(lesson.outcome, BaseException) for lesson in lessons)

    def _together(self, jobs: list[Any], serve: Callable[[list[Any]], None]) -> None:
        """Serve jobs in one go. If that fails, each is served alone, so that a bad one fails alone."""
        if not jobs:
            return
        try:
            serve(jobs)
        except Exception as error:
            if len(jobs) == 1 or isinstance(error, StoreUnavailable):
                for job in jobs:
                    job.outcome = error
            else:
                for job in jobs:
                    self._together([job], serve)

    def _embedded(self, jobs: list[Any]) -> list[Any]:
        """The jobs whose examples could be read and embedded."""
        for job in jobs:
            self._together([job], self._read)
        jobs = [job for job in jobs if job.outcome is None]
        self._together(jobs, self._embed)
        return [job for job in jobs if job.outcome is None]

    def _read(self, jobs: list[_WithExamples]) -> None:
        for job in jobs:
            job.batch = self.reader.read(job.bodies, job.anyway)

    def _embed(self, jobs: list[_WithExamples]) -> None:
        together = self._classifier.embed([example for job in jobs for example in job.batch.examples])
        self.metrics.batch.observe(len(together))
        start = 0
        for job in jobs:
            job.embedded = together[start : start + len(job.batch)]
            start += len(job.batch)

    def _answer(self, questions: list[_Question]) -> None:
        together = Embedded.joined([question.embedded for question in questions])
        found = self._classifier.predict_proba_many(together, top=max(question.top for question in questions))
        start = 0
        for question in questions:
            question.outcome = found[start : start + len(question.batch)]
            start += len(question.batch)

    def _teach(self, lessons: list[_Lesson]) -> None:
        """Learn every lesson in one transaction. If that fails, none of them was learnt."""
        new: list[_Lesson] = []
        for lesson in lessons:
            repeated = lesson.key is not None and any(lesson.key == other.key for other in new)
            if not repeated and not self._is_answered(lesson):
                new.append(lesson)
        self._learn(self._fitting(new))
        for lesson in lessons:
            if lesson.outcome is None:  # sent twice in this group
                self._is_answered(lesson)

    def _is_answered(self, lesson: _Lesson) -> bool:
        """True if a request of this key was answered before; the lesson then has its outcome."""
        kept = None if lesson.key is None else self._classifier.store.receipt(lesson.key)
        if kept is None:
            return False
        if kept["digest"] == lesson.batch.digest():
            lesson.outcome = [Receipt(**receipt) for receipt in kept["receipts"]]
        else:
            lesson.outcome = Refused(422, "key_reused", "this Idempotency-Key was used for another request")
        return True

    def _fitting(self, lessons: list[_Lesson]) -> list[_Lesson]:
        """The lessons that fit into the memory, should every example need a row; the others are refused."""
        free, fitting = self._limits.rows - len(self._classifier), []
        for lesson in lessons:
            if len(lesson.batch) <= free:
                free -= len(lesson.batch)
                fitting.append(lesson)
            else:
                message = f"a memory holds at most {self._limits.rows:,} rows, and these do not fit"
                lesson.outcome = Refused(409, "memory_full", message)
        return fitting

    def _learn(self, lessons: list[_Lesson]) -> None:
        if not lessons:
            return
        before = len(self._classifier)
        curve = LearningCurve.read(self._classifier.store.setting(CURVE_SETTING))
        batches = [lesson.batch for lesson in lessons]
        try:
            learnt = self._classifier.learn_many(
                Embedded.joined([lesson.embedded for lesson in lessons]),
                [label for batch in batches for label in batch.labels],
                sources=[source for batch in batches for source in batch.sources],
                settings=lambda receipts: curve.after(receipts, before).setting(),
                receipts=lambda receipts: _keyed(lessons, receipts),
            )
        except AlreadyAnswered:
            # Another service on the same memory has answered one of these in the meantime.
            if len(lessons) > 1 or not self._is_answered(lessons[0]):
                raise
            return
        for lesson, receipts in zip(lessons, _split(lessons, learnt), strict=True):
            lesson.outcome = [Receipt.of(receipt) for receipt in receipts]
        for receipt in learnt:
            self.metrics.surprise.labels(self.name).observe(receipt.surprise_nats)
            self.metrics.lessons.labels(self.name, str(receipt.written)).inc()

    def _run(self, errands: list[_Errand]) -> None:
        for errand in errands:
            errand.outcome = errand.run(self._classifier)


def _keyed(lessons: Sequence[_Lesson], learnt: list[answers.Receipt]) -> dict[str, Any]:
    """What is kept of requests with a key, to answer them again."""
    return {
        lesson.key: {"digest": lesson.batch.digest(), "receipts": [Receipt.of(one).model_dump() for one in receipts]}
        for lesson, receipts in zip(lessons, _split(lessons, learnt), strict=True)
        if lesson.key is not None
    }


def _split(lessons: Sequence[_Lesson], learnt: list[answers.Receipt]) -> list[list[answers.Receipt]]:
    """The receipts of each lesson."""
    parts, start = [], 0
    for lesson in lessons:
        parts.append(learnt[start : start + len(lesson.batch)])
        start += len(lesson.batch)
    return parts


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()
