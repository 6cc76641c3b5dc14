"""Whether surprise has risen of late, since when, and with which classes.

The detector is river's ADWIN (Bifet and Gavaldà, 2007), run over the history that the memory keeps: the latest examples, each by
the probability that its label did not get. The first example of a class in the history is left out, since a new class surprises
on any stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.memory.history import History, checksum
from apl.store import Label

CHECK_EVERY = 8
"""Examples between two tests of the detector."""
LEAST_EXAMPLES = 3
"""Of a class since the rise, for it to be named."""
LEAST_RISE = 0.1
"""Of the probability that its labels did not get."""


@dataclass(frozen=True)
class DriftReport:
    """Surprise over the latest examples of a memory."""

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
    kept = _not_first(history.label)
    missed = 1 - np.exp(-history.surprise_nats[kept].astype(np.float64))
    whole = float(missed.mean()) if len(missed) else 0.0
    start = rise(missed)
    if start is None:
        return DriftReport(False, None, whole, whole, (), len(missed))
    before, now = missed[:start], missed[start:]
    concerned = _concerned(history.label[kept], missed, start)
    known = {checksum(name): name for name in names}
    since = len(history) - int(kept[start])
    labels = tuple(known[mark] for mark in concerned if mark in known)
    return DriftReport(True, since, float(before.mean()), float(now.mean()), labels, len(missed))


def rise(missed: Float[np.ndarray, " example"]) -> int | None:
    """Where the values rose and have stayed since; None if they did not."""
    try:
        from river.drift import ADWIN
    except ImportError:
        raise ImportError("drift needs river: pip install 'apl-memory[drift]'") from None
    detector, risen = ADWIN(clock=CHECK_EVERY), False
    for value in missed.tolist():
        before = detector.estimation
        detector.update(value)
        if detector.drift_detected:
            risen = detector.estimation > before
    return _rose_at(missed) if risen else None


def _rose_at(missed: Float[np.ndarray, " example"]) -> int:
    """The place that parts low values from high ones best: the detector tells that they rose, but hardly when."""
    number = len(missed)
    place = np.arange(1, number)
    total = missed.cumsum()
    apart = (total[-1] - total[:-1]) / (number - place) - total[:-1] / place
    return int(place[(apart * np.sqrt(place * (number - place))).argmax()])


def _not_first(label: np.ndarray) -> Int[np.ndarray, " example"]:
    """Places of the examples whose label came before."""
    _, first = np.unique(label, return_index=True)
    places: np.ndarray = np.setdiff1d(np.arange(len(label)), first)
    return places


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
