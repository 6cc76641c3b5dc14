"""One memory at work. Requests that arrive while it is busy wait, and all that wait are served together, in one thread:

their examples are decoded and go through the encoder in one batch; the questions are answered against the memory as it is; the
examples to learn are learnt in one transaction; then everything else has its turn. None of those that waited together has had an
answer yet, so any order among them is a valid one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from apl.classifier.answers import Receipt
from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from apl.service.answers import Prediction, finite
from apl.service.bodies import Lesson, Question, read_examples
from apl.service.curve import CURVE_SETTING, Curve
from apl.service.refusal import Refused, busy, invalid
from apl.service.settings import Limits
from apl.service.telemetry import Metrics
from apl.store import AlreadyAnswered, NoSuchMemory, StoreError, StoreUnavailable

LOOK_SECONDS = 2.0
"""How often a memory that other services may write is looked at while pages follow it."""
RECEIPTS = TypeAdapter(list[Receipt])
Result = TypeVar("Result")


@dataclass(kw_only=True)
class Job(Generic[Result]):
    """A request that waits for its memory."""

    bodies: Sequence[Question] = ()
    changes: bool = False
    done: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    outcome: Result | BaseException | None = None
    """What the thread found; handed to `done` in the event loop."""
    examples: list[Examples] = field(init=False)
    embedded: Examples = field(init=False)

    @property
    def failed(self) -> bool:
        return isinstance(self.outcome, BaseException)


@dataclass(kw_only=True)
class AskJob(Job[list[Prediction]]):
    top: int
    new_above: float | None
    false_alarms: float | None


@dataclass(kw_only=True)
class TeachJob(Job[list[Receipt]]):
    """Examples to be learnt: all of them or none."""

    bodies: Sequence[Lesson]
    changes: bool = True
    key: str | None
    """Names the request: with a key it is learnt once, however often it is sent."""

    def digest(self) -> str:
        """Equal for requests that say the same."""
        return hashlib.sha256(repr(self.bodies).encode()).hexdigest()


@dataclass(kw_only=True)
class Errand(Job[Result]):
    run: Callable[[OnlineClassifier], Result]


JobKind = TypeVar("JobKind", bound=Job[Any])


def parts_of(jobs: Sequence[JobKind]) -> Iterator[tuple[JobKind, slice]]:
    """Each job, and the place of its examples among those of all."""
    start = 0
    for job in jobs:
        yield job, slice(start, start + len(job.bodies))
        start += len(job.bodies)


class ServedMemory:
    """The only user of one classifier. Its coroutines belong to one event loop."""

    def __init__(
        self, name: str, classifier: OnlineClassifier, threads: Executor, limits: Limits, metrics: Metrics
    ) -> None:
        self.name, self.metrics = name, metrics
        self._classifier, self._threads, self._limits = classifier, threads, limits
        self._queue: list[Job[Any]] = []
        self._working: asyncio.Task[None] | None = None
        self._closed = False
        self.deleted = False
        self.changes = 0
        """Grows whenever the memory was changed; `changed` waits for that."""
        self._change = asyncio.Event()
        self._looked_at = (time.monotonic(), classifier.store.generation())
        self.rows = len(classifier)
        self.info = classifier.store.info

    # --- in the event loop ----------------------------------------------------------------------------------------

    async def ask(
        self, bodies: Sequence[Question], top: int, new_above: float | None, false_alarms: float | None
    ) -> list[Prediction]:
        if new_above is not None and false_alarms is not None:
            raise invalid("give new_above or false_alarms, not both")
        return await self._served(AskJob(bodies=bodies, top=top, new_above=new_above, false_alarms=false_alarms))

    async def teach(self, bodies: Sequence[Lesson], key: str | None) -> list[Receipt]:
        hashed = None if key is None else hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return await self._served(TeachJob(bodies=bodies, key=hashed))

    async def examine(self, work: Callable[[OnlineClassifier, Examples], Result], bodies: Sequence[Question]) -> Result:
        """Any other verb that takes examples and changes nothing."""
        job: Errand[Result] = Errand(bodies=bodies, run=lambda classifier: work(classifier, job.embedded))
        return await self._served(job)

    async def run(
        self, work: Callable[[OnlineClassifier], Result], changes: bool = False, seconds: float | None = None
    ) -> Result:
        """Anything else that needs the memory for itself. After `seconds` it is not waited for any longer."""
        return await asyncio.wait_for(self._served(Errand(run=work, changes=changes)), seconds)

    async def changed(self, since: int, seconds: float) -> int:
        """The current `changes`, as soon as it is not `since`; after `seconds` in any case."""
        if self.changes == since and not self.deleted:
            try:
                await asyncio.wait_for(self._change.wait(), seconds)
            except TimeoutError:
                await self._look()
        return self.changes

    async def _look(self) -> None:
        """Notice what other services have written."""
        now, (before, generation) = time.monotonic(), self._looked_at
        if not self._closed and now - before >= LOOK_SECONDS and self._classifier.store.shared:
            self._looked_at = now, generation
            with suppress(StoreError, Refused):  # the next look finds out
                found = await self.run(lambda classifier: classifier.store.generation())
                if found != generation:
                    self._looked_at = now, found
                    await self.run(lambda classifier: classifier.counts(), changes=True)

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

    async def _served(self, job: Job[Result]) -> Result:
        if self._closed:
            raise Refused(503, "stopping", "this memory is being closed", **{"retry-after": "1"})
        if job.bodies and sum(len(other.bodies) for other in (*self._queue, job)) > self._limits.waiting:
            raise busy("too many examples are waiting: try again later")
        self._queue.append(job)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        # A client that leaves must not take its lesson back half way.
        return await asyncio.shield(job.done)

    async def _work(self) -> None:
        try:
            while self._queue:
                group, self._queue = self._queue, []
                try:
                    await asyncio.get_running_loop().run_in_executor(self._threads, self._serve, group)
                except Exception as error:
                    for job in group:
                        job.outcome = error if job.outcome is None else job.outcome
                for job in group:
                    if isinstance(job.outcome, BaseException):
                        job.done.set_exception(job.outcome)
                        job.done.exception()  # the client may have left
                        if isinstance(job.outcome, NoSuchMemory):
                            self.end()
                    else:
                        job.done.set_result(job.outcome)
                self.metrics.rows.labels(self.name).set(self.rows)
                if any(job.changes and not job.failed for job in group):
                    self._notify()
        finally:
            self._working = None

    def _notify(self) -> None:
        self.changes += 1
        self._change.set()
        self._change = asyncio.Event()

    # --- in a thread ----------------------------------------------------------------------------------------------

    def _serve(self, group: list[Job[Any]]) -> None:
        """Fill in every outcome."""
        for job in group:
            self._together([job], self._read)
        self._together([job for job in group if job.bodies], self._embed)
        self._together([job for job in group if isinstance(job, AskJob)], self._answer)
        self._together([job for job in group if isinstance(job, TeachJob)], self._teach)
        for job in group:
            if isinstance(job, Errand):
                self._together([job], self._run)
        self.rows = len(self._classifier)

    def _together(self, jobs: list[Any], serve: Callable[[list[Any]], None]) -> None:
        """Serve those that have not failed before in one go. If that fails, each is served alone, so that a bad one fails alone."""
        waiting = [job for job in jobs if not job.failed]
        try:
            if waiting:
                serve(waiting)
        except Exception as error:
            if len(waiting) == 1 or isinstance(error, StoreUnavailable):
                for job in waiting:
                    job.outcome = error
            else:
                for job in waiting:
                    self._together([job], serve)

    def _read(self, jobs: list[Job[Any]]) -> None:
        for job in jobs:
            job.examples = read_examples(self._classifier, job.bodies, self._limits.image_pixels)

    def _embed(self, jobs: list[Job[Any]]) -> None:
        together = self._classifier.embed([example for job in jobs for example in job.examples])
        for job, part in parts_of(jobs):
            job.embedded = together[part]

    def _answer(self, questions: list[AskJob]) -> None:
        together = Examples.joined([question.embedded for question in questions])
        found = self._classifier.predict_proba_many(together, top=max(question.top for question in questions))
        for question, part in parts_of(questions):
            line = question.new_above
            if question.false_alarms is not None and len(self._classifier):
                line = self._classifier.new_threshold(question.false_alarms)
            question.outcome = [Prediction.of(one, question.top, line) for one in found[part]]

    def _teach(self, lessons: list[TeachJob]) -> None:
        """Learn every lesson in one transaction. If that fails, none of them was learnt."""
        new = [lesson for lesson in lessons if not self._is_answered(lesson)]
        keys = [lesson.key for lesson in new if lesson.key is not None]
        if len(set(keys)) < len(keys):
            raise AlreadyAnswered("a request was sent twice at once")  # so each has its turn
        if not new:
            return
        before = len(self._classifier)
        bodies = [body for lesson in new for body in lesson.bodies]
        if before + len(bodies) > self._limits.rows:
            raise memory_full(self._limits.rows)
        curve = Curve.read(self._classifier.store.setting(CURVE_SETTING))
        try:
            learnt = self._classifier.learn_many(
                Examples.joined([lesson.embedded for lesson in new]),
                [body.label for body in bodies],
                sources=[body.source for body in bodies],
                settings=lambda receipts: curve.after(receipts, before),
                receipts=lambda receipts: _keyed(new, receipts),
            )
        except AlreadyAnswered:
            # Another service on the same memory has answered one of these in the meantime.
            if len(new) > 1 or not self._is_answered(new[0]):
                raise
            return
        for lesson, part in parts_of(new):
            lesson.outcome = [finite(receipt) for receipt in learnt[part]]
        for receipt in learnt:
            self.metrics.surprise.labels(self.name).observe(receipt.surprise_nats)

    def _is_answered(self, lesson: TeachJob) -> bool:
        """True if a request of this key was answered before; the lesson then has its outcome."""
        kept = None if lesson.key is None else self._classifier.store.receipt(lesson.key)
        if kept is None:
            return False
        if not kept:
            what = "this request was answered before, and something that it named has been forgotten since"
            lesson.outcome = Refused(410, "forgotten", what)
        elif kept["digest"] == lesson.digest():
            lesson.outcome = RECEIPTS.validate_python(kept["receipts"])
        else:
            lesson.outcome = Refused(422, "key_reused", "this Idempotency-Key was used for another request")
        return True

    def _run(self, errands: list[Errand[Any]]) -> None:
        for errand in errands:
            errand.outcome = errand.run(self._classifier)


def _keyed(lessons: Sequence[TeachJob], learnt: list[Receipt]) -> dict[str, Any]:
    """What is kept of requests with a key, to answer them again."""
    return {
        lesson.key: {"digest": lesson.digest(), "receipts": RECEIPTS.dump_python(list(map(finite, learnt[part])))}
        for lesson, part in parts_of(lessons)
        if lesson.key is not None
    }


def memory_full(rows: int) -> Refused:
    return Refused(409, "memory_full", f"a memory holds at most {rows:,} rows, and these do not fit")
