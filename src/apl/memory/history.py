"""How the latest examples of a memory were predicted before their labels were known, and what follows for sets of labels.

Sets are conformal: a label belongs to the set if its surprise is at most a quantile of the surprises that the true labels had.
Examples of a stream are not exchangeable, so the level of the quantile follows the misses (adaptive conformal inference, Gibbs
and Candès, 2021): it widens after a miss, and narrows a little after a hit. It is followed at several levels at once, so that
any coverage can be asked for later. Examples of a whole batch are exchangeable: each is judged by the others instead.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.store import Label
from apl.store.rows import label_text

KEPT = 500
"""Examples that a history holds; the oldest go."""
LEVELS = np.array([0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75])
"""Shares of misses that are followed."""
HITS = 1 - LEVELS
"""Shares of hits."""
STEP = 0.02
"""How far one example moves a level."""
FARTHEST_SHIFT = 2.0
"""Beyond 1 every set is empty or holds everything, which moves the level back."""
MOST_NEAR = 256
"""The same of the examples by which false alarms are calibrated."""
MOST_NATS = 100.0
"""Larger surprises are recorded as this."""
SLACK = 1e-9
"""Rounding must not turn a rank of 9 into one of 10."""


@dataclass(frozen=True)
class History:
    """The latest examples of a memory, oldest first. A value: one more example makes another history."""

    score: Float[np.ndarray, " judged"] = field(default_factory=lambda: np.zeros(0, "<f4"))
    """-ln p(label), where a label never seen before counts as the class of everything new. Of a batch these are a sample, so
    there may be fewer than of the rest."""
    surprise_nats: Float[np.ndarray, " example"] = field(default_factory=lambda: np.zeros(0, "<f4"))
    """The surprise that decided whether the example was written."""
    label: np.ndarray = field(default_factory=lambda: np.zeros(0, "<u4"))
    """Checksums of the labels: a name that is forgotten must not stay here."""
    near: Float[np.ndarray, "familiar 2"] = field(default_factory=lambda: np.zeros((0, 2), "<f4"))
    """How near classes came to examples of classes that were shown before (`Prediction.foreseen`)."""
    shift: Float[np.ndarray, " level"] = field(default_factory=lambda: np.zeros(len(LEVELS)))
    """What each of `LEVELS` has moved by."""
    seen: int = 0
    """Examples in all."""
    risen: bool = False
    """Surprise had risen when it was last tested (`apl.classifier.drift`)."""
    usual: float = 0.0
    """The mean probability that labels did not get, before it rose."""
    rose_at: int = 0
    """The number of examples when that was noticed."""
    marks: tuple[int, ...] = ()
    """The ids of the newest rows at the latest tests before it rose."""

    def __len__(self) -> int:
        """Examples that sets rest on."""
        return len(self.score)

    def after(
        self, score: float, surprise_nats: float, label: Label, near: tuple[float, float] | None = None
    ) -> History:
        """The history after one more example."""
        last = np.array([min(score, MOST_NATS), min(surprise_nats, MOST_NATS)], np.float32)
        number = len(self.score) + 1
        # The set of a level missed the label if at least as many scores lie below as it holds: no quantile is needed.
        below = (np.count_nonzero(self.score < last[0]) + SLACK) / number
        moved = STEP * (LEVELS - (HITS - self.shift <= below))
        if number * LEVELS[0] < 1:
            # A set of everything says nothing about its level.
            moved[number * LEVELS < 1] = 0
        return History(
            np.concatenate((self.score[-KEPT + 1 :], last[:1])),
            np.concatenate((self.surprise_nats[-KEPT + 1 :], last[1:])),
            np.concatenate((self.label[-KEPT + 1 :], np.array([checksum(label)], np.uint32))),
            self.near if near is None else np.concatenate((self.near[-MOST_NEAR + 1 :], np.array([near], np.float32))),
            self.shift + moved,
            self.seen + 1,
            self.risen,
            self.usual,
            self.rose_at,
            self.marks,
        )

    def judged_anew(
        self, examples: int, score: Float[np.ndarray, " judged"], near: Float[np.ndarray, "familiar 2"]
    ) -> History:
        """With these numbers for the latest `examples`, each as the others of its batch foresee it."""
        older = self.score[: max(len(self.score) - examples, 0)]
        judged = np.concatenate((older, np.minimum(score, MOST_NATS)), dtype="<f4")[-KEPT:]
        # A small batch replaces no more than what its examples have shown while they were learnt.
        some = near[np.linspace(0, len(near) - 1, min(len(near), MOST_NEAR)).round().astype(int)]
        near = np.concatenate((self.near[: max(len(self.near) - examples, 0)], some), dtype="<f4")[-MOST_NEAR:]
        return replace(self, score=judged, near=near, shift=self.shift * (len(older) / max(len(judged), 1)))

    def threshold_nats(self, coverage: float) -> float:
        """The largest score of a label within the set of this coverage. Infinite if there are too few examples to tell."""
        covered = coverage - np.interp(1 - coverage, LEVELS, self.shift)
        padded = np.concatenate(([-np.inf], np.sort(self.score), [np.inf]), dtype=np.float32)
        rank = math.ceil((len(self.score) + 1) * covered - SLACK)
        return float(padded[min(max(rank, 0), len(self.score) + 1)])

    def to_dict(self) -> dict[str, Any]:
        return {
            "score": base64.b64encode(self.score.tobytes()).decode(),
            "surprise": base64.b64encode(self.surprise_nats.tobytes()).decode(),
            "label": base64.b64encode(self.label.tobytes()).decode(),
            "near": base64.b64encode(self.near.tobytes()).decode(),
            "shift": self.shift.tolist(),
            "seen": self.seen,
            "rise": [self.risen, self.usual, self.rose_at, *self.marks],
        }

    @staticmethod
    def read(kept: Any) -> History:
        """As a memory keeps it. A damaged history is no reason to refuse a memory: it starts over."""
        try:
            score, surprise = _array(kept["score"], "<f4"), _array(kept["surprise"], "<f4")
            label, shift = _array(kept["label"], "<u4"), np.array(kept["shift"], np.float64)
            near = _array(kept.get("near", ""), "<f4").reshape(-1, 2)
            seen, (risen, usual, rose_at, *marks) = int(kept["seen"]), kept.get("rise", (False, 0, 0))
            rise = risen is True and len(marks) > 0, float(usual), int(rose_at), tuple(map(int, marks))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return History()
        numbers = np.concatenate([score, surprise, near.ravel()])
        lengths = len(score) <= KEPT and len(surprise) == len(label) <= min(KEPT, seen) and len(near) <= MOST_NEAR
        usable = lengths and shift.shape == LEVELS.shape and bool(np.isfinite(numbers).all())
        if not usable or not (np.abs(shift) < FARTHEST_SHIFT).all():
            return History()
        return History(score, surprise, label, near, shift, seen, *rise)


def checksum(label: Label) -> int:
    return zlib.crc32(label_text(label).encode())


def _array(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)
