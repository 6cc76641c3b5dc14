"""Whether surprise has risen of late, since when, and with which classes.

The test is ADWIN's (Bifet and Gavaldà, 2007) on the history that the memory keeps: the latest examples, each by the probability that
its label did not get. All places where the history may be cut are tested, not only those between ADWIN's buckets: the history
is short, and on the streams of docs/log/loop.md this notices changes a little sooner. The first example of a class in the
history is left out, since a new class surprises on any stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.memory.history import History, checksum
from apl.store import Label

RARELY = 0.002
"""ADWIN's delta: how probable a false alarm may be."""
LEAST_PART, LEAST_TESTED = 5, 20
"""Examples on each side of a cut, and in all."""
CHECK_EVERY = 8
"""Examples between two tests of a memory that is learning."""
MARKS = 3
"""Tests before the one that notices a rise: rows that are newer than the first of them are taken to be of the time since."""
RECENT, OVER, LONGEST = 20, 0.05, 300
"""Examples whose mean says whether a rise is over, how near to the usual it must be, and examples after which it is over anyway."""
LEAST_EXAMPLES = 3
"""Of a class since the rise, for it to be named."""
LEAST_RISE = 0.1
"""Of the probability that its labels did not get."""


@dataclass(frozen=True)
class DriftReport:
    """Surprise over the latest examples of a memory.

    Examples:
        >>> from apl import OnlineClassifier
        >>> OnlineClassifier().drift().alarm
        False
    """

    alarm: bool
    """Surprise has risen, and has not fallen again."""
    since: int | None
    """About how many examples ago it rose; None if there is no alarm."""
    before: float
    """The mean probability that true labels did not get, before the rise; or on the whole, if there is no alarm."""
    now: float
    """The same since the rise."""
    labels: tuple[Label, ...]
    """Classes with which it rose, the most concerned first."""
    examples: int
    """Examples that the report rests on."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "labels": list(self.labels)}


def drift_report(history: History, names: Sequence[Label]) -> DriftReport:
    """What the history says; `names` are the known classes."""
    kept, missed = _missed(history)
    whole = float(missed.mean()) if len(missed) else 0.0
    start = rise(missed)
    if start is None:
        return DriftReport(False, None, whole, whole, (), len(missed))
    before, now = missed[:start], missed[start:]
    concerned = _concerned(history.label[kept], missed, start)
    known = {checksum(name): name for name in names}
    since = len(history.label) - int(kept[start])
    labels = tuple(known[mark] for mark in concerned if mark in known)
    return DriftReport(True, since, float(before.mean()), float(now.mean()), labels, len(missed))


def checked(history: History, newest: int) -> History:
    """The history, tested again. `newest`: the id of the memory's newest row.

    A rise is over when surprise is back at what was usual before it, or after `LONGEST` examples: then that is usual.
    """
    missed = _missed(history)[1]
    if history.risen:
        back = float(missed[-RECENT:].mean()) < history.usual + OVER
        return history if not back and history.seen - history.rose_at < LONGEST else replace(history, risen=False)
    start, marks = rise(missed), (*history.marks, newest)[-MARKS:]
    if start is None:
        return replace(history, marks=marks)
    return replace(history, risen=True, usual=float(missed[:start].mean()), rose_at=history.seen, marks=marks)


def rise(missed: Float[np.ndarray, " example"]) -> int | None:
    """Where the values rose and have stayed since; None if they did not."""
    start, rose = 0, False
    while (cut := _cut(missed[start:])) is not None:
        start, rose = start + cut[0], cut[1]
    return start if rose else None


def _cut(missed: Float[np.ndarray, " example"]) -> tuple[int, bool] | None:
    """The place that parts the values best, and whether they are higher after it; None if chance may have parted them so."""
    number = len(missed)
    if number < LEAST_TESTED:
        return None
    place = np.arange(LEAST_PART, number - LEAST_PART + 1)
    total = missed.cumsum()
    apart = (total[-1] - total[place - 1]) / (number - place) - total[place - 1] / place
    per_example = 1 / place + 1 / (number - place)
    nats = math.log(2 * math.log(number) / RARELY)
    strength = apart / (np.sqrt(2 * per_example * missed.var() * nats) + 2 / 3 * per_example * nats)
    best = int(np.abs(strength).argmax())
    return (int(place[best]), bool(strength[best] > 0)) if abs(strength[best]) > 1 else None


def _missed(history: History) -> tuple[Int[np.ndarray, " example"], Float[np.ndarray, " example"]]:
    """Places of the examples whose label came before, and the probabilities that these labels did not get."""
    _, first = np.unique(history.label, return_index=True)
    kept: np.ndarray = np.delete(np.arange(len(history.label)), first)
    return kept, 1 - np.exp(-history.surprise_nats[kept].astype(np.float64))


def _concerned(label: np.ndarray, missed: Float[np.ndarray, " example"], start: int) -> list[int]:
    """Checksums of the labels that became more surprising, by how much they added to the rise."""
    usual, found = float(missed[:start].mean()), []
    for mark in np.unique(label[start:]).tolist():
        own = label == mark
        before, now = missed[:start][own[:start]], missed[start:][own[start:]]
        risen = float(now.mean()) - (float(before.mean()) if len(before) else usual)
        if len(now) >= LEAST_EXAMPLES and risen >= LEAST_RISE:
            found.append((risen * len(now), int(mark)))
    return [mark for _, mark in sorted(found, reverse=True)]
