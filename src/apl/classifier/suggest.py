"""Which unlabelled examples to label next: those that settle the most doubt about the pool.

An example is doubtful by P(new) + (1 - P(new)) · (1 - margin), where the margin is that between its two most probable classes.
A label settles doubt about examples that are like it. Examples are chosen one after the other (greedily), each by how much doubt
its label would settle that neither a row of the memory nor an example chosen before does (uncertainty herding, Bae et al., 2024):

    gain(c) = Σ_x doubt(x) · max(0, likeness(x, c) - max over rows and chosen of likeness(x, ·))

So typical examples of unknown groups come first, what is torn between classes later, and outliers and copies last.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.classifier.opened import Opened
from apl.metric import distances, measured
from apl.store import Label

SAMPLED = 1024
"""Doubt is summed over at most this many examples of the pool."""
REACH = 0.75
"""Likeness is exp(-REACH) at the usual distance to the nearest row: the more is known, the shorter the reach of a label."""
FARTHEST = 20.0
"""Distances are cut off here, in the same unit."""
NEW, UNLIKE, CLEAR = 0.5, 0.9, 0.5
"""P(new) from which on an example is called new, and unlike anything; the margin from which on it is not called torn."""


@dataclass(frozen=True)
class Suggestion:
    """An example worth a label.

    Examples:
        >>> from apl import OnlineClassifier
        >>> OnlineClassifier().suggest([[0, 0], [0, 1], [9, 9]], 1)[0].reason
        'typical of the pool; no class is known yet'
    """

    index: int
    """Its place in the pool."""
    reason: str
    probability_new: float
    labels: tuple[Label, ...]
    """The two most probable known labels, as far as there are two."""
    worth: float
    """The doubt that its label settles, as a share of the pool. 0: it is known, or like an example chosen before."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "labels": list(self.labels)}


def suggest(opened: Opened, embeddings: Float[np.ndarray, "example embed"], number: int) -> list[Suggestion]:
    """The examples most worth a label, best first."""
    memory, found = opened.memory, []
    new, best, margin, nearest = _judged(opened, embeddings)
    keys = measured(embeddings, memory.metric, None if memory.scale is None else memory.scale[0])
    doubt = new + (1 - new) * (1 - margin)
    for at, worth in _chosen(keys, doubt, nearest, number):
        labels = tuple(memory.classes[place] for place in memory.names.order[best[at]].tolist())
        reason = _reason(float(new[at]), labels, float(margin[at]))
        found.append(Suggestion(at, reason, float(new[at]), labels, worth))
    return found


def _judged(opened: Opened, embeddings: Float[np.ndarray, "example embed"]) -> list[np.ndarray]:
    """Of each example P(new), its two most probable classes (places among the sorted ones), the margin between them, and the
    distance to the nearest row (infinite if there is none)."""
    parts, several = [], len(opened.memory.classes) > 1
    for prediction in opened.predictions(embeddings):
        probabilities, rows = opened.probabilities_of_known(prediction), prediction.neighbours
        first = np.argsort(-probabilities, axis=1, kind="stable")[:, :2]
        shares = np.take_along_axis(probabilities, first, 1)
        margin = shares[:, 0] - shares[:, 1] if several else np.ones(len(first))
        nearest = np.where(rows.mask[0], rows.distance[0], np.inf).min(1, initial=np.inf)
        parts.append((opened.probability_of_new(prediction), first, margin, nearest))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _chosen(
    keys: Float[np.ndarray, "example embed"],
    doubt: Float[np.ndarray, " example"],
    nearest: Float[np.ndarray, " example"],
    number: int,
) -> list[tuple[int, float]]:
    """Places in the pool and what each is worth."""
    sample = np.arange(0, len(keys), -(-len(keys) // SAMPLED))
    doubt, nearest = doubt[sample] / len(sample), nearest[sample]
    # Before there is a row, all that is known is where the pool lies.
    known = nearest if np.isfinite(nearest).any() else distances(keys[sample], keys[sample].mean(0)[None])[:, 0]
    unit = max(float(np.median(known)), 1e-6)
    like, settled = _likeness(distances(keys, keys[sample]) / unit), _likeness(nearest / unit)
    gain = np.concatenate(
        [np.maximum(some - settled, 0) @ doubt for some in np.array_split(like, -(-len(like) // 256))]
    )
    found: list[tuple[int, float]] = []
    while len(found) < min(number, len(keys)):
        at = int(gain.argmax())
        now = float(np.maximum(like[at] - settled, 0) @ doubt)
        if now < gain[at]:
            # Gains only fall while examples are chosen, so the other ones need not be computed again yet.
            gain[at] = now
            continue
        found.append((at, now))
        settled = np.maximum(settled, like[at])
        gain[at] = -np.inf
    return found


def _likeness(distance: np.ndarray) -> Float[np.ndarray, "*any"]:
    """1 for the same, less the farther apart, in usual distances."""
    likeness: np.ndarray = np.exp(-REACH * np.square(np.minimum(distance, FARTHEST))).astype(np.float32)
    return likeness


def _reason(new: float, labels: tuple[Label, ...], margin: float) -> str:
    if not labels:
        return "typical of the pool; no class is known yet"
    if new >= UNLIKE:
        return "unlike anything shown"
    if new >= NEW:
        return "probably new"
    if len(labels) > 1 and margin < CLEAR:
        return f"torn between {labels[0]!r} and {labels[1]!r}"
    return f"probably {labels[0]!r}"
