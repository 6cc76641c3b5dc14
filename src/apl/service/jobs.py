"""Requests that wait for their memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from apl.service.bodies import Asking, Lesson, Question


@dataclass(kw_only=True)
class Job:
    """A request in the queue."""

    bodies: Sequence[Question] = ()
    anyway: bool = False
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    outcome: Any = None
    """What the thread found, an exception included; handed to `done` in the event loop."""
    examples: list[Examples] = field(init=False)
    embedded: Examples = field(init=False)


@dataclass(kw_only=True)
class AskJob(Job):
    asked: Asking


@dataclass(kw_only=True)
class TeachJob(Job):
    """Examples to be learnt: all of them or none."""

    bodies: Sequence[Lesson]
    key: str | None

    def digest(self) -> str:
        """Equal for requests that say the same, in whatever form they come."""
        total = hashlib.sha256()
        for example, body in zip(self.examples, self.bodies, strict=True):
            content = example.payload(0) or b""
            for part in (repr(len(content)), repr(body.label), repr(body.source)):
                total.update(part.encode() + b"\0")
            total.update(content + b"\0")
        return total.hexdigest()


@dataclass(kw_only=True)
class Errand(Job):
    run: Callable[[OnlineClassifier], Any]


JobKind = TypeVar("JobKind", bound=Job)


def parts_of(jobs: Sequence[JobKind]) -> Iterator[tuple[JobKind, slice]]:
    """Each job, and the place of its examples among those of all."""
    start = 0
    for job in jobs:
        yield job, slice(start, start + len(job.bodies))
        start += len(job.bodies)
